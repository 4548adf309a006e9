// needs: plain
// Half and bfloat16: conversions of all 65,536 patterns both ways, arithmetic against rounding the
// exact result, packed pairs, comparisons.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "check.h"

__global__ void widen(float *halves, float *brains) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    halves[i] = __half2float(__ushort_as_half((unsigned short)i));
    brains[i] = __bfloat162float(__ushort_as_bfloat16((unsigned short)i));
}

__global__ void narrow(const float *values, ushort2 *out, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count)
        out[i] = make_ushort2(__half_as_ushort(__float2half_rn(values[i])),
                              __bfloat16_as_ushort(__float2bfloat16_rn(values[i])));
}

__global__ void arithmetic(const unsigned short *x, const unsigned short *y, unsigned short *out, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    __half a = __ushort_as_half(x[i]), b = __ushort_as_half(y[i]);
    __half2 pair = __hmul2(__halves2half2(a, b), __halves2half2(b, b));
    unsigned short *o = out + i * 8;
    o[0] = __half_as_ushort(__hadd_rn(a, b));
    o[1] = __half_as_ushort(__hsub_rn(a, b));
    o[2] = __half_as_ushort(__low2half(pair));
    o[3] = __half_as_ushort(__high2half(pair));
    o[4] = __half_as_ushort(__hfma(a, b, a));
    o[5] = __half_as_ushort(__hmin(a, b));
    o[6] = __half_as_ushort(__hneg(a));
    o[7] = (a < b) | (a == b) << 1 | __hisnan(a) << 2;
}

// The exponent's bits and mantissa's bits of a format, as a double.
double decode(unsigned word, int exponent_bits, int mantissa_bits) {
    int bias = (1 << (exponent_bits - 1)) - 1, exponent = word >> mantissa_bits & ((1 << exponent_bits) - 1);
    int mantissa = word & ((1 << mantissa_bits) - 1);
    double value;
    if (exponent == (1 << exponent_bits) - 1) value = mantissa ? NAN : INFINITY;
    else if (exponent == 0) value = std::ldexp(mantissa, 1 - bias - mantissa_bits);
    else value = std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
    return word >> 15 ? -value : value;
}

unsigned encode(double value, int exponent_bits, int mantissa_bits) {
    unsigned sign = std::signbit(value) ? 0x8000 : 0, top = ((1u << exponent_bits) - 1) << mantissa_bits;
    if (std::isnan(value)) return 0x7fff;
    double size = std::fabs(value);
    int bias = (1 << (exponent_bits - 1)) - 1, exponent;
    if (std::isinf(size)) return sign | top;
    std::frexp(size, &exponent);
    int step = std::max(exponent - 1, 1 - bias) - mantissa_bits;
    double units = std::nearbyint(std::ldexp(size, -step));
    double rounded = std::ldexp(units, step);
    if (rounded >= std::ldexp(2.0, bias)) return sign | top;
    if (rounded == 0) return sign;
    std::frexp(rounded, &exponent);
    if (exponent - 1 < 1 - bias) return sign | unsigned(std::ldexp(rounded, bias - 1 + mantissa_bits));
    return sign | unsigned(exponent - 1 + bias) << mantissa_bits |
           (unsigned(std::ldexp(rounded, mantissa_bits - exponent + 1)) & ((1u << mantissa_bits) - 1));
}

bool same(double a, double b) { return std::isnan(a) ? std::isnan(b) : a == b && std::signbit(a) == std::signbit(b); }

int main() {
    Array<float> halves(65536), brains(65536);
    widen<<<256, 256>>>(halves, brains);
    RAN();
    auto h = halves.host(), b = brains.host();
    for (unsigned i = 0; i < 65536; i++) {
        CHECK(same(h[i], decode(i, 5, 10)), "half %04x is %g, not %g", i, h[i], decode(i, 5, 10));
        CHECK(same(b[i], decode(i, 8, 7)), "bfloat16 %04x is %g, not %g", i, b[i], decode(i, 8, 7));
    }
    Random random(25);
    std::vector<float> values = {0, -0.0f, 65504, 65519.996f, 65520, 1e-8f, 2.9802322e-8f, 2.98023224e-8f * 1.01f, 6.1e-5f, 3.4e38f, INFINITY, -INFINITY};
    for (int i = 0; i < 5000; i++) values.push_back(float(random.between(-1, 1) * std::pow(2.0, int(random.below(50)) - 28)));
    for (int i = 0; i < 2000; i++) values.push_back(1.0f + random.below(4096) / 4096.0f); // with ties
    int count = int(values.size());
    Array<float> dvalues(values);
    Array<ushort2> narrowed(count);
    narrow<<<blocks(count, 128), 128>>>(dvalues, narrowed, count);
    RAN();
    auto n = narrowed.host();
    for (int i = 0; i < count; i++) {
        CHECK(n[i].x == encode(values[i], 5, 10), "%a to half is %04x, not %04x", values[i], n[i].x, encode(values[i], 5, 10));
        CHECK(n[i].y == encode(values[i], 8, 7), "%a to bfloat16 is %04x, not %04x", values[i], n[i].y, encode(values[i], 8, 7));
    }
    count = 8000;
    std::vector<unsigned short> x(count), y(count);
    for (int i = 0; i < count; i++) {
        x[i] = (unsigned short)random.bits();
        y[i] = i % 3 ? (unsigned short)((random.bits() & 0x83ff) | 0x3800 | (random.bits() & 0x400)) : (unsigned short)random.bits();
    }
    Array<unsigned short> dx(x), dy(y), out(count * 8);
    arithmetic<<<blocks(count, 128), 128>>>(dx, dy, out, count);
    RAN();
    auto got = out.host();
    for (int i = 0; i < count; i++) {
        double a = decode(x[i], 5, 10), b = decode(y[i], 5, 10);
        // Sums and products of two halves are exact in double; so are the rounded fused ones below,
        // but where the product dwarfs or is dwarfed by the addend: skip those.
        double expected[5] = {a + b, a - b, a * b, b * b, a * b + a};
        bool fused_exact = std::isnan(expected[4]) || std::isinf(expected[4]) || std::fma(a, b, a) - a * b == a || std::fma(a, b, a) - a == a * b;
        for (int k = 0; k < 5; k++) {
            if (k == 4 && !fused_exact) continue;
            unsigned g = got[i * 8 + k], e = encode(expected[k], 5, 10);
            CHECK(same(decode(g, 5, 10), decode(e, 5, 10)), "operation %d of %g and %g is %04x, not %04x", k, a, b, g, e);
        }
        double low = decode(got[i * 8 + 5], 5, 10);
        CHECK(std::isnan(a) ? same(low, b) : std::isnan(b) ? same(low, a) : low == std::min(a, b), "min(%g, %g) = %g", a, b, low);
        CHECK(std::isnan(a) || got[i * 8 + 6] == (x[i] ^ 0x8000), "-%04x is %04x", x[i], got[i * 8 + 6]);
        unsigned flags = (a < b) | (a == b) << 1 | std::isnan(a) << 2;
        CHECK(got[i * 8 + 7] == flags, "comparing %g and %g gives %x, not %x", a, b, got[i * 8 + 7], flags);
    }
    printf("131072 patterns, %d values, %d pairs\n", int(values.size()), count);
    return check::pass();
}
