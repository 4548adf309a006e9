// needs: plain
// Warp-aggregated atomics: the active lanes of a warp choose one that adds for all of them; used to
// keep the elements that pass a test.
#include <algorithm>
#include <cooperative_groups.h>

#include "check.h"

namespace cg = cooperative_groups;

__device__ int take(int *counter) {
    auto active = cg::coalesced_threads();
    int first = 0;
    if (active.thread_rank() == 0) first = atomicAdd(counter, active.size());
    return active.shfl(first, 0) + active.thread_rank();
}

__global__ void keep(const int *in, int *out, int *kept, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count && in[i] % 7 < 3) out[take(kept)] = in[i];
}

__global__ void keep_by_hand(const int *in, int *out, int *kept, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    bool wanted = i < count && in[i] % 7 < 3;
    unsigned mask = __ballot_sync(~0u, wanted), below;
    if (!wanted) return;
    asm("mov.u32 %0, %%lanemask_lt;" : "=r"(below));
    int leader = __ffs(mask) - 1, first = 0;
    if (threadIdx.x % 32 == leader) first = atomicAdd(kept, __popc(mask));
    first = __shfl_sync(mask, first, leader);
    out[first + __popc(mask & below)] = in[i];
}

int main() {
    const int count = 30011;
    Random random(19);
    std::vector<int> values(count), expected;
    for (int &value : values) {
        value = int(random.below(1 << 30));
        if (value % 7 < 3) expected.push_back(value);
    }
    std::sort(expected.begin(), expected.end());
    Array<int> in(values), out(count), kept(1);
    for (int kind = 0; kind < 2; kind++) {
        kept.clear();
        if (kind == 0) keep<<<blocks(count, 192), 192>>>(in, out, kept, count);
        else keep_by_hand<<<blocks(count, 192), 192>>>(in, out, kept, count);
        RAN();
        auto got = out.host();
        size_t number = kept.host()[0];
        CHECK(number == expected.size(), "%zu kept, not %zu", number, expected.size());
        got.resize(number);
        std::sort(got.begin(), got.end());
        CHECK(got == expected, "other elements were kept, kind %d", kind);
        printf("kind %d kept %zu of %d\n", kind, number, count);
    }
    return check::pass();
}
