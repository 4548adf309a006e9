// needs: plain
// Votes and matches of warps: ballot, all, any, activemask in branches, match_any, match_all, and
// the block's own: syncthreads_count, _and, _or.
#include "check.h"

__global__ void votes(const int *in, unsigned *out) {
    int i = threadIdx.x, v = in[i];
    unsigned *o = out + i * 10;
    o[0] = __ballot_sync(~0u, v & 1);
    o[1] = __all_sync(~0u, v >= 0) | __any_sync(~0u, v > 1000) << 1 | __any_sync(~0u, v == 3) << 2;
    o[2] = __match_any_sync(~0u, v % 5);
    int same;
    o[3] = __match_all_sync(~0u, v / 1000, &same);
    o[4] = same;
    o[5] = __match_any_sync(~0u, (long long)(v % 3) << 40);
    o[6] = o[7] = 0;
    if (v % 3 == 0) {
        o[6] = __activemask();
        o[7] = __ballot_sync(o[6], v % 2 == 0);
    }
    __syncwarp();
    int odd = __syncthreads_count(v & 1), all = __syncthreads_and(v < 5000), any = __syncthreads_or(v == 7);
    o[8] = odd;
    o[9] = all != 0 | (any != 0) << 1;
}

int main() {
    const int threads = 128;
    Random random(45);
    for (int round = 0; round < 4; round++) {
        std::vector<int> values(threads);
        int bound = round == 0 ? 10 : round == 1 ? 900 : round == 2 ? 6000 : 2;
        for (int &v : values) v = int(random.below(bound));
        Array<int> in(values);
        Array<unsigned> out(threads * 10);
        votes<<<1, threads>>>(in, out);
        RAN();
        auto got = out.host();
        unsigned count = 0, below = 1, seven = 0;
        for (int v : values) count += v & 1, below &= v < 5000, seven |= v == 7;
        for (int i = 0; i < threads; i++) {
            int base = i / 32 * 32, v = values[i];
            unsigned odd = 0, matches5 = 0, matches3 = 0, threes = 0, even_threes = 0, high = 0, three = 0, thousands = 1;
            for (int k = 0; k < 32; k++) {
                int w = values[base + k];
                odd |= unsigned(w & 1) << k;
                matches5 |= unsigned(w % 5 == v % 5) << k;
                matches3 |= unsigned(w % 3 == v % 3) << k;
                threes |= unsigned(w % 3 == 0) << k;
                even_threes |= unsigned(w % 3 == 0 && w % 2 == 0) << k;
                high |= w > 1000, three |= w == 3;
                thousands &= w / 1000 == v / 1000;
            }
            unsigned expected[10] = {odd, 1 | high << 1 | three << 2, matches5, thousands ? ~0u : 0, thousands, matches3,
                                     v % 3 ? 0 : threes, v % 3 ? 0 : even_threes, count, below | seven << 1};
            for (int k = 0; k < 10; k++)
                CHECK(got[i * 10 + k] == expected[k], "round %d, thread %d, vote %d: %08x, not %08x", round, i, k, got[i * 10 + k], expected[k]);
        }
        printf("round %d: %u odd\n", round, count);
    }
    return check::pass();
}
