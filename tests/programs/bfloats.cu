// needs: sm_80
// nvcc: -std=c++17 -gencode arch=compute_80,code=compute_80
// bfloat16 and pairs of halves in kernels: fused products rounded once, relu, least and greatest with and without NaN,
// comparisons as masks, rounding in each direction, conversions from whole numbers.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "check.h"

// A double rounded to bfloat16, to nearest even; the sums here have few bits, so the double is exact.
static uint16_t rounded(double value) {
    float f = float(value);
    // Rounded to odd, so that the second rounding is right.
    if (double(f) != value) {
        uint32_t b;
        memcpy(&b, &f, 4);
        if (std::fabs(double(f)) > std::fabs(value)) b--;
        b |= 1;
        memcpy(&f, &b, 4);
    }
    uint32_t b;
    memcpy(&b, &f, 4);
    return uint16_t((b + 0x7fff + (b >> 16 & 1)) >> 16);
}
static double value_of(uint16_t bits) {
    uint32_t b = uint32_t(bits) << 16;
    float f;
    memcpy(&f, &b, 4);
    return f;
}

__global__ void brains(const uint16_t *a, const uint16_t *b, const uint16_t *c, uint16_t *out, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    auto x = __ushort_as_bfloat16(a[i]), y = __ushort_as_bfloat16(b[i]), z = __ushort_as_bfloat16(c[i]);
    uint16_t *to = out + i * 8;
    to[0] = __bfloat16_as_ushort(__hfma(x, y, z));
    to[1] = __bfloat16_as_ushort(__hfma_relu(x, y, z));
    to[2] = __bfloat16_as_ushort(__hadd(x, y));
    to[3] = __bfloat16_as_ushort(__hmul(x, y));
    to[4] = __bfloat16_as_ushort(__hsub(x, y));
    to[5] = __bfloat16_as_ushort(__hmax(x, y));
    to[6] = __bfloat16_as_ushort(__hmin(x, y));
    to[7] = __hlt(x, y) | __heq(x, x) << 1 | __hge(y, z) << 2;
}

__global__ void pairs(unsigned *out) {
    __half2 nan = __halves2half2(__ushort_as_half(0x7fff), __float2half(3)), two = __floats2half2_rn(2, 4);
    auto word = [](__half2 v) { return unsigned(__half_as_ushort(v.y)) << 16 | __half_as_ushort(v.x); };
    out[0] = word(__hmax2(nan, two));
    out[1] = word(__hmax2_nan(nan, two));
    out[2] = word(__hmin2(nan, two));
    out[3] = word(__hmin2_nan(nan, two));
    out[4] = __hlt2_mask(nan, two);
    out[5] = __hne2_mask(nan, two);
    out[6] = __hneu2_mask(nan, two);
    out[7] = word(__hfma2_relu(two, __floats2half2_rn(-1, 1), two));
    out[8] = word(__hfma2_sat(two, __floats2half2_rn(0.25f, 1), __floats2half2_rn(0.125f, 1)));
    out[9] = word(__habs2(__hneg2(two)));
}

__global__ void directions(const float *in, uint16_t *out, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    out[i * 4 + 0] = __bfloat16_as_ushort(__float2bfloat16_rn(in[i]));
    out[i * 4 + 1] = __bfloat16_as_ushort(__float2bfloat16_rz(in[i]));
    out[i * 4 + 2] = __bfloat16_as_ushort(__int2bfloat16_rn(int(in[i] * 1000)));
    out[i * 4 + 3] = uint16_t(__bfloat162short_rz(__float2bfloat16_rn(in[i])));
}

int main() {
    const int count = 3000;
    Random random(47);
    std::vector<uint16_t> a(count), b(count), c(count);
    auto number = [&] { return uint16_t((random.below(2) << 15) | (110 + random.below(34)) << 7 | random.below(128)); };
    for (int i = 0; i < count; i++) a[i] = number(), b[i] = number(), c[i] = number();
    Array<uint16_t> x(a), y(b), z(c), out(count * 8);
    brains<<<blocks(count, 128), 128>>>(x, y, z, out, count);
    RAN();
    auto got = out.host();
    for (int i = 0; i < count; i++) {
        double p = value_of(a[i]), q = value_of(b[i]), r = value_of(c[i]);
        uint16_t fused = rounded(p * q + r);
        uint16_t expected[8] = {fused, uint16_t(fused >> 15 ? 0 : fused), rounded(p + q), rounded(p * q), rounded(p - q), p > q ? a[i] : b[i], p < q ? a[i] : b[i],
                                uint16_t((p < q) | 2 | (q >= r) << 2)};
        for (int n = 0; n < 8; n++) {
            if ((n == 2 || n == 4 || n == 0 || n == 1) && (expected[n] & 0x7fff) == 0) continue;
            CHECK(got[i * 8 + n] == expected[n], "%g %g %g, %d: %04x, not %04x", p, q, r, n, got[i * 8 + n], expected[n]);
        }
    }
    printf("bfloat16 %016llx\n", (unsigned long long)check::hash(got));
    Array<unsigned> words(10);
    pairs<<<1, 1>>>(words);
    RAN();
    for (unsigned word : words.host()) printf("%08x ", word);
    printf("\n");
    std::vector<float> values(count);
    for (float &value : values) value = float(random.between(-30000, 30000));
    Array<float> in(values);
    Array<uint16_t> small(count * 4);
    directions<<<blocks(count, 128), 128>>>(in, small, count);
    RAN();
    got = small.host();
    for (int i = 0; i < count; i++) {
        uint32_t word;
        memcpy(&word, &values[i], 4);
        uint16_t nearest = rounded(values[i]), whole = rounded(int(values[i] * 1000)), back = uint16_t(int16_t(std::max(-32768.0, std::min(32767.0, value_of(nearest)))));
        CHECK(got[i * 4] == nearest && got[i * 4 + 1] == word >> 16 && got[i * 4 + 2] == whole && got[i * 4 + 3] == back, "%g: %04x %04x %04x %04x", values[i], got[i * 4],
              got[i * 4 + 1], got[i * 4 + 2], got[i * 4 + 3]);
    }
    printf("directions %016llx\n", (unsigned long long)check::hash(got));
    return check::pass();
}
