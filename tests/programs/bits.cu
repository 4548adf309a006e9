// needs: plain
// Bit intrinsics: clz, popc, brev, ffs, fns, byte_perm, funnel shifts, bit fields, shifts by 32 and
// more.
#include "check.h"

const int operations = 18;

__global__ void kernel(const unsigned *x, const unsigned *y, unsigned *out, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    unsigned a = x[i], b = y[i], s = i % 41, *o = out + i * operations;
    unsigned long long wide = (unsigned long long)a << 32 | b;
    o[0] = __clz(a), o[1] = __clzll(wide), o[2] = __popc(a), o[3] = __popcll(wide);
    o[4] = __brev(a), o[5] = unsigned(__brevll(wide) >> 32), o[6] = __ffs(a), o[7] = __ffsll(wide);
    o[8] = __fns(a, s % 32, int(i % 7) - 3);
    o[9] = __byte_perm(a, b, i * 2654435761u);
    o[10] = __funnelshift_l(a, b, s), o[11] = __funnelshift_r(a, b, s);
    o[12] = __funnelshift_lc(a, b, s), o[13] = __funnelshift_rc(a, b, s);
    asm("bfe.u32 %0, %1, %2, %3;" : "=r"(o[14]) : "r"(a), "r"(s), "r"(b & 63));
    asm("bfe.s32 %0, %1, %2, %3;" : "=r"(o[15]) : "r"(a), "r"(s), "r"(b & 63));
    asm("bfi.b32 %0, %1, %2, %3, %4;" : "=r"(o[16]) : "r"(b), "r"(a), "r"(s), "r"(a & 63));
    asm("shl.b32 %0, %1, %2;" : "=r"(o[17]) : "r"(a), "r"(s));
}

unsigned reverse(unsigned v) {
    unsigned r = 0;
    for (int i = 0; i < 32; i++) r |= (v >> i & 1) << (31 - i);
    return r;
}

unsigned nth_set(unsigned mask, int base, int offset) {
    if (offset == 0) return mask >> base & 1 ? base : ~0u;
    int step = offset > 0 ? 1 : -1, left = std::abs(offset);
    for (int i = base; i >= 0 && i < 32; i += step)
        if (mask >> i & 1 && --left == 0) return i;
    return ~0u;
}

unsigned permute(unsigned a, unsigned b, unsigned selector) {
    unsigned long long bytes = (unsigned long long)b << 32 | a;
    unsigned r = 0;
    // __byte_perm looks at three bits of each nibble.
    for (int k = 0; k < 4; k++) r |= unsigned(bytes >> 8 * (selector >> 4 * k & 7) & 0xff) << 8 * k;
    return r;
}

unsigned field(unsigned a, unsigned start, unsigned length, bool is_signed) {
    unsigned sign = is_signed && length ? a >> std::min(start + length - 1, 31u) & 1 : 0, r = 0;
    for (unsigned k = 0; k < 32; k++) r |= (k < length && start + k < 32 ? a >> (start + k) & 1 : sign) << k;
    return r;
}

unsigned insert(unsigned from, unsigned into, unsigned start, unsigned length) {
    for (unsigned k = 0; k < length && start + k < 32; k++) into = (into & ~(1u << (start + k))) | (k < 32 ? from >> k & 1 : 0) << (start + k);
    return into;
}

int main() {
    Random random(39);
    const int count = 4000;
    std::vector<unsigned> x(count), y(count);
    for (int i = 0; i < count; i++) x[i] = random.bits() >> random.below(32), y[i] = random.bits() << random.below(32);
    x[0] = y[0] = x[1] = y[2] = 0;
    x[3] = y[3] = ~0u;
    Array<unsigned> dx(x), dy(y), out(count * operations);
    kernel<<<blocks(count, 96), 96>>>(dx, dy, out, count);
    RAN();
    auto got = out.host();
    for (int i = 0; i < count; i++) {
        unsigned a = x[i], b = y[i], s = i % 41;
        unsigned long long wide = (unsigned long long)a << 32 | b, pair = (unsigned long long)b << 32 | a;
        unsigned expected[operations] = {
            unsigned(a ? __builtin_clz(a) : 32), unsigned(wide ? __builtin_clzll(wide) : 64), unsigned(__builtin_popcount(a)), unsigned(__builtin_popcountll(wide)),
            reverse(a), reverse(b), unsigned(__builtin_ffs(a)), unsigned(__builtin_ffsll(wide)),
            nth_set(a, s % 32, int(i % 7) - 3), permute(a, b, i * 2654435761u),
            unsigned(pair << (s & 31) >> 32), unsigned(pair >> (s & 31)),
            unsigned(std::min(s, 32u) == 32 ? a : pair << s >> 32), unsigned(pair >> std::min(s, 32u)),
            field(a, s, b & 63, false), field(a, s, b & 63, true), insert(b, a, s, a & 63), s >= 32 ? 0 : a << s,
        };
        for (int k = 0; k < operations; k++)
            CHECK(got[i * operations + k] == expected[k], "operation %d of %08x, %08x, %d is %08x, not %08x", k, a, b, i, got[i * operations + k], expected[k]);
    }
    printf("%016llx\n", (unsigned long long)check::hash(got));
    return check::pass();
}
