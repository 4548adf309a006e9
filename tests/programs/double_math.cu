// needs: plain
// Double arithmetic: sums, products, quotients, roots and fused operations are IEEE, bit by bit, in
// every rounding direction, subnormals, infinities and NaN included.
#include <cfenv>

#include "check.h"

const int operations = 17;

__global__ void kernel(const double *x, const double *y, const double *z, double *out, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    double a = x[i], b = y[i], c = z[i];
    double *o = out + i * operations;
    o[0] = __dadd_rn(a, b), o[1] = __dadd_rz(a, b), o[2] = __dadd_ru(a, b), o[3] = __dadd_rd(a, b);
    o[4] = __dmul_rn(a, b), o[5] = __dmul_rz(a, b), o[6] = __dmul_ru(a, b), o[7] = __dmul_rd(a, b);
    o[8] = __ddiv_rn(a, b), o[9] = __ddiv_ru(a, b), o[10] = __dsqrt_rn(fabs(a)), o[11] = __dsqrt_rd(fabs(a));
    o[12] = __fma_rn(a, b, c), o[13] = __fma_rz(a, b, c), o[14] = __fma_rd(a, b, c);
    o[15] = fmin(a, b), o[16] = fmax(a, b);
}

template <class F> double rounded(int mode, F f) {
    fesetround(mode);
    volatile double result = f();
    fesetround(FE_TONEAREST);
    return result;
}

int main() {
    Random random(21);
    std::vector<double> special = {0.0, -0.0, 1.0, -1.5, 1e308, -1e308, 5e-324, 2.2250738585072014e-308, INFINITY, -INFINITY, NAN, 3.0};
    std::vector<double> x, y, z;
    for (double a : special)
        for (double b : special) x.push_back(a), y.push_back(b), z.push_back(special[(x.size() * 7) % special.size()]);
    auto any = [&] {
        uint64_t bits = random.wide();
        double value;
        memcpy(&value, &bits, 8);
        return random.below(2) ? value : random.between(-4, 4);
    };
    for (int i = 0; i < 2000; i++) x.push_back(any()), y.push_back(any()), z.push_back(any());
    int count = int(x.size());
    Array<double> dx(x), dy(y), dz(z), out(count * operations);
    kernel<<<blocks(count, 64), 64>>>(dx, dy, dz, out, count);
    RAN();
    auto got = out.host();
    for (int i = 0; i < count; i++) {
        volatile double a = x[i], b = y[i], c = z[i], m = std::fabs(a);
        auto add = [&] { return a + b; };
        auto multiply = [&] { return a * b; };
        auto divide = [&] { return a / b; };
        auto root = [&] { return std::sqrt(m); };
        auto fused = [&] { return std::fma(a, b, c); };
        double expected[operations] = {
            rounded(FE_TONEAREST, add),      rounded(FE_TOWARDZERO, add),       rounded(FE_UPWARD, add),
            rounded(FE_DOWNWARD, add),       rounded(FE_TONEAREST, multiply),   rounded(FE_TOWARDZERO, multiply),
            rounded(FE_UPWARD, multiply),    rounded(FE_DOWNWARD, multiply),    rounded(FE_TONEAREST, divide),
            rounded(FE_UPWARD, divide),      rounded(FE_TONEAREST, root),       rounded(FE_DOWNWARD, root),
            rounded(FE_TONEAREST, fused),    rounded(FE_TOWARDZERO, fused),     rounded(FE_DOWNWARD, fused),
            std::fmin(double(a), double(b)), std::fmax(double(a), double(b)),
        };
        for (int k = 0; k < operations; k++) {
            double g = got[i * operations + k], e = expected[k];
            bool same = std::isnan(e) ? std::isnan(g) : k >= 15 ? g == e : !memcmp(&g, &e, 8);
            CHECK(same, "operation %d of %a, %a, %a is %a, not %a", k, a, b, c, g, e);
        }
    }
    printf("%d triples, %d operations each\n", count, operations);
    return check::pass();
}
