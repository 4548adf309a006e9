// needs: plain
// The scalar video instructions of PTX: parts of words that are added, compared, shifted and multiplied, saturated, with a
// second operation or merged into a third word.
#include "check.h"

__global__ void video(const int *a, const int *b, const int *c, int *out, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    int *to = out + i * 10;
#define V(n, text) asm(text : "=r"(to[n]) : "r"(a[i]), "r"(b[i]), "r"(c[i]))
    V(0, "vadd.s32.s32.s32.sat.add %0, %1, %2, %3;");
    V(1, "vsub.s32.u32.u32 %0, %1.b1, %2.h1;");
    V(2, "vabsdiff.u32.s32.s32.add %0, %1.b2, %2.b3, %3;");
    V(3, "vmin.s32.s32.s32.max %0, %1.h0, %2.h1, %3;");
    V(4, "vmax.u32.u32.u32 %0.b1, %1.b0, %2.b1, %3;");
    V(5, "vshl.u32.u32.u32.clamp %0, %1.h0, %2.b0;");
    V(6, "vshr.u32.u32.u32.wrap.add %0, %1, %2.b0, %3;");
    V(7, "vmad.s32.s32.s32 %0, %1.h1, %2.h0, %3;");
    V(8, "vmad.u32.u32.u32 %0, %1.b3, %2.h1, %3;");
    V(9, "vset.s32.s32.lt %0, %1.h0, %2.h1;");
}

static int clamp(long long value) { return int(std::min<long long>(INT32_MAX, std::max<long long>(INT32_MIN, value))); }
static int s8(int word, int n) { return int8_t(word >> n * 8); }
static int u8(int word, int n) { return uint8_t(word >> n * 8); }
static int s16(int word, int n) { return int16_t(word >> n * 16); }
static int u16(int word, int n) { return uint16_t(word >> n * 16); }

int main() {
    const int count = 600;
    Random random(37);
    std::vector<int> a(count), b(count), c(count);
    for (int i = 0; i < count; i++) a[i] = int(random.bits()), b[i] = int(random.bits()), c[i] = int(random.bits());
    a[0] = b[0] = c[0] = INT32_MAX;
    a[1] = b[1] = c[1] = INT32_MIN;
    a[2] = b[2] = -1;
    Array<int> x(a), y(b), z(c), out(count * 10);
    video<<<blocks(count, 128), 128>>>(x, y, z, out, count);
    RAN();
    auto got = out.host();
    for (int i = 0; i < count; i++) {
        unsigned shift = std::min(u8(b[i], 0), 32);
        int expected[10] = {
            int(unsigned(clamp((long long)a[i] + b[i])) + unsigned(c[i])),
            u8(a[i], 1) - u16(b[i], 1),
            int(unsigned(std::abs(s8(a[i], 2) - s8(b[i], 3))) + unsigned(c[i])),
            std::max(std::min(s16(a[i], 0), s16(b[i], 1)), c[i]),
            int((unsigned(c[i]) & 0xffff00ffu) | unsigned(std::max(u8(a[i], 0), u8(b[i], 1))) << 8),
            shift == 32 ? 0 : int(unsigned(u16(a[i], 0)) << shift),
            int((unsigned(a[i]) >> (u8(b[i], 0) & 31)) + unsigned(c[i])),
            int(unsigned(s16(a[i], 1) * s16(b[i], 0)) + unsigned(c[i])),
            int(unsigned(u8(a[i], 3)) * unsigned(u16(b[i], 1)) + unsigned(c[i])),
            s16(a[i], 0) < s16(b[i], 1),
        };
        for (int k = 0; k < 10; k++) CHECK(got[i * 10 + k] == expected[k], "video %d of %d: %d, not %d", k, i, got[i * 10 + k], expected[k]);
    }
    printf("video %016llx\n", (unsigned long long)check::hash(got));
    return check::pass();
}
