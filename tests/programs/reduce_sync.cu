// needs: plain sm_80
// nvcc: -gencode arch=compute_80,code=compute_80
// Warp reductions in one instruction (redux.sync): add, min, max, and, or, xor over all lanes and
// over some.
#include "check.h"

__global__ void kernel(const unsigned *in, unsigned *out) {
    unsigned i = threadIdx.x, v = in[i], *o = out + i * 8;
    o[0] = __reduce_add_sync(~0u, v);
    o[1] = __reduce_min_sync(~0u, v);
    o[2] = __reduce_max_sync(~0u, v);
    o[3] = __reduce_min_sync(~0u, int(v));
    o[4] = __reduce_and_sync(~0u, v | 0xff);
    o[5] = __reduce_or_sync(~0u, v & 0xf0f0f0);
    o[6] = __reduce_xor_sync(~0u, v);
    unsigned third = __ballot_sync(~0u, i % 3 == 0);
    o[7] = i % 3 == 0 ? __reduce_add_sync(third, i) : 0;
}

int main() {
    Random random(47);
    std::vector<unsigned> values(96);
    for (unsigned &v : values) v = random.bits();
    Array<unsigned> in(values), out(96 * 8);
    kernel<<<1, 96>>>(in, out);
    RAN();
    auto got = out.host();
    for (int i = 0; i < 96; i++) {
        unsigned e[8] = {0, ~0u, 0, INT32_MAX, ~0u, 0, 0, 0};
        for (int k = i / 32 * 32; k < i / 32 * 32 + 32; k++) {
            unsigned v = values[k];
            e[0] += v, e[1] = std::min(e[1], v), e[2] = std::max(e[2], v), e[3] = std::min(int(e[3]), int(v));
            e[4] &= v | 0xff, e[5] |= v & 0xf0f0f0, e[6] ^= v;
            if (k % 3 == 0 && i % 3 == 0) e[7] += k;
        }
        for (int k = 0; k < 8; k++) CHECK(got[i * 8 + k] == e[k], "thread %d, reduction %d: %08x, not %08x", i, k, got[i * 8 + k], e[k]);
    }
    printf("%016llx\n", (unsigned long long)check::hash(got));
    return check::pass();
}
