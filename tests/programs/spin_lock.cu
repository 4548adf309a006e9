// needs: plain
// Spin locks: one lock taken by a thread of each block; a lock for each bin taken by every lane, in
// the form that needs independent progress of lanes (volatile data, fences, compare-and-swap).
#include "check.h"

__device__ void lock(int *word) {
    while (atomicCAS(word, 0, 1) != 0) {}
    __threadfence();
}
__device__ void unlock(int *word) {
    __threadfence();
    atomicExch(word, 0);
}

__global__ void by_blocks(int *word, volatile int *data) {
    if (threadIdx.x == 0) {
        lock(word);
        int a = data[0], b = data[1];
        data[0] = a + 1;
        data[1] = b + a;
        unlock(word);
    }
    __syncthreads();
}

__global__ void by_lanes(int *words, volatile int *data, int bins) {
    int i = blockIdx.x * blockDim.x + threadIdx.x, bin = i * 7 % bins;
    lock(&words[bin]);
    data[bin] = data[bin] * 1 + i;
    unlock(&words[bin]);
}

int main() {
    const int grid = 100, bins = 5;
    Array<int> words(bins), data(bins);
    words.clear();
    data.clear();
    by_blocks<<<grid, 64>>>(words, data);
    RAN();
    auto got = data.host();
    CHECK(got[0] == grid && got[1] == grid * (grid - 1) / 2, "%d and %d", got[0], got[1]);
    data.clear();
    by_lanes<<<6, 64>>>(words, data, bins);
    RAN();
    got = data.host();
    std::vector<int> expected(bins);
    for (int i = 0; i < 6 * 64; i++) expected[i * 7 % bins] += i;
    for (int i = 0; i < bins; i++) CHECK(got[i] == expected[i], "bin %d has %d, not %d", i, got[i], expected[i]);
    for (int word : words.host()) CHECK(word == 0, "a lock is held");
    printf("%d blocks, %d lanes\n", grid, 6 * 64);
    return check::pass();
}
