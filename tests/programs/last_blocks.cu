// needs: sm_80
// nvcc: -std=c++17 -gencode arch=compute_80,code=compute_80
// The last block to be done takes what all others left: with __threadfence and a counter that wraps round, with an
// acquiring and releasing counter, and with a barrier and a fence for whole blocks. Many launches, each reusing the counter.
#include <cuda/atomic>

#include "check.h"

constexpr int THREADS = 64;

template <int KIND> __global__ void total(const int *in, int *parts, unsigned *counter, int *out) {
    __shared__ int sum;
    __shared__ bool last;
    int t = threadIdx.x;
    if (t == 0) sum = 0;
    __syncthreads();
    atomicAdd(&sum, in[blockIdx.x * THREADS + t]);
    __syncthreads();
    if constexpr (KIND == 0) {
        if (t == 0) {
            parts[blockIdx.x] = sum;
            __threadfence();
            last = atomicInc(counter, gridDim.x - 1) == gridDim.x - 1;
        }
    } else if constexpr (KIND == 1) {
        if (t == 0) {
            parts[blockIdx.x] = sum;
            cuda::atomic_ref<unsigned, cuda::thread_scope_device> count(*counter);
            last = count.fetch_add(1, cuda::memory_order_acq_rel) == gridDim.x - 1;
            if (last) count.store(0, cuda::memory_order_relaxed);
        }
    } else {
        // Every thread has written a part of what is left.
        if (t < 4) parts[blockIdx.x * 4 + t] = sum / 4 + (t < sum % 4);
        __threadfence();
        __syncthreads();
        if (t == 0) last = atomicInc(counter, gridDim.x - 1) == gridDim.x - 1;
    }
    __syncthreads();
    if (!last) return;
    if constexpr (KIND == 0) __threadfence();
    __shared__ int all;
    if (t == 0) all = 0;
    __syncthreads();
    int count = gridDim.x * (KIND == 2 ? 4 : 1), own = 0;
    for (int i = t; i < count; i += THREADS) own += KIND == 1 ? parts[i] : ((volatile int *)parts)[i];
    atomicAdd(&all, own);
    __syncthreads();
    if (t == 0) *out = all;
}

template <int KIND> void test(const char *name, const int *in, const std::vector<int> &values) {
    Array<int> parts(4 * 150), out(1);
    Array<unsigned> counter(1);
    counter.clear();
    for (int launch = 0; launch < 60; launch++) {
        int grid = 1 + launch * 37 % 150;
        total<KIND><<<grid, THREADS>>>(in, parts, counter, out);
        RAN();
        int expected = 0;
        for (int i = 0; i < grid * THREADS; i++) expected += values[i];
        CHECK(out.host()[0] == expected, "%s, %d blocks: %d, not %d", name, grid, out.host()[0], expected);
    }
    printf("%s\n", name);
}

int main() {
    Random random(73);
    std::vector<int> values(150 * THREADS);
    for (int &value : values) value = int(random.below(1000));
    Array<int> in(values);
    test<0>("fences", in, values);
    test<1>("acquire and release", in, values);
    test<2>("fences of whole blocks", in, values);
    return check::pass();
}
