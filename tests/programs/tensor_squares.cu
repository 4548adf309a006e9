// needs: sm_80
// nvcc: -gencode arch=compute_80,code=compute_80
// Products of 16 × 16 matrices by the fragments of nvcuda::wmma: halves, bfloat16, bytes; both layouts, sums
// as halves and as floats, more than one step, fragments filled and scaled. Small whole numbers: all sums
// are exact.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <mma.h>

#include "check.h"

using namespace nvcuda;

template <typename In, typename Sum, typename Left, typename Right>
__global__ void multiply(const In *a, const In *b, Sum *c, int n, bool turned) {
    int row = blockIdx.y * 16, column = blockIdx.x * 16;
    wmma::fragment<wmma::matrix_a, 16, 16, 16, In, Left> left;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, In, Right> right;
    wmma::fragment<wmma::accumulator, 16, 16, 16, Sum> sums;
    wmma::fill_fragment(sums, Sum(1));
    for (int k = 0; k < n; k += 16) {
        wmma::load_matrix_sync(left, std::is_same<Left, wmma::row_major>::value ? a + row * n + k : a + k * n + row, n);
        wmma::load_matrix_sync(right, std::is_same<Right, wmma::row_major>::value ? b + k * n + column : b + column * n + k, n);
        wmma::mma_sync(sums, left, right, sums);
    }
    for (int i = 0; i < sums.num_elements; i++) sums.x[i] = sums.x[i] * Sum(2);
    if (turned) wmma::store_matrix_sync(c + column * n + row, sums, n, wmma::mem_col_major);
    else wmma::store_matrix_sync(c + row * n + column, sums, n, wmma::mem_row_major);
}

template <typename In, typename Sum, typename Left, typename Right> void run(bool turned) {
    const int n = 48;
    auto value = [](int i) { return i * 7 % 5 - 2; };
    std::vector<In> a(n * n), b(n * n);
    for (int i = 0; i < n * n; i++) a[i] = In(float(value(i))), b[i] = In(float(value(i / 3 + 1)));
    Array<In> da(a), db(b);
    Array<Sum> dc(n * n);
    multiply<In, Sum, Left, Right><<<dim3(3, 3), 32>>>(da, db, dc, n, turned);
    RAN();
    auto got = dc.host();
    bool la = std::is_same<Left, wmma::row_major>::value, lb = std::is_same<Right, wmma::row_major>::value;
    for (int r = 0; r < n; r++) {
        for (int c = 0; c < n; c++) {
            int sum = 1;
            for (int k = 0; k < n; k++) {
                int i = la ? r * n + k : k * n + r, j = lb ? k * n + c : c * n + k;
                sum += value(i) * value(j / 3 + 1);
            }
            float one = float(got[turned ? c * n + r : r * n + c]);
            CHECK(one == 2 * sum, "%d, %d: %g, not %d", r, c, one, 2 * sum);
        }
    }
}

int main() {
    run<__half, float, wmma::row_major, wmma::col_major>(false);
    run<__half, float, wmma::col_major, wmma::row_major>(true);
    run<__half, __half, wmma::row_major, wmma::row_major>(false);
    run<__nv_bfloat16, float, wmma::row_major, wmma::col_major>(false);
    run<signed char, int, wmma::row_major, wmma::col_major>(true);
    printf("five kinds of products\n");
    return check::pass();
}
