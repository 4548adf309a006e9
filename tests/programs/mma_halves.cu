// needs: sm_80
// nvcc: -gencode arch=compute_80,code=compute_80
// A product of matrices of halves as libraries write it: tiles by cp.async in two stages, fragments by ldmatrix
// (the right one turned), m16n8k16 with sums as floats. Small whole numbers: all sums are exact.
#include <cuda_fp16.h>
#include <cuda_pipeline.h>

#include "check.h"

constexpr int M = 96, N = 64, K = 160, TILE = 32, STEP = 16;

__device__ unsigned shared_address(const void *p) { return unsigned(__cvta_generic_to_shared(p)); }

// A block of four warps makes a tile of 32 × 32; a warp of it 16 × 16.
__global__ void multiply(const __half *a, const __half *b, float *c) {
    __shared__ alignas(16) __half left[2][TILE][STEP], right[2][STEP][TILE];
    int t = threadIdx.x, warp = t / 32, lane = t % 32;
    int row = blockIdx.y * TILE, column = blockIdx.x * TILE, r = warp / 2 * 16, n = warp % 2 * 16;
    auto fetch = [&](int stage, int k) {
        // 64 threads bring 16 bytes each of the left, 64 of the right.
        if (t < 64)
            __pipeline_memcpy_async(&left[stage][t / 2][t % 2 * 8], &a[(row + t / 2) * K + k + t % 2 * 8], 16);
        else
            __pipeline_memcpy_async(&right[stage][(t - 64) / 4][t % 4 * 8], &b[(k + (t - 64) / 4) * N + column + t % 4 * 8], 16);
        __pipeline_commit();
    };
    float sums[2][4] = {};
    fetch(0, 0);
    for (int k = 0; k < K; k += STEP) {
        int stage = k / STEP % 2;
        if (k + STEP < K) {
            fetch(1 - stage, k + STEP);
            __pipeline_wait_prior(1);
        } else {
            __pipeline_wait_prior(0);
        }
        __syncthreads();
        unsigned x[4], y[4];
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                     : "r"(shared_address(&left[stage][r + lane % 16][lane / 16 * 8])));
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(y[0]), "=r"(y[1]), "=r"(y[2]), "=r"(y[3])
                     : "r"(shared_address(&right[stage][lane % 16][n + lane / 16 * 8])));
        for (int h = 0; h < 2; h++)
            asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                         : "+f"(sums[h][0]), "+f"(sums[h][1]), "+f"(sums[h][2]), "+f"(sums[h][3])
                         : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(y[h * 2]), "r"(y[h * 2 + 1]));
        __syncthreads();
    }
    for (int h = 0; h < 2; h++)
        for (int i = 0; i < 4; i++) c[(row + r + lane / 4 + i / 2 * 8) * N + column + n + h * 8 + lane % 4 * 2 + i % 2] = sums[h][i];
}

int main() {
    Random random(3);
    std::vector<__half> a(M * K), b(K * N);
    std::vector<int> ai(M * K), bi(K * N);
    for (int i = 0; i < M * K; i++) a[i] = __half(float(ai[i] = int(random.below(17)) - 8));
    for (int i = 0; i < K * N; i++) b[i] = __half(float(bi[i] = int(random.below(17)) - 8));
    Array<__half> left(a), right(b);
    Array<float> product(M * N);
    multiply<<<dim3(N / TILE, M / TILE), 128>>>(left, right, product);
    RAN();
    auto got = product.host();
    for (int r = 0; r < M; r++)
        for (int n = 0; n < N; n++) {
            int sum = 0;
            for (int k = 0; k < K; k++) sum += ai[r * K + k] * bi[k * N + n];
            CHECK(got[r * N + n] == sum, "%d, %d: %g, not %d", r, n, got[r * N + n], sum);
        }
    printf("%d by %d: %016llx\n", M, N, (unsigned long long)check::hash(got));
    return check::pass();
}
