// needs: plain
// Dot products of bytes and halves in a word: both signed, neither, mixed.
#include "check.h"

__global__ void dots(const int *a, const int *b, int *out, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    short2 pair = {short(a[i]), short(a[i] >> 16)};
    ushort2 upair = {(unsigned short)a[i], (unsigned short)(unsigned(a[i]) >> 16)};
    char4 four;
    uchar4 ufour;
    memcpy(&four, &b[i], 4);
    memcpy(&ufour, &b[i], 4);
    out[i * 8 + 0] = __dp4a(a[i], b[i], 7);
    out[i * 8 + 1] = int(__dp4a(unsigned(a[i]), unsigned(b[i]), 7u));
    out[i * 8 + 2] = __dp2a_lo(pair, four, -3);
    out[i * 8 + 3] = __dp2a_hi(pair, four, -3);
    out[i * 8 + 4] = int(__dp2a_lo(upair, ufour, 5u));
    out[i * 8 + 5] = int(__dp2a_hi(upair, ufour, 5u));
    int mixed, mixed2;
    asm("dp4a.u32.s32 %0, %1, %2, %3;" : "=r"(mixed) : "r"(a[i]), "r"(b[i]), "r"(1));
    asm("dp2a.hi.s32.u32 %0, %1, %2, %3;" : "=r"(mixed2) : "r"(a[i]), "r"(b[i]), "r"(-1));
    out[i * 8 + 6] = mixed;
    out[i * 8 + 7] = mixed2;
}

static int s8(int word, int n) { return int8_t(word >> n * 8); }
static int u8(int word, int n) { return uint8_t(word >> n * 8); }
static int s16(int word, int n) { return int16_t(word >> n * 16); }
static int u16(int word, int n) { return uint16_t(word >> n * 16); }

int main() {
    const int count = 600;
    Random random(37);
    std::vector<int> a(count), b(count);
    for (int i = 0; i < count; i++) a[i] = int(random.bits()), b[i] = int(random.bits());
    a[0] = b[0] = INT32_MAX;
    a[1] = b[1] = INT32_MIN;
    a[2] = b[2] = -1;
    Array<int> x(a), y(b), out(count * 8);
    dots<<<blocks(count, 128), 128>>>(x, y, out, count);
    RAN();
    auto got = out.host();
    for (int i = 0; i < count; i++) {
        int expected[8] = {7, 7, -3, -3, 5, 5, 1, -1};
        for (int k = 0; k < 4; k++) {
            expected[0] += s8(a[i], k) * s8(b[i], k);
            expected[1] += u8(a[i], k) * u8(b[i], k);
            expected[6] += u8(a[i], k) * s8(b[i], k);
        }
        for (int k = 0; k < 2; k++) {
            expected[2] += s16(a[i], k) * s8(b[i], k);
            expected[3] += s16(a[i], k) * s8(b[i], 2 + k);
            expected[4] += u16(a[i], k) * u8(b[i], k);
            expected[5] += u16(a[i], k) * u8(b[i], 2 + k);
            expected[7] += s16(a[i], k) * u8(b[i], 2 + k);
        }
        for (int k = 0; k < 8; k++) CHECK(got[i * 8 + k] == expected[k], "dot %d of %d: %d, not %d", k, i, got[i * 8 + k], expected[k]);
    }
    printf("dots %016llx\n", (unsigned long long)check::hash(got));
    return check::pass();
}
