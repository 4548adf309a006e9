// needs: plain
// Four bytes or two halves in a word: the v*2 and v*4 intrinsics, dot products dp4a and dp2a.
#include "check.h"

const int operations = 14;

__global__ void kernel(const unsigned *x, const unsigned *y, unsigned *out, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    unsigned a = x[i], b = y[i], *o = out + i * operations;
    o[0] = __vadd4(a, b), o[1] = __vsub4(a, b), o[2] = __vaddus4(a, b), o[3] = __vaddss4(a, b);
    o[4] = __vmaxu4(a, b), o[5] = __vmins4(a, b), o[6] = __vcmpgtu4(a, b), o[7] = __vabsdiffu4(a, b);
    o[8] = __vadd2(a, b), o[9] = __vsubss2(a, b), o[10] = __vmaxs2(a, b), o[11] = __vavgu4(a, b);
    o[12] = __dp4a(int(a), int(b), 1000), o[13] = __dp2a_lo(a, b, 7u);
}

template <class F> unsigned bytes(unsigned a, unsigned b, F f) {
    unsigned r = 0;
    for (int k = 0; k < 32; k += 8) r |= unsigned(f(int(a >> k & 255), int(b >> k & 255)) & 255) << k;
    return r;
}
template <class F> unsigned signed_bytes(unsigned a, unsigned b, F f) {
    return bytes(a, b, [&](int u, int v) { return f(int((signed char)u), int((signed char)v)); });
}
template <class F> unsigned shorts(unsigned a, unsigned b, F f) {
    unsigned r = 0;
    for (int k = 0; k < 32; k += 16) r |= unsigned(f(int(short(a >> k)), int(short(b >> k))) & 65535) << k;
    return r;
}
int limit(int v, int low, int high) { return std::max(low, std::min(high, v)); }

int main() {
    Random random(41);
    const int count = 2000;
    std::vector<unsigned> x(count), y(count);
    for (int i = 0; i < count; i++) x[i] = random.bits(), y[i] = i % 5 ? random.bits() : x[i] ^ (random.bits() & 0x80808080);
    Array<unsigned> dx(x), dy(y), out(count * operations);
    kernel<<<blocks(count, 128), 128>>>(dx, dy, out, count);
    RAN();
    auto got = out.host();
    for (int i = 0; i < count; i++) {
        unsigned a = x[i], b = y[i];
        int dot = 1000;
        for (int k = 0; k < 32; k += 8) dot += (signed char)(a >> k) * (signed char)(b >> k);
        unsigned expected[operations] = {
            bytes(a, b, [](int u, int v) { return u + v; }), bytes(a, b, [](int u, int v) { return u - v; }),
            bytes(a, b, [](int u, int v) { return std::min(u + v, 255); }), signed_bytes(a, b, [](int u, int v) { return limit(u + v, -128, 127); }),
            bytes(a, b, [](int u, int v) { return std::max(u, v); }), signed_bytes(a, b, [](int u, int v) { return std::min(u, v); }),
            bytes(a, b, [](int u, int v) { return u > v ? 255 : 0; }), bytes(a, b, [](int u, int v) { return std::abs(u - v); }),
            shorts(a, b, [](int u, int v) { return u + v; }), shorts(a, b, [](int u, int v) { return limit(u - v, -32768, 32767); }),
            shorts(a, b, [](int u, int v) { return std::max(u, v); }), bytes(a, b, [](int u, int v) { return (u + v + 1) >> 1; }),
            unsigned(dot), 7 + (a & 0xffff) * (b & 255) + (a >> 16) * (b >> 8 & 255),
        };
        for (int k = 0; k < operations; k++)
            CHECK(got[i * operations + k] == expected[k], "operation %d of %08x, %08x is %08x, not %08x", k, a, b, got[i * operations + k], expected[k]);
    }
    printf("%016llx\n", (unsigned long long)check::hash(got));
    return check::pass();
}
