// needs: plain
// Products of tensor cores whose sums come as halves and go as floats, and the other way round.
#include <mma.h>

#include "check.h"

using namespace nvcuda;

template <class To, class From> __global__ void product(const half *a, const half *b, const From *c, To *d) {
    wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> left;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::col_major> right;
    wmma::fragment<wmma::accumulator, 16, 16, 16, From> from;
    wmma::fragment<wmma::accumulator, 16, 16, 16, To> to;
    wmma::load_matrix_sync(left, a, 16);
    wmma::load_matrix_sync(right, b, 16);
    wmma::load_matrix_sync(from, c, 16, wmma::mem_row_major);
    wmma::mma_sync(to, left, right, from);
    wmma::store_matrix_sync(d, to, 16, wmma::mem_row_major);
}

template <class To, class From> double run() {
    std::vector<half> a(256), b(256);
    std::vector<From> c(256);
    std::vector<double> model(256);
    for (int i = 0; i < 256; i++) {
        a[i] = half(float(i * 7 % 11 - 5));
        b[i] = half(float(i * 3 % 13 - 6) / 4);
        c[i] = From(float(i % 29) / 8);
    }
    for (int i = 0; i < 256; i++) {
        model[i] = double(float(c[i]));
        for (int k = 0; k < 16; k++) model[i] += double(float(a[i / 16 * 16 + k])) * float(b[i % 16 * 16 + k]);
    }
    Array<half> left(a), right(b);
    Array<From> from(c);
    Array<To> to(256);
    product<To, From><<<1, 32>>>(left, right, from, to);
    RAN();
    auto got = to.host();
    double all = 0;
    for (int i = 0; i < 256; i++) {
        // Small numbers of eighths, which both types hold.
        CHECK(double(float(got[i])) == model[i], "element %d: %f, not %f", i, double(float(got[i])), model[i]);
        all += double(float(got[i])) * (i + 1);
    }
    return all;
}

int main() {
    printf("%.3f\n", run<float, half>());
    printf("%.3f\n", run<half, float>());
    printf("%.3f\n", run<half, half>());
    printf("%.3f\n", run<float, float>());
    printf("PASS\n");
}
