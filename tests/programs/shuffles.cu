// needs: plain
// Shuffles: up, down, xor and by index, every width, types of 4 and 8 bytes, lanes out of range
// keep their own value, and only some lanes take part.
#include "check.h"

__global__ void kernel(const int *in, int *out, long long *wide, double *real, int delta) {
    int lane = threadIdx.x, value = in[lane], *o = out + lane * 16;
    for (int w = 0; w < 4; w++) {
        int width = 4 << w;
        o[w] = __shfl_sync(~0u, value, delta + lane / 3, width);
        o[4 + w] = __shfl_up_sync(~0u, value, delta % width, width);
        o[8 + w] = __shfl_down_sync(~0u, value, delta % width, width);
        o[12 + w] = __shfl_xor_sync(~0u, value, delta % width, width);
    }
    wide[lane] = __shfl_xor_sync(~0u, (long long)value << 33 | lane, 5);
    real[lane] = __shfl_down_sync(~0u, value + 0.25, 3);
}

__global__ void some(int *out) {
    int lane = threadIdx.x;
    out[lane] = -1;
    const unsigned odd = 0xaaaaaaaa;
    if (lane % 2) out[lane] = __shfl_sync(odd, lane * 10, (lane + 2) % 32);
}

int main() {
    Random random(43);
    std::vector<int> values(32);
    for (int &v : values) v = int(random.bits());
    Array<int> in(values), out(32 * 16);
    Array<long long> wide(32);
    Array<double> real(32);
    for (int delta = 0; delta < 32; delta++) {
        kernel<<<1, 32>>>(in, out, wide, real, delta);
        RAN();
        auto got = out.host();
        auto w = wide.host();
        auto r = real.host();
        for (int lane = 0; lane < 32; lane++) {
            for (int k = 0; k < 4; k++) {
                int width = 4 << k, base = lane / width * width, d = delta % width;
                int from[4] = {base + (delta + lane / 3) % width, lane - d >= base ? lane - d : lane, lane + d < base + width ? lane + d : lane, lane ^ d};
                for (int kind = 0; kind < 4; kind++)
                    CHECK(got[lane * 16 + kind * 4 + k] == values[from[kind]], "kind %d, width %d, delta %d, lane %d", kind, width, delta, lane);
            }
            long long expected = (long long)((unsigned long long)(long long)values[lane ^ 5] << 33) | (lane ^ 5);
            CHECK(w[lane] == expected, "wide, lane %d: %llx, not %llx", lane, w[lane], expected);
            CHECK(r[lane] == values[lane + 3 < 32 ? lane + 3 : lane] + 0.25, "double, lane %d: %g", lane, r[lane]);
        }
    }
    some<<<1, 32>>>(out);
    RAN();
    auto got = out.host();
    for (int lane = 0; lane < 32; lane++)
        CHECK(got[lane] == (lane % 2 ? (lane + 2) % 32 * 10 : -1), "some: lane %d has %d", lane, got[lane]);
    printf("32 distances\n");
    return check::pass();
}
