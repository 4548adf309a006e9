// needs: plain
// Instructions written as PTX: carry chains, predicates with branches, named barriers between
// producers and consumers, lop3, prmt, sad, testp, copysign, vectors, cvt with saturation.
#include "check.h"

__global__ void arithmetic(const unsigned *x, unsigned *out, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    unsigned a = x[i], b = x[(i + 1) % count], c = x[(i + 2) % count], d = x[(i + 3) % count], *o = out + i * 12;
    asm("add.cc.u32 %0, %3, %5; addc.cc.u32 %1, %4, %6; addc.u32 %2, 0, 0;" : "=r"(o[0]), "=r"(o[1]), "=r"(o[2]) : "r"(a), "r"(b), "r"(c), "r"(d));
    asm("sub.cc.u32 %0, %2, %4; subc.u32 %1, %3, %5;" : "=r"(o[3]), "=r"(o[4]) : "r"(a), "r"(b), "r"(c), "r"(d));
    asm("mad.lo.cc.u32 %0, %2, %3, %4; madc.hi.u32 %1, %2, %3, %5;" : "=r"(o[5]), "=r"(o[6]) : "r"(a), "r"(b), "r"(c), "r"(d));
    asm("lop3.b32 %0, %1, %2, %3, 0x6a;" : "=r"(o[7]) : "r"(a), "r"(b), "r"(c));
    asm("{ .reg .pred p, q; setp.lt.s32 p|q, %1, %2; selp.u32 %0, 1, 0, p; @q add.u32 %0, %0, 2; }" : "=r"(o[8]) : "r"(a), "r"(b));
    asm("{ .reg .pred p; .reg .u32 n; mov.u32 n, %1; mov.u32 %0, 0;\n"
        "loop_%=: setp.eq.u32 p, n, 0; @p bra done_%=; and.b32 n, n, 0x0fffffff; shr.u32 n, n, 1; add.u32 %0, %0, 1; bra loop_%=;\n"
        "done_%=: }" : "=r"(o[9]) : "r"(a));
    asm("cvt.sat.u8.s32 %0, %1;" : "=r"(o[10]) : "r"(int(a) >> 20));
    asm("slct.u32.s32 %0, %1, %2, %3;" : "=r"(o[11]) : "r"(a), "r"(b), "r"(int(c)));
}

// 64 producers and 64 consumers meet at two named barriers; producers do not wait for consumers.
__global__ void barriers(int *out, int rounds) {
    __shared__ int data[2][64];
    int i = threadIdx.x % 64;
    if (threadIdx.x < 64) {
        for (int k = 0; k < rounds; k++) {
            if (k >= 2) asm volatile("bar.sync %0, 128;" ::"r"(3 + k % 2) : "memory");
            data[k % 2][i] = k * 64 + i;
            asm volatile("bar.arrive %0, 128;" ::"r"(1 + k % 2) : "memory");
        }
    } else {
        int sum = 0;
        for (int k = 0; k < rounds; k++) {
            asm volatile("bar.sync %0, 128;" ::"r"(1 + k % 2) : "memory");
            sum += data[k % 2][63 - i];
            if (k + 2 < rounds) asm volatile("bar.arrive %0, 128;" ::"r"(3 + k % 2) : "memory");
        }
        out[i] = sum;
    }
}

__global__ void floats(const float *x, unsigned *out, int count) {
    int i = threadIdx.x;
    if (i >= count) return;
    float f = x[i], r;
    unsigned flags = 0, p;
    asm("{ .reg .pred p; testp.finite.f32 p, %1; selp.u32 %0, 1, 0, p; }" : "=r"(p) : "f"(f));
    flags |= p;
    asm("{ .reg .pred p; testp.subnormal.f32 p, %1; selp.u32 %0, 2, 0, p; }" : "=r"(p) : "f"(f));
    flags |= p;
    asm("{ .reg .pred p; setp.nan.f32 p, %1, %1; selp.u32 %0, 4, 0, p; }" : "=r"(p) : "f"(f));
    flags |= p;
    asm("{ .reg .pred p; setp.ltu.f32 p, %1, 0f3F800000; selp.u32 %0, 8, 0, p; }" : "=r"(p) : "f"(f));
    out[3 * i] = flags | p;
    asm("copysign.f32 %0, %1, %2;" : "=f"(r) : "f"(f), "f"(5.0f));
    out[3 * i + 1] = __float_as_uint(r);
    asm("add.sat.f32 %0, %1, %2;" : "=f"(r) : "f"(f), "f"(0.25f));
    out[3 * i + 2] = __float_as_uint(r);
}

int main() {
    Random random(61);
    const int count = 1000;
    std::vector<unsigned> x(count);
    for (unsigned &v : x) v = random.bits() << random.below(8);
    Array<unsigned> dx(x), out(count * 12);
    arithmetic<<<blocks(count, 64), 64>>>(dx, out, count);
    RAN();
    auto got = out.host();
    for (int i = 0; i < count; i++) {
        unsigned long long a = x[i], b = x[(i + 1) % count], c = x[(i + 2) % count], d = x[(i + 3) % count];
        unsigned __int128 sum = (unsigned __int128)(b << 32 | a) + (d << 32 | c);
        unsigned long long difference = (b << 32 | a) - (d << 32 | c), low = (a * b & 0xffffffff) + c;
        unsigned steps = 0, n = unsigned(a);
        for (; n; steps++) n = (n & 0x0fffffff) >> 1;
        bool less = int(a) < int(b);
        int narrow = int(a) >> 20;
        // The function of 0x6a: bits where (a & b) differs from c.
        unsigned expected[12] = {unsigned(sum), unsigned(sum >> 32), unsigned(sum >> 64), unsigned(difference), unsigned(difference >> 32), unsigned(low),
                                 unsigned((a * b >> 32) + d + (low >> 32)), unsigned((a & b) ^ c), less ? 1u : 2u, steps,
                                 narrow < 0 ? 0u : narrow > 255 ? 255u : unsigned(narrow), unsigned(int(c) >= 0 ? a : b)};
        for (int k = 0; k < 12; k++) CHECK(got[i * 12 + k] == expected[k], "instruction %d of %08x, %08x: %08x, not %08x", k, unsigned(a), unsigned(b), got[i * 12 + k], expected[k]);
    }
    Array<int> sums(64);
    barriers<<<1, 128>>>(sums, 20);
    RAN();
    auto s = sums.host();
    for (int i = 0; i < 64; i++) CHECK(s[i] == 190 * 64 + 20 * (63 - i), "consumer %d: %d", i, s[i]);
    std::vector<float> f = {1.0f, -0.5f, 0.0f, -0.0f, 1e-40f, INFINITY, -INFINITY, NAN, 0.875f, -2.0f};
    Array<float> df(f);
    Array<unsigned> words(f.size() * 3);
    floats<<<1, 32>>>(df, words, int(f.size()));
    RAN();
    auto w = words.host();
    for (size_t i = 0; i < f.size(); i++) {
        float v = f[i];
        unsigned flags = (std::isfinite(v) ? 1 : 0) | (std::fpclassify(v) == FP_SUBNORMAL ? 2 : 0) | (std::isnan(v) ? 4 : 0) | (!(v >= 1) ? 8 : 0);
        CHECK(w[3 * i] == flags, "flags of %g: %x, not %x", v, w[3 * i], flags);
        float sign, sat;
        memcpy(&sign, &w[3 * i + 1], 4);
        memcpy(&sat, &w[3 * i + 2], 4);
        CHECK(std::isnan(v) || sign == std::copysign(5.0f, v), "copysign of %g: %g", v, sign);
        float e = std::isnan(v) ? 0 : std::fmin(1.0f, std::fmax(0.0f, v + 0.25f));
        CHECK(sat == e, "saturated %g: %g, not %g", v, sat, e);
    }
    printf("%016llx\n", (unsigned long long)check::hash(got));
    return check::pass();
}
