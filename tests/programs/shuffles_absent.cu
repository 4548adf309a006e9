// needs: plain
// Shuffles from lanes that do not take part: those outside the mask, and those that a block's last warp
// does not have. PTX leaves the value open; NVIDIA's GPUs give 0, and reductions count on it.
#include "check.h"

__global__ void partial(int *out) {
    int lane = threadIdx.x % 32, value = 100 + threadIdx.x, *o = out + threadIdx.x * 4;
    unsigned mask = __activemask();
    o[0] = __shfl_down_sync(mask, value, 8);
    o[1] = __shfl_xor_sync(mask, value, 16);
    o[2] = __shfl_sync(mask, value, 20);
    int sum = value;
    for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_down_sync(mask, sum, offset);
    o[3] = lane == 0 ? sum : 0;
}

__global__ void masked(int *out) {
    int lane = threadIdx.x, value = 100 + lane, *o = out + lane * 4;
    const unsigned odd = 0xaaaaaaaa;
    if (lane % 2) {
        o[0] = __shfl_down_sync(odd, value, 1);
        o[1] = __shfl_xor_sync(odd, value, 1);
        o[2] = __shfl_sync(odd, value, 6);
        o[3] = __shfl_up_sync(odd, value, 1);
    }
}

int main() {
    const int threads = 48;
    Array<int> out(threads * 4);
    partial<<<1, threads>>>(out);
    RAN();
    auto got = out.host();
    for (int thread = 0; thread < threads; thread++) {
        int lane = thread % 32, lanes = thread < 32 ? 32 : 16, first = 100 + thread - lane;
        const int *g = &got[thread * 4];
        int down = lane + 8 > 31 ? first + lane : lane + 8 < lanes ? first + lane + 8 : 0;
        CHECK(g[0] == down, "thread %d, down: %d, not %d", thread, g[0], down);
        int other = (lane ^ 16) < lanes ? first + (lane ^ 16) : 0;
        CHECK(g[1] == other, "thread %d, xor: %d, not %d", thread, g[1], other);
        int indexed = 20 < lanes ? first + 20 : 0;
        CHECK(g[2] == indexed, "thread %d, by index: %d, not %d", thread, g[2], indexed);
        int sum = 0;
        for (int i = 0; i < lanes; i++) sum += first + i;
        if (lane == 0) CHECK(g[3] == sum, "thread %d, sum: %d, not %d", thread, g[3], sum);
    }
    masked<<<1, 32>>>(out);
    RAN();
    got = out.host();
    for (int lane = 1; lane < 32; lane += 2) {
        const int *g = &got[lane * 4];
        int down = lane == 31 ? 131 : 0;
        CHECK(g[0] == down, "lane %d, down: %d, not %d", lane, g[0], down);
        CHECK(g[1] == 0, "lane %d, xor: %d", lane, g[1]);
        CHECK(g[2] == 0, "lane %d, by index: %d", lane, g[2]);
        CHECK(g[3] == 0, "lane %d, up: %d", lane, g[3]);
    }
    printf("absent lanes give 0\n");
    return check::pass();
}
