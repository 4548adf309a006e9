// needs: cooperative
// nvcc: -std=c++17
// One cooperative kernel in many stages, with the grid's barrier between them: a scan by blocks and over blocks, and
// levels of a breadth-first search whose end all find out together; barriers that are split into arrival and waiting.
#include <algorithm>
#include <cooperative_groups.h>

#include "check.h"

namespace cg = cooperative_groups;

constexpr int THREADS = 128;

__global__ void scan(const unsigned *in, unsigned *out, unsigned *totals, int count) {
    __shared__ unsigned values[THREADS];
    auto grid = cg::this_grid();
    int per_block = (count + gridDim.x - 1) / gridDim.x, begin = blockIdx.x * per_block, end = min(count, begin + per_block);
    unsigned before = 0;
    for (int base = begin; base < end; base += THREADS) {
        int i = base + threadIdx.x;
        values[threadIdx.x] = i < end ? in[i] : 0;
        __syncthreads();
        for (int offset = 1; offset < THREADS; offset *= 2) {
            unsigned left = threadIdx.x >= offset ? values[threadIdx.x - offset] : 0;
            __syncthreads();
            values[threadIdx.x] += left;
            __syncthreads();
        }
        if (i < end) out[i] = before + values[threadIdx.x];
        before += values[THREADS - 1];
        __syncthreads();
    }
    if (threadIdx.x == 0) totals[blockIdx.x] = before;
    auto token = grid.barrier_arrive();
    // What needs no other block meanwhile.
    unsigned own = threadIdx.x;
    grid.barrier_wait(std::move(token));
    unsigned sum = 0;
    for (unsigned b = 0; b < blockIdx.x; b++) sum += totals[b];
    for (int i = begin + own; i < end; i += THREADS) out[i] += sum;
}

// Levels of a graph in which vertex v leads to three others.
__global__ void levels(int *level, int *changed, int vertices, int *rounds) {
    auto grid = cg::this_grid();
    int depth = 0;
    while (true) {
        for (int v = grid.thread_rank(); v < vertices; v += grid.size()) {
            if (level[v] != depth) continue;
            const int to[3] = {(v * 3 + 1) % vertices, (v * 5 + 7) % vertices, (v + vertices - 1) % vertices};
            for (int w : to)
                if (atomicCAS(&level[w], -1, depth + 1) == -1) changed[depth % 3] = 1;
        }
        if (grid.thread_rank() == 0) changed[(depth + 1) % 3] = 0;
        grid.sync();
        if (!*(volatile int *)&changed[depth % 3]) break;
        depth++;
    }
    if (grid.thread_rank() == 0) *rounds = depth;
}

template <typename... Args> void launch(void (*kernel)(Args...), int blocks, Args... args) {
    void *list[] = {&args...};
    OK(cudaLaunchCooperativeKernel((void *)kernel, dim3(blocks), dim3(THREADS), list, 0, 0));
    RAN();
}

int main() {
    int fit = 0, sms = 0;
    OK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&fit, scan, THREADS, 0));
    OK(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0));
    const int grid = std::min(fit * sms, 12), count = 10007;
    std::vector<unsigned> values(count), sums(count);
    Random random(79);
    unsigned sum = 0;
    for (int i = 0; i < count; i++) sums[i] = sum += values[i] = random.below(1000);
    Array<unsigned> in(values), out(count), totals(grid);
    for (int round = 0; round < 5; round++) {
        launch(scan, grid, (const unsigned *)in, (unsigned *)out, (unsigned *)totals, count);
        CHECK(out.host() == sums, "scan");
    }
    printf("scan %u\n", sum);

    const int vertices = 5003;
    std::vector<int> level(vertices, -1), queue = {17};
    level[17] = 0;
    for (size_t i = 0; i < queue.size(); i++) {
        int v = queue[i];
        for (int w : {(v * 3 + 1) % vertices, (v * 5 + 7) % vertices, (v + vertices - 1) % vertices})
            if (level[w] < 0) level[w] = level[v] + 1, queue.push_back(w);
    }
    std::vector<int> start(vertices, -1);
    start[17] = 0;
    Array<int> levels_of(start), changed(3), rounds(1);
    changed.clear();
    launch(levels, grid, (int *)levels_of, (int *)changed, vertices, (int *)rounds);
    CHECK(levels_of.host() == level, "levels");
    printf("%d levels %016llx\n", rounds.host()[0], (unsigned long long)check::hash(level));
    return check::pass();
}
