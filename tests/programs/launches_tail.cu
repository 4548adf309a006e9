// needs: launches
// nvcc: -rdc=true -lcudadevrt
// Tail launches begin when their grid and all that it launched is over, one after another, and those of a tail before
// the next tail; fire-and-forget launches begin by themselves. A grid that launches itself as its tail goes on long.
#include "check.h"

__device__ int order[64];
__device__ int written;
__device__ int sum;

__global__ void note(int what) { order[atomicAdd(&written, 1)] = what; }

__global__ void slow_note(int what, int spins) {
    volatile int turns = 0;
    for (int i = 0; i < spins; i++) turns = turns + 1;
    order[atomicAdd(&written, 1)] = what;
}

__global__ void tail(int what) {
    order[atomicAdd(&written, 1)] = what;
    note<<<1, 1, 0, cudaStreamTailLaunch>>>(what + 1);
    note<<<1, 1, 0, cudaStreamTailLaunch>>>(what + 2);
}

__global__ void parent() {
    tail<<<1, 1, 0, cudaStreamTailLaunch>>>(100);
    tail<<<1, 1, 0, cudaStreamTailLaunch>>>(200);
    slow_note<<<1, 1>>>(1, 20000);
    note<<<1, 1>>>(2);
}

__global__ void add(int by) { atomicAdd(&sum, by); }

__global__ void scatter() {
    add<<<1, 2, 0, cudaStreamFireAndForget>>>(threadIdx.x);
    add<<<2, 1, 0, cudaStreamFireAndForget>>>(1000);
}

// Collatz, a step a grid.
__global__ void collatz(unsigned value, int steps) {
    if (value == 1)
        order[0] = steps;
    else
        collatz<<<1, 1, 0, cudaStreamTailLaunch>>>(value % 2 ? 3 * value + 1 : value / 2, steps + 1);
}

int main() {
    parent<<<1, 1>>>();
    RAN();
    int got[64], count = 0;
    OK(cudaMemcpyFromSymbol(got, order, sizeof(got)));
    OK(cudaMemcpyFromSymbol(&count, written, sizeof(count)));
    const int wanted[] = {1, 2, 100, 101, 102, 200, 201, 202};
    CHECK(count == 8, "%d", count);
    for (int i = 0; i < 8; i++) CHECK(got[i] == wanted[i], "place %d: %d, not %d", i, got[i], wanted[i]);

    scatter<<<3, 32>>>();
    RAN();
    int total = 0;
    OK(cudaMemcpyFromSymbol(&total, sum, sizeof(total)));
    int all = 3 * (2 * 31 * 32 / 2 + 2 * 32 * 1000);
    CHECK(total == all, "%d, not %d", total, all);

    collatz<<<1, 1>>>(97, 0);
    RAN();
    OK(cudaMemcpyFromSymbol(got, order, sizeof(got)));
    CHECK(got[0] == 118, "%d", got[0]);
    printf("%d %d\n", total, got[0]);
    printf("PASS\n");
}
