// needs: sm_90
// nvcc: -std=c++17 -gencode arch=compute_90,code=compute_90
// A product of matrices that is fed by tensor copies: one thread brings boxes of both, swizzled by 128 bytes, into a ring of
// three stages; barriers count their bytes; four warps read them back by ldmatrix at the swizzled places. Small whole
// numbers: all sums are exact.
#include "driver.h"

#include <cuda/barrier>
#include <cuda/ptx>
#include <cuda_fp16.h>

namespace ptx = cuda::ptx;
using Barrier = cuda::barrier<cuda::thread_scope_block>;

constexpr int M = 128, N = 128, K = 320, TILE = 64, STEP = 64, STAGES = 3;

// Where an element of a row of 128 bytes lies that was swizzled: units of 16 bytes by the row's number.
__device__ unsigned swizzled(const __half *tile, int row, int column) {
    return unsigned(__cvta_generic_to_shared(tile)) + row * 128 + ((column / 8 ^ row % 8) * 16) + column % 8 * 2;
}

__global__ void multiply(const __grid_constant__ CUtensorMap a, const __grid_constant__ CUtensorMap b, float *c) {
    extern __shared__ char memory[];
    // Tiles are swizzled by their addresses.
    __half *tiles = reinterpret_cast<__half *>((reinterpret_cast<uintptr_t>(memory) + 1023) / 1024 * 1024);
    __shared__ Barrier full[STAGES], empty[STAGES];
    int t = threadIdx.x, warp = t / 32, lane = t % 32;
    int row = blockIdx.y * TILE, column = blockIdx.x * TILE;
    if (t == 0) {
        for (int s = 0; s < STAGES; s++) {
            init(&full[s], 1);
            init(&empty[s], 128);
        }
        ptx::fence_proxy_async(ptx::space_shared);
    }
    __syncthreads();
    if (t >= 128) {
        if (t > 128) return;
        for (int step = 0; step < K / STEP; step++) {
            int s = step % STAGES;
            if (step >= STAGES) empty[s].wait_parity((step / STAGES - 1) % 2);
            auto *barrier = cuda::device::barrier_native_handle(full[s]);
            ptx::mbarrier_arrive_expect_tx(ptx::sem_release, ptx::scope_cta, ptx::space_shared, barrier, 2 * TILE * STEP * sizeof(__half));
            int left[2] = {step * STEP, row}, right[2] = {step * STEP, column};
            ptx::cp_async_bulk_tensor(ptx::space_cluster, ptx::space_global, tiles + s * 2 * TILE * STEP, &a, left, barrier);
            ptx::cp_async_bulk_tensor(ptx::space_cluster, ptx::space_global, tiles + (s * 2 + 1) * TILE * STEP, &b, right, barrier);
        }
        return;
    }
    float sums[8][4] = {};
    for (int step = 0; step < K / STEP; step++) {
        int s = step % STAGES;
        full[s].wait_parity(step / STAGES % 2);
        const __half *left = tiles + s * 2 * TILE * STEP, *right = left + TILE * STEP;
        for (int k = 0; k < STEP; k += 16) {
            unsigned x[4];
            asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                         : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                         : "r"(swizzled(left, warp * 16 + lane % 16, k + lane / 16 * 8)));
            for (int h = 0; h < 8; h++) {
                // The right matrix lies by columns.
                unsigned y[2];
                asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                             : "=r"(y[0]), "=r"(y[1])
                             : "r"(swizzled(right, h * 8 + lane % 8, k + lane / 8 % 2 * 8)));
                asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                             : "+f"(sums[h][0]), "+f"(sums[h][1]), "+f"(sums[h][2]), "+f"(sums[h][3])
                             : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(y[0]), "r"(y[1]));
            }
        }
        (void)empty[s].arrive();
    }
    for (int h = 0; h < 8; h++)
        for (int i = 0; i < 4; i++)
            c[(row + warp * 16 + lane / 4 + i / 2 * 8) * N + column + h * 8 + lane % 4 * 2 + i % 2] = sums[h][i];
}

static CUtensorMap map_of(const Array<__half> &matrix, int rows) {
    alignas(64) CUtensorMap map;
    cuuint64_t dims[2] = {K, cuuint64_t(rows)}, strides[1] = {K * sizeof(__half)};
    cuuint32_t box[2] = {STEP, TILE}, steps[2] = {1, 1};
    CU(cuTensorMapEncodeTiled, &map, CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 2, (__half *)matrix, dims, strides, box, steps,
       CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return map;
}

int main() {
    Random random(6);
    std::vector<__half> a(M * K), b(N * K);
    std::vector<int> x(M * K), y(N * K);
    for (int i = 0; i < M * K; i++) a[i] = __half(float(x[i] = int(random.below(9)) - 4));
    for (int i = 0; i < N * K; i++) b[i] = __half(float(y[i] = int(random.below(9)) - 4));
    Array<__half> left(a), right(b);
    Array<float> product(M * N);
    const int bytes = STAGES * 2 * TILE * STEP * int(sizeof(__half)) + 1024;
    OK(cudaFuncSetAttribute(multiply, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
    multiply<<<dim3(N / TILE, M / TILE), 160, bytes>>>(map_of(left, M), map_of(right, N), product);
    RAN();
    auto got = product.host();
    for (int r = 0; r < M; r++)
        for (int n = 0; n < N; n++) {
            int sum = 0;
            for (int k = 0; k < K; k++) sum += x[r * K + k] * y[n * K + k];
            CHECK(got[r * N + n] == sum, "%d, %d: %g, not %d", r, n, got[r * N + n], sum);
        }
    printf("%d by %d by %d: %016llx\n", M, N, K, (unsigned long long)check::hash(got));
    return check::pass();
}
