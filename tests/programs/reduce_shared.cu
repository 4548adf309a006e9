// needs: plain
// Sum, minimum and maximum by a tree in shared memory, one partial result a block, two passes.
#include <algorithm>
#include <numeric>

#include "check.h"

struct Summary {
    long long sum;
    int low, high;
};

__device__ Summary join(Summary a, Summary b) {
    return {a.sum + b.sum, min(a.low, b.low), max(a.high, b.high)};
}

__global__ void lift(const int *values, Summary *out, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) out[i] = {values[i], values[i], values[i]};
}

template <int threads> __global__ void reduce(const Summary *in, Summary *out, int count) {
    __shared__ Summary tree[threads];
    Summary own = {0, INT32_MAX, INT32_MIN};
    for (int i = blockIdx.x * threads + threadIdx.x; i < count; i += gridDim.x * threads)
        own = join(own, in[i]);
    tree[threadIdx.x] = own;
    __syncthreads();
    for (int half = threads / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) tree[threadIdx.x] = join(tree[threadIdx.x], tree[threadIdx.x + half]);
        __syncthreads();
    }
    if (threadIdx.x == 0) out[blockIdx.x] = tree[0];
}

int main() {
    const int count = 50021, grid = 16;
    Random random(2);
    std::vector<int> values(count);
    for (int &value : values) value = int(random.bits());
    Array<int> dvalues(values);
    Array<Summary> lifted(count), partial(grid), total(1);
    lift<<<blocks(count, 128), 128>>>(dvalues, lifted, count);
    reduce<128><<<grid, 128>>>(lifted, partial, count);
    reduce<16><<<1, 16>>>(partial, total, grid);
    RAN();
    Summary got = total.host()[0];
    CHECK(got.sum == std::accumulate(values.begin(), values.end(), 0ll), "%lld", got.sum);
    CHECK(got.low == *std::min_element(values.begin(), values.end()), "%d", got.low);
    CHECK(got.high == *std::max_element(values.begin(), values.end()), "%d", got.high);
    printf("sum %lld, low %d, high %d\n", got.sum, got.low, got.high);
    return check::pass();
}
