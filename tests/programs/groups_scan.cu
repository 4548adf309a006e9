// needs: plain
// Cooperative groups inside a block: tiles of 4, 8 and 32 lanes with scans, reductions, shuffles
// and votes; coalesced and binary partitions.
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cooperative_groups/scan.h>

#include "check.h"

namespace cg = cooperative_groups;

template <int width> __global__ void tiles(const int *in, int *inclusive, int *exclusive, int *sums, int *highest) {
    auto block = cg::this_thread_block();
    auto tile = cg::tiled_partition<width>(block);
    int i = blockIdx.x * blockDim.x + block.thread_rank();
    inclusive[i] = cg::inclusive_scan(tile, in[i]);
    exclusive[i] = cg::exclusive_scan(tile, in[i]);
    sums[i] = cg::reduce(tile, in[i], cg::plus<int>());
    highest[i] = cg::reduce(tile, in[i], cg::greater<int>());
}

__global__ void parts(const int *in, int *ranks, int *sizes) {
    auto block = cg::this_thread_block();
    auto warp = cg::tiled_partition<32>(block);
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    auto part = cg::binary_partition(warp, in[i] % 3 == 0);
    ranks[i] = part.thread_rank();
    if (in[i] % 2) {
        auto odd = cg::coalesced_threads();
        sizes[i] = odd.size() * 100 + odd.thread_rank();
    } else {
        sizes[i] = -1;
    }
    block.sync();
}

template <int width> void test(const std::vector<int> &values, const int *in) {
    int count = int(values.size());
    Array<int> inclusive(count), exclusive(count), sums(count), highest(count);
    tiles<width><<<count / 128, 128>>>(in, inclusive, exclusive, sums, highest);
    RAN();
    auto a = inclusive.host(), b = exclusive.host(), c = sums.host(), d = highest.host();
    for (int base = 0; base < count; base += width) {
        int sum = 0, high = INT32_MIN;
        for (int k = 0; k < width; k++) {
            int i = base + k;
            CHECK(b[i] == sum, "exclusive %d of %d: %d, not %d", i, width, b[i], sum);
            sum += values[i];
            high = std::max(high, values[i]);
            CHECK(a[i] == sum, "inclusive %d of %d: %d, not %d", i, width, a[i], sum);
        }
        for (int k = 0; k < width; k++)
            CHECK(c[base + k] == sum && d[base + k] == high, "tile of %d at %d: %d and %d, not %d and %d", width, base,
                  c[base + k], d[base + k], sum, high);
    }
    printf("tiles of %d: %016llx\n", width, (unsigned long long)check::hash(a));
}

int main() {
    const int count = 1024;
    Random random(17);
    std::vector<int> values(count);
    for (int &value : values) value = int(random.below(1000));
    Array<int> in(values), ranks(count), sizes(count);
    test<4>(values, in);
    test<8>(values, in);
    test<32>(values, in);
    parts<<<count / 128, 128>>>(in, ranks, sizes);
    RAN();
    auto r = ranks.host(), s = sizes.host();
    for (int base = 0; base < count; base += 32) {
        int of[2] = {0, 0}, odd = 0, before = 0;
        for (int i = base; i < base + 32; i++) odd += values[i] % 2;
        for (int i = base; i < base + 32; i++) {
            CHECK(r[i] == of[values[i] % 3 == 0], "rank of %d: %d", i, r[i]);
            of[values[i] % 3 == 0]++;
            int expected = values[i] % 2 ? odd * 100 + before++ : -1;
            CHECK(s[i] == expected, "coalesced %d: %d, not %d", i, s[i], expected);
        }
    }
    return check::pass();
}
