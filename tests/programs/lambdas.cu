// needs: plain
// nvcc: --extended-lambda
// Device lambdas from host code: captures of values, pointers and structs; map and zip templates.
#include <algorithm>

#include "check.h"

template <class F> __global__ void each(int count, F f) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) f(i);
}

template <class F> void parallel(int count, F f) {
    each<<<std::min(64, blocks(count, 128)), 128>>>(count, f);
    OK(cudaGetLastError());
}

template <class F, class G> struct Compose {
    F f;
    G g;
    __host__ __device__ int operator()(int x) const { return f(g(x)); }
};

struct Line {
    int slope, offset;
    __host__ __device__ int operator()(int x) const { return slope * x + offset; }
};

int main() {
    const int count = 20000;
    Array<int> a(count), b(count);
    int *pa = a, *pb = b;
    short step = 3;
    Line line = {7, -5};
    parallel(count, [=] __device__(int i) { pa[i] = i * step; });
    parallel(count, [=] __device__(int i) { pb[i] = line(pa[i]) + pa[count - 1 - i]; });
    auto flip = [=] __host__ __device__(int x) -> int { return x ^ step; };
    Compose<Line, decltype(flip)> both{line, flip};
    parallel(count, [=] __device__(int i) { pa[i] = both(i); });
    RAN();
    auto ha = a.host(), hb = b.host();
    for (int i = 0; i < count; i++) {
        CHECK(hb[i] == 7 * (i * 3) - 5 + (count - 1 - i) * 3, "b[%d] is %d", i, hb[i]);
        CHECK(ha[i] == both(i), "a[%d] is %d, not %d", i, ha[i], both(i));
    }
    printf("%016llx %016llx\n", (unsigned long long)check::hash(ha), (unsigned long long)check::hash(hb));
    return check::pass();
}
