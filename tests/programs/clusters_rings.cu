// needs: sm_90
// nvcc: -std=c++17 -gencode arch=compute_90,code=compute_90
// Blocks of a cluster hand values round through each other's shared memory; clusters of two and three dimensions whose
// size the kernel itself says; where each block is; barriers that are split into arrival and waiting.
#include <cooperative_groups.h>

#include "check.h"

namespace cg = cooperative_groups;

__global__ void __cluster_dims__(4, 1, 1) ring(unsigned *out, int rounds) {
    __shared__ unsigned box[2][64];
    auto cluster = cg::this_cluster();
    unsigned t = threadIdx.x, rank = cluster.block_rank(), next = (rank + 1) % cluster.num_blocks();
    unsigned value = blockIdx.x * 64 + t;
    for (int round = 0; round < rounds; round++) {
        cluster.map_shared_rank(&box[round % 2][0], next)[t] = value;
        cluster.sync();
        value = value * 3 + box[round % 2][63 - t];
    }
    // Nobody leaves while others may still write here.
    cluster.sync();
    out[blockIdx.x * 64 + t] = value;
}

__global__ void __cluster_dims__(2, 2, 2) places(unsigned *out) {
    auto cluster = cg::this_cluster();
    dim3 in = cluster.block_index(), of = cluster.dim_blocks();
    unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    bool right = in.x == blockIdx.x % 2 && in.y == blockIdx.y % 2 && in.z == blockIdx.z % 2 && of.x * of.y * of.z == 8 &&
                 cluster.num_threads() == 8 * blockDim.x && cluster.thread_rank() == cluster.block_rank() * blockDim.x + threadIdx.x &&
                 cluster.block_rank() == in.x + 2 * in.y + 4 * in.z;
    if (!right) atomicAdd(&out[gridDim.x * gridDim.y * gridDim.z], 1);
    if (threadIdx.x == 0) out[block] = cluster.block_rank() * 1000 + of.x * 100 + of.y * 10 + of.z;
}

// The sum of a cluster's blocks, read from the others by rank 0; meanwhile the others do something else.
__global__ void __cluster_dims__(2, 1, 1) split(const int *in, int *out) {
    __shared__ int sum;
    auto cluster = cg::this_cluster();
    if (threadIdx.x == 0) sum = 0;
    __syncthreads();
    atomicAdd(&sum, in[blockIdx.x * blockDim.x + threadIdx.x]);
    auto token = cluster.barrier_arrive();
    int own = threadIdx.x * 2;
    cluster.barrier_wait(std::move(token));
    if (cluster.block_rank() == 0 && threadIdx.x == 0) {
        int total = 0;
        for (unsigned b = 0; b < cluster.num_blocks(); b++) total += *cluster.map_shared_rank(&sum, b);
        out[blockIdx.x / 2] = total + own;
    }
    // What a pointer says of the block that it is of.
    if (cluster.query_shared_rank(cluster.map_shared_rank(&sum, 1)) != 1) atomicAdd(&out[4], 1);
    cluster.sync();
}

int main() {
    const int grid = 12, rounds = 9;
    Array<unsigned> words(grid * 64);
    ring<<<grid, 64>>>(words, rounds);
    RAN();
    std::vector<unsigned> value(grid * 64), before;
    for (int i = 0; i < grid * 64; i++) value[i] = i;
    for (int round = 0; round < rounds; round++) {
        before = value;
        for (int i = 0; i < grid * 64; i++) {
            int block = i / 64, from = block / 4 * 4 + (block + 3) % 4;
            value[i] = before[i] * 3 + before[from * 64 + 63 - i % 64];
        }
    }
    CHECK(words.host() == value, "the ring");
    printf("ring %016llx\n", (unsigned long long)check::hash(value));

    Array<unsigned> seen(4 * 4 * 2 + 1);
    seen.clear();
    places<<<dim3(4, 4, 2), 32>>>(seen);
    RAN();
    auto got = seen.host();
    CHECK(got[32] == 0, "%u threads are elsewhere", got[32]);
    for (int b = 0; b < 32; b++) {
        unsigned expected = (b % 2 + b / 4 % 2 * 2 + b / 16 % 2 * 4) * 1000 + 222;
        CHECK(got[b] == expected, "block %d: %u, not %u", b, got[b], expected);
    }
    printf("places\n");

    std::vector<int> numbers(8 * 96);
    for (size_t i = 0; i < numbers.size(); i++) numbers[i] = int(i * i % 101);
    Array<int> in(numbers), sums(5);
    sums.clear();
    split<<<8, 96>>>(in, sums);
    RAN();
    auto totals = sums.host();
    for (int c = 0; c < 4; c++) {
        int total = 0;
        for (int i = 0; i < 192; i++) total += numbers[c * 192 + i];
        CHECK(totals[c] == total, "cluster %d: %d, not %d", c, totals[c], total);
    }
    CHECK(totals[4] == 0, "%d pointers say another block", totals[4]);
    printf("split\n");
    return check::pass();
}
