// needs: sm_90
// nvcc: -std=c++17 -gencode arch=compute_90,code=compute_90
// Exchange and compare-and-swap of 16 bytes: the halves of a value never part.
#include "check.h"

struct alignas(16) Wide {
    unsigned long long low, high;
};

// Adds to both halves at once; the halves never part.
__global__ void swaps(Wide *place, int *torn) {
    Wide seen = {0, 0}, next;
    while (true) {
        next = {seen.low + 1, seen.high + 3};
        Wide before = atomicCAS(place, seen, next);
        if (before.high != before.low * 3) atomicAdd(torn, 1);
        if (before.low == seen.low && before.high == seen.high) break;
        seen = before;
    }
    Wide mine = {1000 + threadIdx.x, 3000 + 3 * threadIdx.x};
    Wide taken = atomicExch(place + 1, mine);
    if (taken.high != taken.low * 3) atomicAdd(torn, 1);
}

int main() {
    const int threads = 64, grid = 8, count = threads * grid;
    Array<Wide> wide(2);
    Array<int> torn(1);
    wide.clear();
    torn.clear();
    swaps<<<grid, threads>>>(wide, torn);
    RAN();
    auto w = wide.host();
    CHECK(torn.host()[0] == 0 && w[0].low == count && w[0].high == 3 * count, "%d torn, %llu, %llu", torn.host()[0], w[0].low, w[0].high);
    CHECK(w[1].low >= 1000 && w[1].low < 1064 && w[1].high == 3 * w[1].low, "%llu, %llu", w[1].low, w[1].high);
    printf("%llu, %llu\n", w[0].low, w[0].high);
    return check::pass();
}
