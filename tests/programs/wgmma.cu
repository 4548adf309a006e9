// needs: sm_90a wgmma
// nvcc: -std=c++17 -gencode arch=compute_90a,code=compute_90a
// Products of warp groups (wgmma): 64 × 8 of halves, 64 × 16 of bfloat16, the left matrix in registers or in shared memory,
// the right one by its descriptor; several under way in groups. Small whole numbers: all sums are exact.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "check.h"

constexpr int M = 64, K = 64;

// Shared memory in units of 8 rows of 16 bytes: `lead` bytes from one to the next along a row's 16 bytes, `stride` bytes from
// one to the next along rows.
__device__ unsigned long long describe(const void *place, unsigned lead, unsigned stride) {
    unsigned at = unsigned(__cvta_generic_to_shared(place));
    return (unsigned long long)(at >> 4 & 0x3fff) | (unsigned long long)(lead >> 4) << 16 | (unsigned long long)(stride >> 4) << 32;
}

// Copies a matrix of rows of K to such units: all rows of the first 8 columns, then of the next.
template <typename T> __device__ void tile(const T *in, T *out, int rows) {
    for (int i = threadIdx.x; i < rows * K; i += blockDim.x) out[i % K / 8 * rows * 8 + i / K * 8 + i % 8] = in[i];
}

#define ACCUMULATE "wgmma.fence.sync.aligned;"
#define COMMIT "wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;"

__global__ void by_registers(const __half *a, const __half *b, float *c) {
    __shared__ alignas(128) __half right[8 * K];
    tile(b, right, 8);
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    int warp = threadIdx.x / 32, group = threadIdx.x % 32 / 4, in = threadIdx.x % 4, row = warp * 16 + group;
    float s[4] = {1, 2, 3, 4};
    for (int k = 0; k < K; k += 16) {
        unsigned x[4];
        for (int i = 0; i < 4; i++) x[i] = *reinterpret_cast<const unsigned *>(&a[(row + i % 2 * 8) * K + k + i / 2 * 8 + in * 2]);
        asm volatile(ACCUMULATE "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%0, %1, %2, %3}, {%4, %5, %6, %7}, %8, 1, 1, 1, 0;" COMMIT
                     : "+f"(s[0]), "+f"(s[1]), "+f"(s[2]), "+f"(s[3])
                     : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "l"(describe(right + k / 8 * 8 * 8, 128, 128))
                     : "memory");
    }
    for (int i = 0; i < 4; i++) c[(row + i / 2 * 8) * 8 + in * 2 + i % 2] = s[i];
}

__global__ void by_memory(const __nv_bfloat16 *a, const __nv_bfloat16 *b, float *c) {
    __shared__ alignas(128) __nv_bfloat16 left[M * K], right[16 * K];
    tile(a, left, M);
    tile(b, right, 16);
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    int warp = threadIdx.x / 32, group = threadIdx.x % 32 / 4, in = threadIdx.x % 4, row = warp * 16 + group;
    float s[8];
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    for (int k = 0; k < K; k += 16)
        // The first one begins with zeroes.
        asm volatile("{ .reg .pred p; setp.ne.s32 p, %10, 0;\n"
                     "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7}, %8, %9, p, 1, 1, 0, 0; }"
                     : "+f"(s[0]), "+f"(s[1]), "+f"(s[2]), "+f"(s[3]), "+f"(s[4]), "+f"(s[5]), "+f"(s[6]), "+f"(s[7])
                     : "l"(describe(left + k / 8 * M * 8, M * 16, 128)), "l"(describe(right + k / 8 * 16 * 8, 16 * 16, 128)), "r"(k)
                     : "memory");
    asm volatile(COMMIT ::: "memory");
    for (int i = 0; i < 8; i++) c[(row + i / 2 % 2 * 8) * 16 + i / 4 * 8 + in * 2 + i % 2] = s[i];
}

template <typename In> void run(const char *name, void (*kernel)(const In *, const In *, float *), int n, bool start) {
    Random random(n);
    std::vector<In> a(M * K), b(n * K);
    std::vector<int> x(M * K), y(n * K);
    for (int i = 0; i < M * K; i++) a[i] = In(float(x[i] = int(random.below(9)) - 4));
    for (int i = 0; i < n * K; i++) b[i] = In(float(y[i] = int(random.below(9)) - 4));
    Array<In> left(a), right(b);
    Array<float> out(M * n);
    kernel<<<1, 128>>>(left, right, out);
    RAN();
    auto got = out.host();
    for (int r = 0; r < M; r++)
        for (int c = 0; c < n; c++) {
            int sum = start ? 1 + r / 8 % 2 * 2 + c % 2 : 0;
            for (int k = 0; k < K; k++) sum += x[r * K + k] * y[c * K + k];
            CHECK(got[r * n + c] == sum, "%s: %d, %d: %g, not %d", name, r, c, got[r * n + c], sum);
        }
    printf("%s: %016llx\n", name, (unsigned long long)check::hash(got));
}

int main() {
    run<__half>("the left one in registers", by_registers, 8, true);
    run<__nv_bfloat16>("both in shared memory", by_memory, 16, false);
    return check::pass();
}
