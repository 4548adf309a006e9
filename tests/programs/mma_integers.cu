// needs: sm_80
// nvcc: -gencode arch=compute_80,code=compute_80
// mma.sync of whole numbers: bytes with and without sign, mixed, saturated sums, numbers of 4 bits, single bits that
// differ or are both set.
#include "check.h"

template <int BITS> static int element(const std::vector<unsigned> &from, int i, bool sign) {
    unsigned word = from[i * BITS / 32] >> (i * BITS % 32) & ((1u << BITS) - 1);
    return sign && word >> (BITS - 1) ? int(word) - (1 << BITS) : int(word);
}

// One warp: 16 × 8, from rows of four words in each group of eight lanes.
#define KERNEL(name, instruction, LEFT, RIGHT)                                                                              \
    __global__ void name(const unsigned *a, const unsigned *b, const int *c, int *d) {                                      \
        int lane = threadIdx.x, group = lane / 4, in = lane % 4;                                                            \
        unsigned x[4], y[2];                                                                                                \
        for (int i = 0; i < LEFT; i++) x[i] = a[(group + i % 2 * 8) * LEFT * 2 + in + i / 2 * 4];                           \
        for (int i = 0; i < RIGHT; i++) y[i] = b[group * LEFT * 2 + in + i * 4];                                            \
        int s[4];                                                                                                           \
        for (int i = 0; i < 4; i++) s[i] = c[(group + i / 2 * 8) * 8 + in * 2 + i % 2];                                     \
        MMA_##LEFT(instruction);                                                                                            \
        for (int i = 0; i < 4; i++) d[(group + i / 2 * 8) * 8 + in * 2 + i % 2] = s[i];                                     \
    }
#define MMA_4(instruction)                                                                                                  \
    asm volatile("mma.sync.aligned." instruction " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"         \
                 : "+r"(s[0]), "+r"(s[1]), "+r"(s[2]), "+r"(s[3])                                                           \
                 : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(y[0]), "r"(y[1]))
#define MMA_2(instruction)                                                                                                  \
    asm volatile("mma.sync.aligned." instruction " {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"                     \
                 : "+r"(s[0]), "+r"(s[1]), "+r"(s[2]), "+r"(s[3])                                                           \
                 : "r"(x[0]), "r"(x[1]), "r"(y[0]))

KERNEL(signed_bytes, "m16n8k32.row.col.s32.s8.s8.s32", 4, 2)
KERNEL(bytes, "m16n8k32.row.col.s32.u8.u8.s32", 4, 2)
KERNEL(mixed_bytes, "m16n8k32.row.col.satfinite.s32.u8.s8.s32", 4, 2)
KERNEL(short_bytes, "m16n8k16.row.col.satfinite.s32.s8.u8.s32", 2, 1)
KERNEL(quarters, "m16n8k64.row.col.s32.s4.s4.s32", 4, 2)
KERNEL(mixed_quarters, "m16n8k64.row.col.s32.u4.s4.s32", 4, 2)
KERNEL(short_quarters, "m16n8k32.row.col.s32.u4.u4.s32", 2, 1)
KERNEL(differ, "m16n8k256.row.col.s32.b1.b1.s32.xor.popc", 4, 2)
KERNEL(both, "m16n8k256.row.col.s32.b1.b1.s32.and.popc", 4, 2)
KERNEL(short_both, "m16n8k128.row.col.s32.b1.b1.s32.and.popc", 2, 1)

using Kernel = void (*)(const unsigned *, const unsigned *, const int *, int *);

template <int BITS, typename Of>
void run(const char *name, Kernel kernel, int words, bool left_sign, bool right_sign, bool saturates, Of of) {
    Random random(words * BITS + left_sign);
    std::vector<unsigned> a(16 * words), b(8 * words);
    std::vector<int> c(128);
    for (auto &word : a) word = random.bits();
    for (auto &word : b) word = random.bits();
    // Some sums end beyond what 32 bits hold: they wrap, or stay at the end.
    for (int i = 0; i < 128; i++) c[i] = i % 7 == 0 ? INT32_MAX - 3 : i % 7 == 1 ? INT32_MIN + 3 : int(random.below(2000)) - 1000;
    Array<unsigned> left(a), right(b);
    Array<int> before(c), after(128);
    kernel<<<1, 32>>>(left, right, before, after);
    RAN();
    auto got = after.host();
    int count = words * 32 / BITS;
    for (int r = 0; r < 16; r++)
        for (int n = 0; n < 8; n++) {
            long long sum = c[r * 8 + n];
            for (int k = 0; k < count; k++) sum += of(element<BITS>(a, r * count + k, left_sign), element<BITS>(b, n * count + k, right_sign));
            int expected = saturates ? int(std::min<long long>(INT32_MAX, std::max<long long>(INT32_MIN, sum))) : int(unsigned(sum));
            CHECK(got[r * 8 + n] == expected, "%s: %d, %d: %d, not %d", name, r, n, got[r * 8 + n], expected);
        }
    printf("%s: %016llx\n", name, (unsigned long long)check::hash(got));
}

int main() {
    auto times = [](int a, int b) { return a * b; };
    run<8>("signed bytes", signed_bytes, 8, true, true, false, times);
    run<8>("bytes", bytes, 8, false, false, false, times);
    run<8>("bytes and signed bytes, saturated", mixed_bytes, 8, false, true, true, times);
    run<8>("16 bytes, saturated", short_bytes, 4, true, false, true, times);
    run<4>("signed quarters", quarters, 8, true, true, false, times);
    run<4>("quarters and signed quarters", mixed_quarters, 8, false, true, false, times);
    run<4>("32 quarters", short_quarters, 4, false, false, false, times);
    run<1>("bits that differ", differ, 8, false, false, false, [](int a, int b) { return a ^ b; });
    run<1>("bits that are both set", both, 8, false, false, false, [](int a, int b) { return a & b; });
    run<1>("128 bits", short_both, 4, false, false, false, [](int a, int b) { return a & b; });
    return check::pass();
}
