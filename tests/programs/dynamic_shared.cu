// needs: plain
// Dynamic shared memory: sizes from 0 bytes up, several arrays carved from one, beside static
// arrays, and more than 48 KiB after asking for it.
#include "check.h"

__global__ void reverse(int *data, int count) {
    extern __shared__ int s[];
    for (int i = threadIdx.x; i < count; i += blockDim.x) s[i] = data[i];
    __syncthreads();
    for (int i = threadIdx.x; i < count; i += blockDim.x) data[i] = s[count - 1 - i];
}

__global__ void carve(double *out, int count) {
    extern __shared__ __align__(16) unsigned char raw[];
    __shared__ int fixed[32];
    double *a = reinterpret_cast<double *>(raw);
    float *b = reinterpret_cast<float *>(a + count);
    short *c = reinterpret_cast<short *>(b + count);
    char *d = reinterpret_cast<char *>(c + count);
    int i = threadIdx.x;
    if (i < 32) fixed[i] = 1000 * i;
    a[i] = i + 0.5;
    b[i] = i * 2.0f;
    c[i] = short(-i);
    d[i] = char(i % 100);
    __syncthreads();
    int j = count - 1 - i;
    out[i] = a[j] + b[j] + c[j] + d[j] + fixed[j % 32];
}

__global__ void size_of(unsigned *out) {
    unsigned dynamic, total;
    asm("mov.u32 %0, %%dynamic_smem_size;" : "=r"(dynamic));
    asm("mov.u32 %0, %%total_smem_size;" : "=r"(total));
    out[0] = dynamic;
    out[1] = total >= dynamic;
}

int main() {
    for (int count : {1, 100, 12288}) {
        std::vector<int> values(count);
        for (int i = 0; i < count; i++) values[i] = i * i;
        Array<int> d(values);
        reverse<<<1, 256, count * sizeof(int)>>>(d, count);
        RAN();
        auto got = d.host();
        for (int i = 0; i < count; i++) CHECK(got[i] == values[count - 1 - i], "element %d of %d: %d", i, count, got[i]);
    }
    const int threads = 160;
    Array<double> out(threads);
    carve<<<1, threads, threads * 15>>>(out, threads);
    RAN();
    auto got = out.host();
    for (int i = 0; i < threads; i++) {
        int j = threads - 1 - i;
        double expected = j + 0.5 + 2 * j - j + j % 100 + 1000 * (j % 32);
        CHECK(got[i] == expected, "thread %d: %g, not %g", i, got[i], expected);
    }
    Array<unsigned> size(2);
    for (unsigned bytes : {0u, 16u, 40000u}) {
        size_of<<<1, 1, bytes>>>(size);
        RAN();
        auto seen = size.host();
        CHECK(seen[0] == bytes && seen[1], "%u bytes of dynamic shared memory, asked for %u", seen[0], bytes);
    }

    const int large = 60 * 1024;
    Array<int> d(large / 4);
    reverse<<<1, 256, large>>>(d, large / 4);
    FAILS(cudaGetLastError(), cudaErrorInvalidValue);
    OK(cudaFuncSetAttribute(reverse, cudaFuncAttributeMaxDynamicSharedMemorySize, large));
    std::vector<int> values(large / 4);
    for (int i = 0; i < large / 4; i++) values[i] = i;
    d.set(values);
    reverse<<<1, 256, large>>>(d, large / 4);
    RAN();
    CHECK(d.host()[0] == large / 4 - 1, "first is %d", d.host()[0]);
    printf("60 KiB after asking\n");
    return check::pass();
}
