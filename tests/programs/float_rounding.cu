// needs: plain
// Float arithmetic in every rounding direction against the host's, and conversions between float,
// double and integers with each rounding, saturation and NaN as CUDA defines them.
#include <cfenv>

#include "check.h"

const int operations = 12, conversions = 16;

__global__ void arithmetic(const float *x, const float *y, float *out, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    float a = x[i], b = y[i], *o = out + i * operations;
    o[0] = __fadd_rn(a, b), o[1] = __fadd_rz(a, b), o[2] = __fadd_ru(a, b), o[3] = __fadd_rd(a, b);
    o[4] = __fmul_rn(a, b), o[5] = __fmul_rz(a, b), o[6] = __fdiv_rn(a, b), o[7] = __fdiv_rd(a, b);
    o[8] = __fsqrt_rn(fabsf(a)), o[9] = __fsqrt_ru(fabsf(a)), o[10] = __fmaf_rn(a, b, a), o[11] = __fmaf_ru(a, b, b);
}

__global__ void convert(const double *x, long long *out, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    double d = x[i];
    float f = float(d);
    long long *o = out + i * conversions;
    o[0] = __float2int_rn(f), o[1] = __float2int_rz(f), o[2] = __float2int_ru(f), o[3] = __float2int_rd(f);
    o[4] = __float2uint_rn(f), o[5] = __float2ll_rz(f), o[6] = (long long)__float2ull_rd(f);
    o[7] = __double2int_rn(d), o[8] = __double2ll_ru(d), o[9] = __double2uint_rd(d);
    o[10] = __float_as_int(__double2float_rz(d)), o[11] = __float_as_int(__double2float_ru(d));
    o[12] = __float_as_int(__int2float_rd(__double2int_rz(d * 16777.3)));
    o[13] = __double_as_longlong(__ll2double_ru(__double2ll_rz(d * 1e12)));
    o[14] = __float_as_int(truncf(f)), o[15] = __float_as_int(rintf(f));
}

template <class F> auto rounded(int mode, F f) {
    fesetround(mode);
    volatile auto result = f();
    fesetround(FE_TONEAREST);
    return result;
}

// A rounded value as an integer type: clamped. NaN is 0 where a float becomes 32 bits wide, else
// just the highest bit.
template <class T, class From = double> long long clamp(From value) {
    if (std::isnan(value)) return sizeof(T) == 4 && sizeof(From) == 4 ? 0 : (long long)(T(T(1) << (sizeof(T) * 8 - 1)));
    if (value <= double(std::is_signed<T>::value ? (sizeof(T) == 8 ? -9223372036854775808.0 : -2147483648.0) : 0))
        return std::is_signed<T>::value ? (long long)(sizeof(T) == 8 ? INT64_MIN : INT32_MIN) : 0;
    double limit = std::ldexp(1.0, sizeof(T) * 8 - std::is_signed<T>::value);
    if (value >= limit) return (long long)(std::is_signed<T>::value ? uint64_t(limit) - 1 : sizeof(T) == 8 ? ~0ull : 0xffffffffull);
    return (long long)T(value);
}

int bits(float f) {
    int i;
    memcpy(&i, &f, 4);
    return i;
}
long long bits(double d) {
    long long i;
    memcpy(&i, &d, 8);
    return i;
}

int main() {
    Random random(23);
    std::vector<float> special = {0.0f, -0.0f, 1.0f, 3.0f, -7.5f, 3.4e38f, -3.4e38f, 1e-45f, 1.1754944e-38f, INFINITY, -INFINITY, NAN};
    std::vector<float> x, y;
    for (float a : special)
        for (float b : special) x.push_back(a), y.push_back(b);
    for (int i = 0; i < 3000; i++)
        for (auto *list : {&x, &y}) {
            unsigned word = random.bits();
            float value;
            memcpy(&value, &word, 4);
            list->push_back(random.below(2) ? value : float(random.between(-3, 3)));
        }
    int count = int(x.size());
    Array<float> dx(x), dy(y), out(count * operations);
    arithmetic<<<blocks(count, 128), 128>>>(dx, dy, out, count);
    RAN();
    auto got = out.host();
    for (int i = 0; i < count; i++) {
        volatile float a = x[i], b = y[i], m = std::fabs(a);
        auto add = [&] { return float(a + b); };
        auto multiply = [&] { return float(a * b); };
        auto divide = [&] { return float(a / b); };
        auto root = [&] { return float(std::sqrt(float(m))); };
        float expected[operations] = {
            rounded(FE_TONEAREST, add),   rounded(FE_TOWARDZERO, add),      rounded(FE_UPWARD, add),
            rounded(FE_DOWNWARD, add),    rounded(FE_TONEAREST, multiply),  rounded(FE_TOWARDZERO, multiply),
            rounded(FE_TONEAREST, divide), rounded(FE_DOWNWARD, divide),    rounded(FE_TONEAREST, root),
            rounded(FE_UPWARD, root),     rounded(FE_TONEAREST, [&] { return std::fma(float(a), float(b), float(a)); }),
            rounded(FE_UPWARD, [&] { return std::fma(float(a), float(b), float(b)); }),
        };
        for (int k = 0; k < operations; k++) {
            float g = got[i * operations + k], e = expected[k];
            CHECK(std::isnan(e) ? std::isnan(g) : bits(g) == bits(e), "operation %d of %a and %a is %a, not %a", k, a, b, g, e);
        }
    }

    std::vector<double> values = {0, -0.0, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 1e9, 2147483647.0, 2147483648.0, -2147483648.0, -2147483649.0,
                                  4294967295.0, 4294967296.0, 1e18, 9.3e18, 1.9e19, -1e19, 1e300, -1e300, 1e-300, INFINITY, -INFINITY, NAN, 16777217.0, -3.4e38};
    for (int i = 0; i < 1000; i++) values.push_back(random.between(-1, 1) * std::pow(2.0, random.below(70)));
    count = int(values.size());
    Array<double> dvalues(values);
    Array<long long> converted(count * conversions);
    convert<<<blocks(count, 128), 128>>>(dvalues, converted, count);
    RAN();
    auto seen = converted.host();
    for (int i = 0; i < count; i++) {
        double d = values[i];
        volatile double vd = d;
        float f = float(d);
        double scaled = d * 16777.3, wide = d * 1e12;
        volatile int whole = int(clamp<int>(std::trunc(scaled)));
        volatile long long whole_wide = clamp<long long>(std::trunc(wide));
        long long expected[conversions] = {
            clamp<int>(std::nearbyint(f)), clamp<int>(std::trunc(f)), clamp<int>(std::ceil(f)), clamp<int>(std::floor(f)),
            clamp<unsigned>(std::nearbyint(f)), clamp<long long>(std::trunc(f)), clamp<unsigned long long>(std::floor(f)),
            clamp<int>(std::nearbyint(d)), clamp<long long>(std::ceil(d)), clamp<unsigned>(std::floor(d)),
            bits(rounded(FE_TOWARDZERO, [&] { return float(vd); })), bits(rounded(FE_UPWARD, [&] { return float(vd); })),
            bits(rounded(FE_DOWNWARD, [&] { return float(whole); })), bits(rounded(FE_UPWARD, [&] { return double(whole_wide); })),
            bits(std::trunc(f)), bits(std::nearbyint(f)),
        };
        for (int k = 0; k < conversions; k++) {
            long long g = seen[i * conversions + k];
            bool is_float = k == 10 || k == 11 || k >= 14;
            if (is_float && std::isnan(d)) {
                CHECK((g & 0x7fffffff) > 0x7f800000, "conversion %d of NaN is %llx", k, g);
                continue;
            }
            CHECK(g == expected[k], "conversion %d of %a is %llx, not %llx", k, d, g, expected[k]);
        }
    }
    printf("%d pairs, %d conversions\n", int(x.size()), count * conversions);
    return check::pass();
}
