// needs: plain
// nvcc: -std=c++17
// Numbers of 8, 6 and 4 bits with an exponent: all codes as floats; floats, halves and doubles rounded to them, saturated or
// not; pairs; scales that are powers of two. The device says what the host's own conversions say, bit by bit.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp4.h>
#include <cuda_fp6.h>
#include <cuda_fp8.h>

#include "check.h"

__host__ __device__ inline unsigned bits(__half_raw raw) { return raw.x; }

// All that is asked of one float.
__host__ __device__ inline void ask(float x, unsigned *out) {
    int n = 0;
    for (auto saturation : {__NV_SATFINITE, __NV_NOSAT})
        for (auto kind : {__NV_E4M3, __NV_E5M2}) {
            out[n++] = __nv_cvt_float_to_fp8(x, saturation, kind);
            out[n++] = __nv_cvt_double_to_fp8(double(x) * 1.0000001, saturation, kind);
            out[n++] = __nv_cvt_halfraw_to_fp8(__half_raw(__float2half_rn(x)), saturation, kind);
            out[n++] = __nv_cvt_bfloat16raw_to_fp8(__nv_bfloat16_raw(__float2bfloat16_rn(x)), saturation, kind);
            out[n++] = __nv_cvt_float2_to_fp8x2(make_float2(x, -x * 0.75f), saturation, kind);
        }
    for (auto kind : {__NV_E2M3, __NV_E3M2}) out[n++] = __nv_cvt_float_to_fp6(x, kind, cudaRoundNearest);
    out[n++] = __nv_cvt_float_to_fp4(x, __NV_E2M1, cudaRoundNearest);
    out[n++] = __nv_cvt_float2_to_fp4x2(make_float2(x, x * 0.5f), __NV_E2M1, cudaRoundNearest);
    for (auto mode : {cudaRoundZero, cudaRoundPosInf}) out[n++] = __nv_cvt_float_to_e8m0(fabsf(x), __NV_SATFINITE, mode);
}
constexpr int ASKED = 26;

__global__ void ask_device(const float *in, unsigned *out, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) ask(in[i], out + i * ASKED);
}

__host__ __device__ inline void decode(unsigned code, unsigned *out) {
    out[0] = bits(__nv_cvt_fp8_to_halfraw(__nv_fp8_storage_t(code), __NV_E4M3));
    out[1] = bits(__nv_cvt_fp8_to_halfraw(__nv_fp8_storage_t(code), __NV_E5M2));
    out[2] = bits(__nv_cvt_fp6_to_halfraw(__nv_fp6_storage_t(code % 64), __NV_E2M3));
    out[3] = bits(__nv_cvt_fp6_to_halfraw(__nv_fp6_storage_t(code % 64), __NV_E3M2));
    out[4] = bits(__nv_cvt_fp4_to_halfraw(__nv_fp4_storage_t(code % 16), __NV_E2M1));
    out[5] = __nv_cvt_e8m0_to_bf16raw(__nv_fp8_storage_t(code)).x;
}

__global__ void decode_device(unsigned *out) { decode(threadIdx.x, out + threadIdx.x * 6); }

int main() {
    Random random(41);
    std::vector<float> values = {0, -0.f, 1, 448, 449, 464, 465, 57344, 61440, 61441, 1e30f, INFINITY, -INFINITY, 0x1p-9f, 0x1p-10f, 0x1.8p-10f, 0x1p-16f, 0x1p-17f, 6, 5, 7.5f, 28, 0.0625f};
    // Of all sizes that these have, and halfway between two of them.
    for (int i = 0; i < 3000; i++) {
        float value = float(ldexp(1 + random.below(64) / 64.0 + (i % 3 ? random.unit() / 64 : 0), int(random.below(40)) - 22));
        values.push_back(i % 2 ? value : -value);
    }
    int count = int(values.size());
    Array<float> in(values);
    Array<unsigned> out(size_t(count) * ASKED), codes(256 * 6);
    ask_device<<<blocks(count, 128), 128>>>(in, out, count);
    RAN();
    auto got = out.host();
    for (int i = 0; i < count; i++) {
        unsigned expected[ASKED];
        ask(values[i], expected);
        for (int n = 0; n < ASKED; n++) CHECK(got[i * ASKED + n] == expected[n], "%a, question %d: %x, not %x", values[i], n, got[i * ASKED + n], expected[n]);
    }
    printf("to 8 bits and less: %016llx\n", (unsigned long long)check::hash(got));
    decode_device<<<1, 256>>>(codes);
    RAN();
    auto back = codes.host();
    for (unsigned code = 0; code < 256; code++) {
        unsigned expected[6];
        decode(code, expected);
        for (int n = 0; n < 6; n++) {
            // Which NaN it is may differ.
            bool nan = n == 5 ? code == 255 : (expected[n] & 0x7c00) == 0x7c00 && expected[n] & 0x3ff;
            if (nan)
                CHECK(n == 5 ? (back[code * 6 + n] & 0x7fff) > 0x7f80 : (back[code * 6 + n] & 0x7fff) > 0x7c00, "code %u, %d: %x is no NaN", code, n, back[code * 6 + n]);
            else
                CHECK(back[code * 6 + n] == expected[n], "code %u, %d: %x, not %x", code, n, back[code * 6 + n], expected[n]);
        }
    }
    printf("and back\n");
    return check::pass();
}
