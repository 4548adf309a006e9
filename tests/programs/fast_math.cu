// needs: plain
// nvcc: -use_fast_math
// The approximate functions that -use_fast_math selects, within their documented absolute or
// relative error, subnormals flushed to zero.
#include "check.h"

enum { kinds = 9 };

__global__ void kernel(const float *x, float *out, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    float v = x[i], p = fabsf(v) + 0.01f, *o = out + i * kinds;
    o[0] = sinf(v), o[1] = cosf(v), o[2] = expf(v), o[3] = logf(p), o[4] = powf(p, 1.5f);
    o[5] = v / p, o[6] = sqrtf(p), o[7] = rsqrtf(p), o[8] = tanhf(v);
}

__global__ void flush(const float *x, unsigned *out) { out[threadIdx.x] = __float_as_uint(x[threadIdx.x] * 0.5f + 0.0f); }

int main() {
    const int count = 4000;
    Random random(37);
    std::vector<float> x(count);
    for (float &v : x) v = float(random.between(-3.14, 3.14));
    Array<float> dx(x), out(count * kinds);
    kernel<<<blocks(count, 128), 128>>>(dx, out, count);
    RAN();
    auto got = out.host();
    for (int i = 0; i < count; i++) {
        double v = x[i], p = std::fabs(x[i]) + 0.01f;
        double expected[kinds] = {std::sin(v), std::cos(v), std::exp(v), std::log(p), std::pow(p, 1.5), v / p, std::sqrt(p), 1 / std::sqrt(p), std::tanh(v)};
        for (int k = 0; k < kinds; k++) {
            double g = got[i * kinds + k], e = expected[k], off = std::fabs(g - e);
            CHECK(off <= 1e-6 + 4e-6 * std::fabs(e) + (k == 8 ? 1e-3 : 0), "function %d of %a is %a, not %a", k, v, g, e);
        }
    }
    std::vector<float> tiny = {1.0f, 1.1754944e-38f, 1e-39f, -1e-40f, 2.3509887e-38f};
    Array<float> dtiny(tiny);
    Array<unsigned> words(tiny.size());
    flush<<<1, int(tiny.size())>>>(dtiny, words);
    RAN();
    auto w = words.host();
    CHECK(w[0] == 0x3f000000 && w[1] == 0 && w[2] == 0 && (w[3] & 0x7fffffff) == 0 && w[4] == 0x00800000,
          "halves are %08x %08x %08x %08x %08x", w[0], w[1], w[2], w[3], w[4]);
    printf("%d arguments\n", count);
    return check::pass();
}
