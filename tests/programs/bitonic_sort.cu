// needs: plain
// Bitonic sort: steps inside a block in shared memory, wider steps in global memory.
#include <algorithm>

#include "check.h"

const int threads = 256, span = 2 * threads;

__device__ void order(unsigned &a, unsigned &b, bool up) {
    if ((a > b) == up) {
        unsigned c = a;
        a = b;
        b = c;
    }
}

__global__ void sort_block(unsigned *values, int size, int stride) {
    __shared__ unsigned part[span];
    int base = blockIdx.x * span;
    for (int i = threadIdx.x; i < span; i += threads) part[i] = values[base + i];
    for (; size <= span || stride < span; size *= 2, stride = size / 2) {
        for (; stride > 0; stride /= 2) {
            __syncthreads();
            int i = 2 * threadIdx.x - (threadIdx.x & (stride - 1));
            order(part[i], part[i + stride], ((base + i) & size) == 0);
        }
        if (size >= span) break;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < span; i += threads) values[base + i] = part[i];
}

__global__ void step(unsigned *values, int size, int stride) {
    int t = blockIdx.x * threads + threadIdx.x, i = 2 * t - (t & (stride - 1));
    order(values[i], values[i + stride], (i & size) == 0);
}

int main() {
    const int count = 1 << 14;
    Random random(9);
    std::vector<unsigned> values(count);
    for (unsigned &value : values) value = random.below(1 << 20) * 4001;
    Array<unsigned> d(values);
    sort_block<<<count / span, threads>>>(d, 2, 1);
    for (int size = 2 * span; size <= count; size *= 2) {
        for (int stride = size / 2; stride >= span; stride /= 2)
            step<<<count / span, threads>>>(d, size, stride);
        sort_block<<<count / span, threads>>>(d, size, span / 2);
    }
    RAN();
    std::sort(values.begin(), values.end());
    auto got = d.host();
    for (int i = 0; i < count; i++) CHECK(got[i] == values[i], "element %d is %u, not %u", i, got[i], values[i]);
    printf("first %u, middle %u, last %u\n", got[0], got[count / 2], got[count - 1]);
    return check::pass();
}
