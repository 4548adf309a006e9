// needs: plain
// 256 bins of bytes: shared atomics per block, then global ones; and straight global atomics.
#include "check.h"

__global__ void shared_bins(const unsigned char *bytes, unsigned *bins, int count) {
    __shared__ unsigned own[256];
    own[threadIdx.x] = 0;
    __syncthreads();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x)
        atomicAdd(&own[bytes[i]], 1);
    __syncthreads();
    atomicAdd(&bins[threadIdx.x], own[threadIdx.x]);
}

__global__ void global_bins(const unsigned char *bytes, unsigned *bins, int count) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x)
        atomicAdd(&bins[bytes[i]], 1);
}

int main() {
    const int count = 200001;
    Random random(7);
    std::vector<unsigned char> bytes(count);
    std::vector<unsigned> expected(256);
    for (unsigned char &byte : bytes) {
        // Skewed, so that lanes of a warp meet in one bin.
        byte = random.below(256) & random.below(256);
        expected[byte]++;
    }
    Array<unsigned char> dbytes(bytes);
    Array<unsigned> bins(256);
    for (bool shared : {true, false}) {
        bins.clear();
        if (shared) shared_bins<<<8, 256>>>(dbytes, bins, count);
        else global_bins<<<8, 256>>>(dbytes, bins, count);
        RAN();
        auto got = bins.host();
        for (int i = 0; i < 256; i++) CHECK(got[i] == expected[i], "bin %d: %u, not %u", i, got[i], expected[i]);
        printf("%s: bin 0 %u, bin 255 %u\n", shared ? "shared" : "global", got[0], got[255]);
    }
    return check::pass();
}
