// needs: plain
// Atomic addition of float, double and packed halves, and a maximum of floats by compare-and-swap.
#include <cuda_fp16.h>

#include "check.h"

__device__ void max_float(float *place, float value) {
    int *word = reinterpret_cast<int *>(place), old = *word, seen;
    do {
        seen = old;
        if (__int_as_float(seen) >= value) return;
        old = atomicCAS(word, seen, __float_as_int(value));
    } while (old != seen);
}

__global__ void kernel(float *f, double *d, __half2 *h) {
    __shared__ float s;
    __shared__ double t;
    if (threadIdx.x == 0) s = 0, t = 0;
    __syncthreads();
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    atomicAdd(&f[0], float(i % 16) * 0.25f);
    atomicAdd(&f[1], -1.0f);
    max_float(&f[2], float((i * 37) % 1000));
    atomicAdd(&d[0], i * 0.125);
    atomicAdd(&s, 0.5f);
    atomicAdd(&t, double(i));
    if (i < 100) atomicAdd(h, __floats2half2_rn(1.0f, float(i % 4)));
    __syncthreads();
    if (threadIdx.x == 0) {
        atomicAdd(&f[3], s);
        atomicAdd(&d[1], t);
    }
}

int main() {
    const int grid = 10, threads = 128, n = grid * threads;
    Array<float> f(4);
    Array<double> d(2);
    Array<__half2> h(1);
    f.clear(), d.clear(), h.clear();
    kernel<<<grid, threads>>>(f, d, h);
    RAN();
    float sum = 0, high = 0;
    double wide = 0, plain = 0;
    for (int i = 0; i < n; i++) {
        sum += i % 16 * 0.25f;
        high = std::max(high, float(i * 37 % 1000));
        wide += i * 0.125, plain += i;
    }
    auto gf = f.host();
    auto gd = d.host();
    auto gh = h.host()[0];
    CHECK(gf[0] == sum && gf[1] == -n && gf[2] == high && gf[3] == n * 0.5f, "%g %g %g %g", gf[0], gf[1], gf[2], gf[3]);
    CHECK(gd[0] == wide && gd[1] == plain, "%g %g", gd[0], gd[1]);
    CHECK(__low2float(gh) == 100 && __high2float(gh) == 150, "%g %g", __low2float(gh), __high2float(gh));
    printf("%g %g %g %g\n", gf[0], gf[2], gd[0], gd[1]);
    return check::pass();
}
