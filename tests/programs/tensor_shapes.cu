// needs: sm_80
// nvcc: -gencode arch=compute_80,code=compute_80
// Products by the fragments of nvcuda::wmma that are no squares, or of other numbers: 32 × 8 and 8 × 32 of halves,
// bfloat16 and bytes, 8 × 8 of doubles, of integers of 4 bits and of single bits. Small whole numbers: all sums are exact.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <mma.h>

#include "check.h"

using namespace nvcuda;
namespace small = wmma::experimental;

template <int M, int N, int K, typename In, typename Sum, typename Left, typename Right>
__global__ void multiply(const In *a, const In *b, Sum *c) {
    wmma::fragment<wmma::matrix_a, M, N, K, In, Left> left;
    wmma::fragment<wmma::matrix_b, M, N, K, In, Right> right;
    wmma::fragment<wmma::accumulator, M, N, K, Sum> sums;
    wmma::load_matrix_sync(left, a, std::is_same<Left, wmma::row_major>::value ? K : M);
    wmma::load_matrix_sync(right, b, std::is_same<Right, wmma::row_major>::value ? N : K);
    wmma::load_matrix_sync(sums, c, N, wmma::mem_row_major);
    wmma::mma_sync(sums, left, right, sums);
    wmma::store_matrix_sync(c, sums, N, wmma::mem_row_major);
}

static int value(int i) { return i * 7 % 5 - 2; }

template <int M, int N, int K, typename In, typename Sum, typename Left, typename Right> void run(const char *name) {
    bool by_rows = std::is_same<Left, wmma::row_major>::value, right_by_rows = std::is_same<Right, wmma::row_major>::value;
    std::vector<In> a(M * K), b(K * N);
    std::vector<Sum> c(M * N);
    for (int i = 0; i < M * K; i++) a[i] = In(float(value(i)));
    for (int i = 0; i < K * N; i++) b[i] = In(float(value(i / 3 + 1)));
    for (int i = 0; i < M * N; i++) c[i] = Sum(float(i % 9));
    Array<In> da(a), db(b);
    Array<Sum> dc(c);
    multiply<M, N, K, In, Sum, Left, Right><<<1, 32>>>(da, db, dc);
    RAN();
    auto got = dc.host();
    for (int r = 0; r < M; r++) {
        for (int n = 0; n < N; n++) {
            int sum = (r * N + n) % 9;
            for (int k = 0; k < K; k++)
                sum += value(by_rows ? r * K + k : k * M + r) * value((right_by_rows ? k * N + n : n * K + k) / 3 + 1);
            CHECK(float(got[r * N + n]) == sum, "%s: %d, %d: %g, not %d", name, r, n, float(got[r * N + n]), sum);
        }
    }
    printf("%s\n", name);
}

// Numbers of `BITS` bits, many in a word.
template <typename In, int K, typename Multiply> __global__ void multiply_small(const unsigned *a, const unsigned *b, int *c, Multiply by) {
    wmma::fragment<wmma::matrix_a, 8, 8, K, In, wmma::row_major> left;
    wmma::fragment<wmma::matrix_b, 8, 8, K, In, wmma::col_major> right;
    wmma::fragment<wmma::accumulator, 8, 8, K, int> sums;
    wmma::load_matrix_sync(left, a, K);
    wmma::load_matrix_sync(right, b, K);
    wmma::fill_fragment(sums, 5);
    by(sums, left, right);
    wmma::store_matrix_sync(c, sums, 8, wmma::mem_row_major);
}

struct Product {
    template <typename Sums, typename Left, typename Right> __device__ void operator()(Sums &sums, Left &left, Right &right) {
        wmma::mma_sync(sums, left, right, sums);
    }
};
struct Differ {
    template <typename Sums, typename Left, typename Right> __device__ void operator()(Sums &sums, Left &left, Right &right) {
        wmma::bmma_sync(sums, left, right, sums, small::bmmaBitOpXOR);
    }
};
struct Both {
    template <typename Sums, typename Left, typename Right> __device__ void operator()(Sums &sums, Left &left, Right &right) {
        wmma::bmma_sync(sums, left, right, sums, small::bmmaBitOpAND);
    }
};

template <typename In, int K, typename Multiply, typename Of> void run_small(const char *name, int bits, bool sign, Multiply by, Of of) {
    Random random(K + bits);
    std::vector<unsigned> a(8 * K * bits / 32), b(a.size());
    for (auto &word : a) word = random.bits();
    for (auto &word : b) word = random.bits();
    Array<unsigned> da(a), db(b);
    Array<int> dc(64);
    multiply_small<In, K><<<1, 32>>>(da, db, dc, by);
    RAN();
    auto got = dc.host();
    auto element = [&](const std::vector<unsigned> &from, int i) {
        int shift = i * bits % 32, word = int(from[i * bits / 32] >> shift & ((1u << bits) - 1));
        return sign && word >> (bits - 1) ? word - (1 << bits) : word;
    };
    for (int r = 0; r < 8; r++) {
        for (int n = 0; n < 8; n++) {
            int sum = 5;
            for (int k = 0; k < K; k++) sum += of(element(a, r * K + k), element(b, n * K + k));
            CHECK(got[r * 8 + n] == sum, "%s: %d, %d: %d, not %d", name, r, n, got[r * 8 + n], sum);
        }
    }
    printf("%s\n", name);
}

int main() {
    using Row = wmma::row_major;
    using Col = wmma::col_major;
    run<32, 8, 16, __half, float, Row, Col>("32 by 8 of halves");
    run<32, 8, 16, __half, __half, Col, Row>("32 by 8 of halves, sums too");
    run<32, 8, 16, __nv_bfloat16, float, Row, Row>("32 by 8 of bfloat16");
    run<32, 8, 16, signed char, int, Row, Col>("32 by 8 of bytes");
    run<8, 32, 16, __half, float, Col, Col>("8 by 32 of halves");
    run<8, 32, 16, __half, __half, Row, Row>("8 by 32 of halves, sums too");
    run<8, 32, 16, __nv_bfloat16, float, Row, Col>("8 by 32 of bfloat16");
    run<8, 32, 16, signed char, int, Col, Row>("8 by 32 of bytes");
    run<8, 8, 4, double, double, Row, Col>("8 by 8 of doubles");
    run<8, 8, 4, double, double, Col, Row>("8 by 8 of doubles, turned");
    auto times = [](int a, int b) { return a * b; };
    run_small<small::precision::s4, 32>("signed numbers of 4 bits", 4, true, Product(), times);
    run_small<small::precision::u4, 32>("numbers of 4 bits", 4, false, Product(), times);
    run_small<small::precision::b1, 128>("bits that differ", 1, false, Differ(), [](int a, int b) { return a ^ b; });
    run_small<small::precision::b1, 128>("bits that both have", 1, false, Both(), [](int a, int b) { return a & b; });
    return check::pass();
}
