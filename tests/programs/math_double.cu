// needs: plain
// Accuracy of the double functions against long double on the host, within the limits of the CUDA
// programming guide's table (in units in the last place).
#include "check.h"

enum { kinds = 22 };
struct Function {
    const char *name;
    double limit, low, high;
};
const Function functions[kinds] = {
    {"rsqrt", 1, 1e-200, 1e200}, {"cbrt", 1, -1e200, 1e200}, {"exp", 1, -700, 700},      {"exp2", 1, -1000, 1000},
    {"exp10", 1, -300, 300},     {"expm1", 1, -20, 700},     {"log", 1, 1e-200, 1e200},  {"log2", 1, 1e-200, 1e200},
    {"log10", 1, 1e-200, 1e200}, {"log1p", 1, -0.999, 1e50}, {"sin", 2, -1e6, 1e6},      {"cos", 2, -1e6, 1e6},
    {"tan", 2, -1e4, 1e4},       {"asin", 2, -1, 1},         {"acos", 2, -1, 1},         {"atan", 2, -1e9, 1e9},
    {"sinh", 2, -500, 500},      {"cosh", 1, -500, 500},     {"tanh", 1, -20, 20},       {"erf", 2, -5, 5},
    {"erfc", 5, -5, 20},         {"tgamma", 10, 0.1, 100},
};

__global__ void unary(const double *x, double *out, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x, f = blockIdx.y;
    if (i >= count) return;
    double v = x[f * count + i], r = 0;
    switch (f) {
    case 0: r = rsqrt(v); break;
    case 1: r = cbrt(v); break;
    case 2: r = exp(v); break;
    case 3: r = exp2(v); break;
    case 4: r = exp10(v); break;
    case 5: r = expm1(v); break;
    case 6: r = log(v); break;
    case 7: r = log2(v); break;
    case 8: r = log10(v); break;
    case 9: r = log1p(v); break;
    case 10: r = sin(v); break;
    case 11: r = cos(v); break;
    case 12: r = tan(v); break;
    case 13: r = asin(v); break;
    case 14: r = acos(v); break;
    case 15: r = atan(v); break;
    case 16: r = sinh(v); break;
    case 17: r = cosh(v); break;
    case 18: r = tanh(v); break;
    case 19: r = erf(v); break;
    case 20: r = erfc(v); break;
    case 21: r = tgamma(v); break;
    }
    out[f * count + i] = r;
}

long double reference(int f, long double v) {
    switch (f) {
    case 0: return 1 / std::sqrt(v);
    case 1: return std::cbrt(v);
    case 2: return std::exp(v);
    case 3: return std::exp2(v);
    case 4: return std::pow(10.0L, v);
    case 5: return std::expm1(v);
    case 6: return std::log(v);
    case 7: return std::log2(v);
    case 8: return std::log10(v);
    case 9: return std::log1p(v);
    case 10: return std::sin(v);
    case 11: return std::cos(v);
    case 12: return std::tan(v);
    case 13: return std::asin(v);
    case 14: return std::acos(v);
    case 15: return std::atan(v);
    case 16: return std::sinh(v);
    case 17: return std::cosh(v);
    case 18: return std::tanh(v);
    case 19: return std::erf(v);
    case 20: return std::erfc(v);
    default: return std::tgamma(v);
    }
}

int main() {
    const int count = 512;
    Random random(35);
    std::vector<double> x(kinds * count);
    for (int f = 0; f < kinds; f++)
        for (int i = 0; i < count; i++) {
            double even = random.between(functions[f].low, functions[f].high);
            double spread = even * std::pow(2.0, -double(random.below(60)));
            x[f * count + i] = i % 2 && spread >= functions[f].low ? spread : even;
        }
    Array<double> dx(x), out(kinds * count);
    unary<<<dim3(blocks(count, 128), kinds), 128>>>(dx, out, count);
    RAN();
    auto got = out.host();
    for (int f = 0; f < kinds; f++)
        for (int i = 0; i < count; i++) {
            double v = x[f * count + i], g = got[f * count + i];
            long double e = reference(f, v);
            int exponent;
            std::frexp(e, &exponent);
            double off = g == double(e) ? 0 : double(std::fabs(g - e) / std::ldexp(1.0L, std::max(exponent - 53, -1074)));
            CHECK(off <= functions[f].limit + 0.5, "%s(%a) = %a, not %a: %.1f ulp", functions[f].name, v, g, double(e), off);
        }
    printf("%d functions of %d arguments each\n", int(kinds), count);
    return check::pass();
}
