// needs: sm_80
// nvcc: -gencode arch=compute_80,code=compute_80
// mma.sp of matrices whose left one has two of every four numbers: halves, bfloat16, bytes. Where they are is in the
// metadata of some lanes, which the selector names. Small whole numbers: all sums are exact.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "check.h"

// 16 × 32 by 32 × 8. The metadata of rows `group` and `group + 8` is in the lane of the group that the selector names
// (two lanes: the first halves of the rows in one, the second in the next).
#define KERNEL(name, instruction, selector, float_or_word)                                                                                        \
    __global__ void name(const unsigned *a, const unsigned *b, const unsigned *meta, float_or_word *d) {                                        \
        int lane = threadIdx.x, group = lane / 4, in = lane % 4;                                                                                \
        float_or_word s[4] = {};                                                                                                                \
        unsigned e = meta[lane];                                                                                                                \
        asm volatile("mma.sp.sync.aligned." instruction                                                                                         \
                     " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9, %10, %11}, {%0, %1, %2, %3}, %12, " selector ";"                             \
                     : OUT(s)                                                                                                                   \
                     : "r"(a[group * 8 + in]), "r"(a[(group + 8) * 8 + in]), "r"(a[group * 8 + in + 4]), "r"(a[(group + 8) * 8 + in + 4]),       \
                       "r"(b[group * 16 + in]), "r"(b[group * 16 + in + 4]), "r"(b[group * 16 + in + 8]), "r"(b[group * 16 + in + 12]), "r"(e)); \
        for (int i = 0; i < 4; i++) d[(group + i / 2 * 8) * 8 + in * 2 + i % 2] = s[i];                                                         \
    }
#define OUT(s) "+f"(s[0]), "+f"(s[1]), "+f"(s[2]), "+f"(s[3])
KERNEL(halves_0, "m16n8k32.row.col.f32.f16.f16.f32", "0x0", float)
KERNEL(halves_1, "m16n8k32.row.col.f32.f16.f16.f32", "0x1", float)
KERNEL(bfloats_0, "m16n8k32.row.col.f32.bf16.bf16.f32", "0x0", float)

template <typename In> void run(const char *name, void (*kernel)(const unsigned *, const unsigned *, const unsigned *, float *), int selector) {
    Random random(name[0] + selector);
    std::vector<In> a(16 * 16), b(8 * 32);
    std::vector<double> whole(16 * 32, 0), y(8 * 32);
    std::vector<unsigned> rows(16, 0), meta(32, 0xdeadbeef);
    for (int r = 0; r < 16; r++)
        for (int q = 0; q < 8; q++) {
            int first = random.below(3), second = first + 1 + random.below(3 - first), value[2] = {int(random.below(9)) - 4, int(random.below(9)) - 4};
            rows[r] |= unsigned(first | second << 2) << q * 4;
            a[r * 16 + q * 2] = In(float(value[0]));
            a[r * 16 + q * 2 + 1] = In(float(value[1]));
            whole[r * 32 + q * 4 + first] = value[0];
            whole[r * 32 + q * 4 + second] = value[1];
        }
    for (int i = 0; i < 8 * 32; i++) b[i] = In(float(y[i] = int(random.below(9)) - 4));
    // A lane has 16 bits of row `group` and, above them, 16 of row `group + 8`: the first half of the columns in the first lane
    // of the pair, the second in the other.
    for (int lane = 0; lane < 32; lane++) {
        int group = lane / 4, in = lane % 4;
        if (in / 2 != selector) continue;
        int half = in % 2;
        meta[lane] = (rows[group] >> half * 16 & 0xffff) | (rows[group + 8] >> half * 16 & 0xffff) << 16;
    }
    std::vector<unsigned> aw(128), bw(128);
    memcpy(aw.data(), a.data(), 512);
    memcpy(bw.data(), b.data(), 512);
    Array<unsigned> left(aw), right(bw), where(meta);
    Array<float> out(128);
    kernel<<<1, 32>>>(left, right, where, out);
    RAN();
    auto got = out.host();
    for (int r = 0; r < 16; r++)
        for (int n = 0; n < 8; n++) {
            double sum = 0;
            for (int k = 0; k < 32; k++) sum += whole[r * 32 + k] * y[n * 32 + k];
            CHECK(got[r * 8 + n] == sum, "%s: %d, %d: %g, not %g", name, r, n, got[r * 8 + n], sum);
        }
    printf("%s: %016llx\n", name, (unsigned long long)check::hash(got));
}

int main() {
    run<__half>("halves, first lanes", halves_0, 0);
    run<__half>("halves, last lanes", halves_1, 1);
    run<__nv_bfloat16>("bfloat16", bfloats_0, 0);
    return check::pass();
}
