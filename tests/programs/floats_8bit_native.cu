// needs: sm_89
// nvcc: -std=c++17 -gencode arch=compute_89,code=compute_89
// The instructions for numbers of 8 bits with an exponent: pairs of floats and of halves rounded to e4m3 and e5m2, with
// a relu or without, and all pairs of codes back to halves; against the host's conversions.
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include "check.h"

__global__ void narrow(const float *in, unsigned short *out, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    float a = in[i], b = in[count - 1 - i];
    unsigned halves = unsigned(__half_as_ushort(__float2half_rn(b))) << 16 | __half_as_ushort(__float2half_rn(a));
    unsigned short *to = out + i * 6;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(to[0]) : "f"(b), "f"(a));
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(to[1]) : "f"(b), "f"(a));
    asm("cvt.rn.satfinite.relu.e4m3x2.f32 %0, %1, %2;" : "=h"(to[2]) : "f"(b), "f"(a));
    asm("cvt.rn.satfinite.relu.e5m2x2.f32 %0, %1, %2;" : "=h"(to[3]) : "f"(b), "f"(a));
    asm("cvt.rn.satfinite.e4m3x2.f16x2 %0, %1;" : "=h"(to[4]) : "r"(halves));
    asm("cvt.rn.satfinite.e5m2x2.f16x2 %0, %1;" : "=h"(to[5]) : "r"(halves));
}

__global__ void widen(unsigned *out) {
    unsigned short code = blockIdx.x * 256 + threadIdx.x;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(out[code * 2]) : "h"(code));
    asm("cvt.rn.f16x2.e5m2x2 %0, %1;" : "=r"(out[code * 2 + 1]) : "h"(code));
}

int main() {
    Random random(43);
    std::vector<float> values;
    for (int i = 0; i < 2000; i++) {
        float value = float(ldexp(1 + random.below(32) / 32.0 + (i % 3 ? random.unit() / 32 : 0), int(random.below(38)) - 20));
        values.push_back(i % 2 ? value : -value);
    }
    int count = int(values.size());
    Array<float> in(values);
    Array<unsigned short> out(count * 6);
    narrow<<<blocks(count, 128), 128>>>(in, out, count);
    RAN();
    auto got = out.host();
    for (int i = 0; i < count; i++) {
        float pair[2] = {values[i], values[count - 1 - i]};
        for (int n = 0; n < 6; n++) {
            unsigned expected = 0;
            for (int k = 0; k < 2; k++) {
                auto kind = n % 2 ? __NV_E5M2 : __NV_E4M3;
                float x = n >= 4 ? float(__float2half_rn(pair[k])) : pair[k];
                unsigned code = __nv_cvt_float_to_fp8(x, __NV_SATFINITE, kind);
                if ((n == 2 || n == 3) && pair[k] < 0) code = 0;
                expected |= code << k * 8;
            }
            CHECK(got[i * 6 + n] == expected, "%a and %a, %d: %04x, not %04x", pair[0], pair[1], n, got[i * 6 + n], expected);
        }
    }
    printf("narrow %016llx\n", (unsigned long long)check::hash(got));
    Array<unsigned> wide(65536 * 2);
    widen<<<256, 256>>>(wide);
    RAN();
    auto back = wide.host();
    for (unsigned code = 0; code < 65536; code++)
        for (int n = 0; n < 2; n++)
            for (int k = 0; k < 2; k++) {
                unsigned half = back[code * 2 + n] >> k * 16 & 0xffff, expected = __nv_cvt_fp8_to_halfraw(code >> k * 8 & 0xff, n ? __NV_E5M2 : __NV_E4M3).x;
                bool nan = (expected & 0x7fff) > 0x7c00;
                CHECK(nan ? (half & 0x7fff) > 0x7c00 : half == expected, "code %04x, %d: %04x, not %04x", code, n, half, expected);
            }
    printf("wide\n");
    return check::pass();
}
