// needs: plain
// Sum of doubles by warp shuffles, then over the warps of a block, then by atomicAdd over blocks.
#include "check.h"

__device__ double warp_sum(double value) {
    for (int offset = 16; offset > 0; offset /= 2) value += __shfl_down_sync(~0u, value, offset);
    return value;
}

__global__ void sum(const double *values, double *total, int count) {
    __shared__ double warps[32];
    double own = 0;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x)
        own += values[i];
    own = warp_sum(own);
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    if (lane == 0) warps[warp] = own;
    __syncthreads();
    if (warp == 0) {
        own = warp_sum(lane < blockDim.x / 32 ? warps[lane] : 0);
        if (lane == 0) atomicAdd(total, own);
    }
}

int main() {
    // Multiples of 1/1024 below 1024: every partial sum is exact, so order does not matter.
    const int count = 70001;
    Random random(3);
    std::vector<double> values(count);
    double expected = 0;
    for (double &value : values) expected += value = random.below(1 << 20) / 1024.0;
    Array<double> dvalues(values), total(1);
    for (int threads : {32, 96, 256, 1024}) {
        total.clear();
        sum<<<7, threads>>>(dvalues, total, count);
        RAN();
        double got = total.host()[0];
        CHECK(got == expected, "%.10f with %d threads, not %.10f", got, threads, expected);
        printf("%4d threads: %.10f\n", threads, got);
    }
    return check::pass();
}
