// needs: sm_80
// nvcc: -std=c++17 -gencode arch=compute_80,code=compute_80
// cuda::pipeline: all threads bring and use their stages; producers and consumers of one block; a thread's own; and
// memcpy_async of a group with an alignment that is promised.
#include <cooperative_groups.h>
#include <cuda/pipeline>

#include "check.h"

namespace cg = cooperative_groups;

constexpr int STAGES = 3, WIDTH = 128;

__global__ void unified(const int *in, int *out, int batches) {
    __shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, STAGES> state;
    __shared__ alignas(16) int stage[STAGES][WIDTH];
    auto block = cg::this_thread_block();
    auto pipeline = cuda::make_pipeline(block, &state);
    int sum = 0, next = 0;
    for (int batch = 0; batch < batches; batch++) {
        for (; next < batches && next < batch + STAGES; next++) {
            pipeline.producer_acquire();
            cuda::memcpy_async(block, stage[next % STAGES], in + (blockIdx.x * batches + next) * WIDTH,
                               cuda::aligned_size_t<16>(sizeof stage[0]), pipeline);
            pipeline.producer_commit();
        }
        pipeline.consumer_wait();
        sum = sum * 3 + stage[batch % STAGES][(block.thread_rank() + batch) % WIDTH];
        pipeline.consumer_release();
    }
    out[blockIdx.x * WIDTH + block.thread_rank()] = sum;
}

// Warp 0 produces, the others consume.
__global__ void roles(const int *in, int *out, int batches) {
    __shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, STAGES> state;
    __shared__ alignas(16) int stage[STAGES][WIDTH];
    auto block = cg::this_thread_block();
    bool producer = block.thread_rank() < 32;
    auto pipeline = cuda::make_pipeline(block, &state, producer ? cuda::pipeline_role::producer : cuda::pipeline_role::consumer);
    int t = int(block.thread_rank()) - 32;
    if (producer) {
        for (int batch = 0; batch < batches; batch++) {
            pipeline.producer_acquire();
            for (int i = threadIdx.x * 4; i < WIDTH; i += 128)
                cuda::memcpy_async(&stage[batch % STAGES][i], &in[batch * WIDTH + i], cuda::aligned_size_t<16>(16), pipeline);
            pipeline.producer_commit();
        }
    } else {
        int sum = 0;
        for (int batch = 0; batch < batches; batch++) {
            pipeline.consumer_wait();
            sum = sum * 5 + stage[batch % STAGES][WIDTH - 1 - t];
            pipeline.consumer_release();
        }
        out[t] = sum;
    }
    pipeline.quit();
}

__global__ void own(const int *in, int *out, int batches) {
    __shared__ int stage[2][WIDTH];
    auto pipeline = cuda::make_pipeline();
    int t = threadIdx.x, sum = 0;
    pipeline.producer_acquire();
    cuda::memcpy_async(&stage[0][t], &in[t], 4, pipeline);
    pipeline.producer_commit();
    for (int batch = 0; batch < batches; batch++) {
        if (batch + 1 < batches) {
            pipeline.producer_acquire();
            cuda::memcpy_async(&stage[(batch + 1) % 2][t], &in[(batch + 1) * WIDTH + t], 4, pipeline);
            pipeline.producer_commit();
            cuda::pipeline_consumer_wait_prior<1>(pipeline);
        } else {
            cuda::pipeline_consumer_wait_prior<0>(pipeline);
        }
        sum = sum * 7 + stage[batch % 2][t];
        pipeline.consumer_release();
    }
    out[t] = sum;
}

int main() {
    const int batches = 20, grid = 4;
    Random random(4);
    std::vector<int> values(grid * batches * WIDTH);
    for (int &value : values) value = int(random.below(1000));
    Array<int> in(values), out(grid * WIDTH);
    unified<<<grid, WIDTH>>>(in, out, batches);
    RAN();
    auto got = out.host();
    for (int i = 0; i < grid * WIDTH; i++) {
        unsigned sum = 0;
        for (int batch = 0; batch < batches; batch++) sum = sum * 3 + values[(i / WIDTH * batches + batch) * WIDTH + (i + batch) % WIDTH];
        CHECK(unsigned(got[i]) == sum, "unified %d: %d, not %d", i, got[i], int(sum));
    }
    printf("unified: %016llx\n", (unsigned long long)check::hash(got));
    for (int kind = 0; kind < 2; kind++) {
        if (kind)
            own<<<1, WIDTH>>>(in, out, batches);
        else
            roles<<<1, WIDTH + 32>>>(in, out, batches);
        RAN();
        got = out.host();
        for (int i = 0; i < WIDTH; i++) {
            unsigned sum = 0;
            for (int batch = 0; batch < batches; batch++) sum = sum * (kind ? 7 : 5) + values[batch * WIDTH + (kind ? i : WIDTH - 1 - i)];
            CHECK(unsigned(got[i]) == sum, "kind %d, %d: %d, not %d", kind, i, got[i], int(sum));
        }
        printf("%s: %016llx\n", kind ? "a thread's own" : "roles", (unsigned long long)check::hash(got.data(), WIDTH * 4));
    }
    return check::pass();
}
