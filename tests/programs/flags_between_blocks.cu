// needs: plain
// Blocks that wait for one another: a ring of four resident blocks hands a token round through
// volatile flags, and the last block done adds up what all wrote (threadfence reduction).
#include "check.h"

__global__ void ring(volatile int *turn, volatile int *token, int rounds) {
    int me = blockIdx.x, n = gridDim.x;
    if (threadIdx.x == 0) {
        for (int round = 0; round < rounds; round++) {
            while (*turn != round * n + me) {}
            __threadfence();
            *token = *token * 3 + me;
            __threadfence();
            *turn = round * n + me + 1;
        }
    }
}

__global__ void last_block(const int *in, int *partial, unsigned *done, int *total, int count) {
    __shared__ int sum;
    __shared__ bool last;
    if (threadIdx.x == 0) sum = 0;
    __syncthreads();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) atomicAdd(&sum, in[i]);
    __syncthreads();
    if (threadIdx.x == 0) {
        partial[blockIdx.x] = sum;
        __threadfence();
        last = atomicInc(done, gridDim.x - 1) == gridDim.x - 1;
    }
    __syncthreads();
    if (last && threadIdx.x == 0) {
        int all = 0;
        for (unsigned k = 0; k < gridDim.x; k++) all += ((volatile int *)partial)[k];
        *total = all;
    }
}

int main() {
    Array<int> words(2);
    words.clear();
    ring<<<4, 32>>>(words, words + 1, 25);
    RAN();
    unsigned expected = 0;
    for (int k = 0; k < 100; k++) expected = expected * 3 + k % 4;
    auto got = words.host();
    CHECK(got[0] == 100 && got[1] == int(expected), "turn %d, token %d", got[0], got[1]);

    const int count = 10000, grid = 20;
    std::vector<int> values(count);
    int sum = 0;
    for (int i = 0; i < count; i++) sum += values[i] = i % 101;
    Array<int> in(values), partial(grid), total(1);
    Array<unsigned> done(1);
    done.clear();
    for (int round = 0; round < 3; round++) {
        total.clear();
        last_block<<<grid, 64>>>(in, partial, done, total, count);
        RAN();
        CHECK(total.host()[0] == sum, "round %d: %d, not %d", round, total.host()[0], sum);
    }
    printf("token %d, sum %d\n", got[1], sum);
    return check::pass();
}
