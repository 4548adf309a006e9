// needs: sm_90
// nvcc: -std=c++17 -gencode arch=compute_90,code=compute_90
// Barriers in shared memory as the C++ library has them: phases, split arrivals, threads that leave, copies
// that a barrier counts, one warp that feeds the others through a ring, and bulk copies with their bytes.
#include "check.h"

#include <cooperative_groups.h>
#include <cooperative_groups/memcpy_async.h>
#include <cuda/barrier>
#include <cuda/ptx>

namespace cg = cooperative_groups;
using Barrier = cuda::barrier<cuda::thread_scope_block>;

constexpr int THREADS = 256;

// Each round every thread reads what another wrote in the round before.
__global__ void rounds(unsigned *out, int count) {
    __shared__ Barrier barrier;
    __shared__ unsigned values[2][THREADS];
    unsigned t = threadIdx.x;
    if (t == 0) init(&barrier, THREADS);
    __syncthreads();
    unsigned value = t;
    for (int round = 0; round < count; round++) {
        values[round % 2][t] = value;
        auto token = barrier.arrive();
        unsigned own = value * 3;
        barrier.wait(std::move(token));
        value = own + values[round % 2][(t * 7 + round) % THREADS];
    }
    out[t] = value;
}

// Half of the threads leave for good after the first phase.
__global__ void leaving(unsigned *out) {
    __shared__ Barrier barrier;
    __shared__ unsigned sum;
    unsigned t = threadIdx.x;
    if (t == 0) {
        init(&barrier, THREADS);
        sum = 0;
    }
    __syncthreads();
    atomicAdd(&sum, t);
    if (t % 2) {
        barrier.arrive_and_drop();
        return;
    }
    barrier.arrive_and_wait();
    unsigned first = sum;
    barrier.arrive_and_wait();
    atomicAdd(&sum, 1);
    barrier.arrive_and_wait();
    out[t / 2] = first * 1000 + (sum - first);
}

// Warp 0 brings rows of the input, the others add them up.
__global__ void ring(const float *in, float *out, int rows) {
    constexpr int STAGES = 3, WIDTH = 128;
    __shared__ float stage[STAGES][WIDTH];
    __shared__ Barrier full[STAGES], empty[STAGES];
    unsigned t = threadIdx.x;
    if (t == 0)
        for (int s = 0; s < STAGES; s++) {
            init(&full[s], 32);
            init(&empty[s], WIDTH);
        }
    __syncthreads();
    if (t < 32) {
        for (int row = 0; row < rows; row++) {
            int s = row % STAGES;
            if (row >= STAGES) empty[s].wait_parity((row / STAGES - 1) % 2);
            for (int i = 0; i < WIDTH / 32; i++)
                cuda::memcpy_async(&stage[s][t + 32 * i], &in[row * WIDTH + t + 32 * i], sizeof(float), full[s]);
            (void)full[s].arrive();
        }
    } else {
        float sum = 0;
        for (int row = 0; row < rows; row++) {
            int s = row % STAGES;
            full[s].wait_parity(row / STAGES % 2);
            sum += stage[s][t - 32];
            (void)empty[s].arrive();
        }
        out[t - 32] = sum;
    }
}

// A block's tile comes and goes in bulk.
__global__ void bulk(const int *in, int *out) {
    __shared__ alignas(128) int tile[1024];
    __shared__ Barrier barrier;
    unsigned t = threadIdx.x;
    if (t == 0) {
        init(&barrier, THREADS);
        cuda::ptx::fence_proxy_async(cuda::ptx::space_shared);
    }
    __syncthreads();
    Barrier::arrival_token token;
    if (t == 0) {
        cuda::device::memcpy_async_tx(tile, in + blockIdx.x * 1024, cuda::aligned_size_t<16>(sizeof tile), barrier);
        token = cuda::device::barrier_arrive_tx(barrier, 1, sizeof tile);
    } else {
        token = barrier.arrive();
    }
    barrier.wait(std::move(token));
    for (int i = t; i < 1024; i += THREADS) tile[i] = tile[i] * 2 + 1;
    cuda::ptx::fence_proxy_async(cuda::ptx::space_shared);
    __syncthreads();
    if (t == 0) {
        cuda::ptx::cp_async_bulk(cuda::ptx::space_global, cuda::ptx::space_shared, out + blockIdx.x * 1024, tile, sizeof tile);
        cuda::ptx::cp_async_bulk_commit_group();
        cuda::ptx::cp_async_bulk_wait_group_read(cuda::ptx::n32_t<0>());
    }
}

// The group's copy, which uses what the device has for it.
__global__ void group_copy(const int *in, int *out, int count) {
    extern __shared__ int tile[];
    auto block = cg::this_thread_block();
    cg::memcpy_async(block, tile, in, sizeof(int) * count);
    cg::wait(block);
    for (int i = block.thread_rank(); i < count; i += block.size()) out[i] = tile[count - 1 - i];
}

int main() {
    Array<unsigned> words(THREADS);
    rounds<<<1, THREADS>>>(words, 50);
    RAN();
    std::vector<unsigned> value(THREADS), before(THREADS);
    for (int t = 0; t < THREADS; t++) value[t] = t;
    for (int round = 0; round < 50; round++) {
        before = value;
        for (int t = 0; t < THREADS; t++) value[t] = before[t] * 3 + before[(t * 7 + round) % THREADS];
    }
    CHECK(words.host() == value, "rounds");

    leaving<<<1, THREADS>>>(words);
    RAN();
    auto left = words.host();
    for (int t = 0; t < THREADS / 2; t++) CHECK(left[t] == 32640u * 1000 + 128, "leaving: %d has %u", t, left[t]);

    constexpr int ROWS = 100;
    std::vector<float> rows(ROWS * 128), sums(128, 0);
    for (int i = 0; i < ROWS * 128; i++) rows[i] = i % 37 - 18, sums[i % 128] += rows[i];
    Array<float> input(rows), total(128);
    ring<<<1, 160>>>(input, total, ROWS);
    RAN();
    CHECK(total.host() == sums, "ring");

    std::vector<int> numbers(8192);
    for (int i = 0; i < 8192; i++) numbers[i] = i * i - 5;
    Array<int> from(numbers), to(8192);
    bulk<<<8, THREADS>>>(from, to);
    RAN();
    auto moved = to.host();
    for (int i = 0; i < 8192; i++) CHECK(moved[i] == numbers[i] * 2 + 1, "bulk: %d is %d", i, moved[i]);

    for (int count : {1, 4, 1000, 2048}) {
        group_copy<<<1, 96, sizeof(int) * count>>>(from, to, count);
        RAN();
        moved = to.host();
        for (int i = 0; i < count; i++)
            CHECK(moved[i] == numbers[count - 1 - i], "group copy of %d: %d is %d", count, i, moved[i]);
    }
    printf("barriers\n");
    return check::pass();
}
