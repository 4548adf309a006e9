// needs: plain
// Accuracy of the float functions against double on the host, within the limits of the CUDA
// programming guide's table (in units in the last place).
#include "check.h"

enum { one = 26, two = 6 };
struct Function {
    const char *name;
    double limit, low, high;
};
const Function functions[one] = {
    {"sqrtf", 0.5, 0, 1e30},      {"rsqrtf", 2, 1e-30, 1e30}, {"cbrtf", 1, -1e20, 1e20},   {"expf", 2, -87, 88},
    {"exp2f", 2, -126, 127},      {"exp10f", 2, -37, 38},     {"expm1f", 1, -20, 88},      {"logf", 1, 1e-37, 1e37},
    {"log2f", 1, 1e-37, 1e37},    {"log10f", 2, 1e-37, 1e37}, {"log1pf", 1, -0.999, 1e20}, {"sinf", 2, -1e5, 1e5},
    {"cosf", 2, -1e5, 1e5},       {"tanf", 4, -1e4, 1e4},     {"sinpif", 1, -100, 100},    {"cospif", 1, -100, 100},
    {"asinf", 2, -1, 1},          {"acosf", 2, -1, 1},        {"atanf", 2, -1e6, 1e6},     {"sinhf", 3, -80, 80},
    {"coshf", 2, -80, 80},        {"tanhf", 2, -12, 12},      {"erff", 2, -5, 5},          {"erfcf", 4, -5, 9},
    {"tgammaf", 5, 0.1, 30},      {"1/x", 1, 1e-30, 1e30},
};
const char *names[two] = {"powf", "atan2f", "hypotf", "fmodf", "fdividef", "remainderf"};
const double limits[two] = {4, 3, 1, 0, 2, 0};

__global__ void unary(const float *x, float *out, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x, f = blockIdx.y;
    if (i >= count) return;
    float v = x[f * count + i], r = 0;
    switch (f) {
    case 0: r = sqrtf(v); break;
    case 1: r = rsqrtf(v); break;
    case 2: r = cbrtf(v); break;
    case 3: r = expf(v); break;
    case 4: r = exp2f(v); break;
    case 5: r = exp10f(v); break;
    case 6: r = expm1f(v); break;
    case 7: r = logf(v); break;
    case 8: r = log2f(v); break;
    case 9: r = log10f(v); break;
    case 10: r = log1pf(v); break;
    case 11: r = sinf(v); break;
    case 12: r = cosf(v); break;
    case 13: r = tanf(v); break;
    case 14: r = sinpif(v); break;
    case 15: r = cospif(v); break;
    case 16: r = asinf(v); break;
    case 17: r = acosf(v); break;
    case 18: r = atanf(v); break;
    case 19: r = sinhf(v); break;
    case 20: r = coshf(v); break;
    case 21: r = tanhf(v); break;
    case 22: r = erff(v); break;
    case 23: r = erfcf(v); break;
    case 24: r = tgammaf(v); break;
    case 25: r = 1 / v; break;
    }
    out[f * count + i] = r;
}

double reference(int f, double v) {
    switch (f) {
    case 0: return std::sqrt(v);
    case 1: return 1 / std::sqrt(v);
    case 2: return std::cbrt(v);
    case 3: return std::exp(v);
    case 4: return std::exp2(v);
    case 5: return std::pow(10.0, v);
    case 6: return std::expm1(v);
    case 7: return std::log(v);
    case 8: return std::log2(v);
    case 9: return std::log10(v);
    case 10: return std::log1p(v);
    case 11: return std::sin(v);
    case 12: return std::cos(v);
    case 13: return std::tan(v);
    // Reduced exactly first: π times a large argument loses digits even in double.
    case 14: return std::sin(M_PI * std::remainder(v, 2.0));
    case 15: return std::sin(M_PI * (0.5 - std::fabs(std::remainder(v, 2.0))));
    case 16: return std::asin(v);
    case 17: return std::acos(v);
    case 18: return std::atan(v);
    case 19: return std::sinh(v);
    case 20: return std::cosh(v);
    case 21: return std::tanh(v);
    case 22: return std::erf(v);
    case 23: return std::erfc(v);
    case 24: return std::tgamma(v);
    default: return 1 / v;
    }
}

__global__ void binary(const float *x, const float *y, float *out, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    float a = x[i], b = y[i];
    out[i] = powf(fabsf(a), b / 8);
    out[count + i] = atan2f(a, b);
    out[2 * count + i] = hypotf(a, b);
    out[3 * count + i] = fmodf(a, b);
    out[4 * count + i] = __fdividef(a, b);
    out[5 * count + i] = remainderf(a, b);
}

double ulps(float got, double expected) {
    if (std::isnan(expected)) return std::isnan(got) ? 0 : INFINITY;
    if (got == float(expected)) return 0;
    int exponent;
    std::frexp(expected, &exponent);
    return std::fabs(got - expected) / std::ldexp(1.0, std::max(exponent - 24, -149));
}

int main() {
    const int count = 1024;
    Random random(33);
    std::vector<float> x(one * count);
    for (int f = 0; f < one; f++)
        for (int i = 0; i < count; i++) {
            const Function &function = functions[f];
            // Half of them evenly, half spread over the exponents.
            double even = random.between(function.low, function.high);
            double spread = even * std::pow(2.0, -double(random.below(40)));
            x[f * count + i] = float(i % 2 && spread >= function.low ? spread : even);
        }
    Array<float> dx(x), out(one * count);
    unary<<<dim3(blocks(count, 128), one), 128>>>(dx, out, count);
    RAN();
    auto got = out.host();
    for (int f = 0; f < one; f++)
        for (int i = 0; i < count; i++) {
            float v = x[f * count + i], g = got[f * count + i];
            double e = reference(f, v), off = ulps(g, e);
            // Half an ulp of slack for the reference's own rounding and the table's.
            CHECK(off <= functions[f].limit + 0.5, "%s(%a) = %a, not %a: %.1f ulp", functions[f].name, v, g, e, off);
        }
    std::vector<float> a(count), b(count);
    for (int i = 0; i < count; i++) {
        a[i] = float(random.between(-50, 50));
        b[i] = float(random.between(-50, 50));
    }
    Array<float> da(a), db(b), pairs(two * count);
    binary<<<blocks(count, 128), 128>>>(da, db, pairs, count);
    RAN();
    got = pairs.host();
    for (int i = 0; i < count; i++) {
        double u = a[i], v = b[i];
        double expected[two] = {std::pow(std::fabs(u), v / 8), std::atan2(u, v),  std::hypot(u, v),
                                std::fmod(u, v),               u / v,             std::remainder(u, v)};
        for (int k = 0; k < two; k++) {
            float g = got[k * count + i];
            CHECK(ulps(g, expected[k]) <= limits[k] + 0.5, "%s(%a, %a) = %a, not %a", names[k], u, v, g, expected[k]);
        }
    }
    printf("%d functions of %d arguments each\n", one + two, count);
    return check::pass();
}
