// needs: sm_90
// nvcc: -std=c++17 --extended-lambda -gencode arch=compute_90,code=compute_90
// Bulk copies from shared memory that add to what is in global memory, take the lesser or greater, or combine bits; of whole
// numbers of 4 and 8 bytes, of halves; several blocks at the same place.
#include <cuda/ptx>
#include <cuda_fp16.h>

#include "check.h"

namespace ptx = cuda::ptx;

constexpr int COUNT = 256;

template <typename T, typename Op> __global__ void reduce(T *out, Op op) {
    __shared__ alignas(128) T tile[COUNT];
    for (int i = threadIdx.x; i < COUNT; i += blockDim.x) tile[i] = T(int(i * 7 + blockIdx.x * 13) % 101);
    ptx::fence_proxy_async(ptx::space_shared);
    __syncthreads();
    if (threadIdx.x == 0) {
        op(out, tile);
        ptx::cp_async_bulk_commit_group();
        ptx::cp_async_bulk_wait_group(ptx::n32_t<0>());
    }
}

template <typename T> void report(const char *name, const Array<T> &out, T (*of)(T, T), T start) {
    RAN();
    auto got = out.host();
    for (int i = 0; i < COUNT; i++) {
        T expected = start;
        for (int b = 0; b < 5; b++) expected = of(expected, T(int(i * 7 + b * 13) % 101));
        CHECK(got[i] == expected, "%s: element %d", name, i);
    }
    printf("%s\n", name);
}

#define CASE(T, name, op_name, start, of)                                                                                                     \
    {                                                                                                                                          \
        Array<T> out(std::vector<T>(COUNT, T(start)));                                                                                         \
        reduce<T><<<5, 64>>>((T *)out, [] __device__(T * to, T * from) {                                                                       \
            ptx::cp_reduce_async_bulk(ptx::space_global, ptx::space_shared, op_name, to, from, COUNT * sizeof(T));                             \
        });                                                                                                                                    \
        report<T>(name, out, [](T a, T b) { return T(of); }, T(start));                                                                        \
    }

int main() {
    CASE(uint32_t, "sums", ptx::op_add, 1000, a + b);
    CASE(int32_t, "signed sums", ptx::op_add, -200, a + b);
    CASE(uint64_t, "wide sums", ptx::op_add, 1ull << 40, a + b);
    CASE(uint32_t, "the least", ptx::op_min, 50, a < b ? a : b);
    CASE(int32_t, "the greatest", ptx::op_max, 50, a > b ? a : b);
    CASE(int64_t, "the greatest, wide", ptx::op_max, -5, a > b ? a : b);
    CASE(uint32_t, "bits of any", ptx::op_or_op, 128, a | b);
    CASE(uint32_t, "bits of all", ptx::op_and_op, 127, a & b);
    CASE(uint32_t, "bits that differ", ptx::op_xor_op, 3, a ^ b);
    Array<__half> halves(std::vector<__half>(COUNT, __half(1.5f)));
    reduce<__half><<<5, 64>>>((__half *)halves, [] __device__(__half * to, __half * from) {
        ptx::cp_reduce_async_bulk(ptx::space_global, ptx::space_shared, ptx::op_add, to, from, COUNT * sizeof(__half));
    });
    RAN();
    auto got = halves.host();
    for (int i = 0; i < COUNT; i++) {
        float expected = 1.5f;
        for (int b = 0; b < 5; b++) expected += (i * 7 + b * 13) % 101;
        CHECK(float(got[i]) == expected, "halves: %d is %g, not %g", i, float(got[i]), expected);
    }
    printf("sums of halves\n");
    return check::pass();
}
