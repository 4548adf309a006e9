// needs: sm_80
// nvcc: -std=c++17 -gencode arch=compute_80,code=compute_80
// Tiles of more than a warp, which meet through shared memory that the block gives them: barriers, reductions and scans of
// tiles of 64, 128 and 256 threads; tiles of tiles; reductions that update memory as they end.
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cooperative_groups/scan.h>
#include <cuda/atomic>

#include "check.h"

namespace cg = cooperative_groups;

template <int WIDTH> __global__ void wide(const int *in, int *sums, int *before, int *turned) {
    __shared__ cg::block_tile_memory<512> memory;
    __shared__ int values[512];
    auto block = cg::this_thread_block(memory);
    auto tile = cg::tiled_partition<WIDTH>(block);
    int i = blockIdx.x * blockDim.x + threadIdx.x, t = threadIdx.x;
    sums[i] = cg::reduce(tile, in[i], cg::plus<int>());
    before[i] = cg::exclusive_scan(tile, in[i]);
    // Tiles meet by themselves: each as often as its number says.
    int value = in[i];
    for (unsigned round = 0; round <= tile.meta_group_rank(); round++) {
        values[t] = value;
        tile.sync();
        value = values[t / WIDTH * WIDTH + (WIDTH - 1 - t % WIDTH)] + 1;
        tile.sync();
    }
    turned[i] = value;
}

__global__ void nested(const int *in, int *out) {
    auto warp = cg::tiled_partition<32>(cg::this_thread_block());
    auto eight = cg::tiled_partition<8>(warp);
    auto two = cg::tiled_partition<2>(eight);
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    int pair = cg::reduce(two, in[i], cg::less<int>());
    int of_eight = cg::reduce(eight, pair, cg::bit_or<int>());
    int scanned = cg::inclusive_scan(eight, in[i], [](int a, int b) { return a > b ? a : b; });
    out[i] = of_eight * 7 + scanned + two.meta_group_rank() * 100000 + two.meta_group_size() * 1000000;
}

__global__ void updates(const int *in, int *total, int *highest, long long *starts) {
    auto warp = cg::tiled_partition<32>(cg::this_thread_block());
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    cuda::atomic_ref<int, cuda::thread_scope_device> sum(*total), most(*highest);
    cg::reduce_update_async(warp, sum, in[i], cg::plus<int>());
    cg::reduce_update_async(warp, most, in[i], cg::greater<int>());
    // Places of its own for each lane: as many as it asks for.
    cuda::atomic_ref<int, cuda::thread_scope_device> next(total[1]);
    starts[i] = cg::exclusive_scan_update(warp, next, in[i] % 4, cg::plus<int>());
}

template <int WIDTH> void test(const std::vector<int> &values, const int *in) {
    int count = int(values.size());
    Array<int> sums(count), before(count), turned(count);
    wide<WIDTH><<<count / 512, 512>>>(in, sums, before, turned);
    RAN();
    auto s = sums.host(), b = before.host(), t = turned.host();
    for (int base = 0; base < count; base += WIDTH) {
        int sum = 0, rounds = base % 512 / WIDTH + 1;
        for (int i = base; i < base + WIDTH; i++) {
            CHECK(b[i] == sum, "tile of %d: before %d is %d, not %d", WIDTH, i, b[i], sum);
            sum += values[i];
            int expected = values[rounds % 2 ? base + WIDTH - 1 - (i - base) : i] + rounds;
            CHECK(t[i] == expected, "tile of %d: turned %d is %d, not %d", WIDTH, i, t[i], expected);
        }
        for (int i = base; i < base + WIDTH; i++) CHECK(s[i] == sum, "tile of %d: the sum of %d is %d, not %d", WIDTH, i, s[i], sum);
    }
    printf("tiles of %d\n", WIDTH);
}

int main() {
    const int count = 2048;
    Random random(29);
    std::vector<int> values(count);
    for (int &value : values) value = int(random.below(1000));
    Array<int> in(values), out(count), total(2), highest(1);
    test<64>(values, in);
    test<128>(values, in);
    test<256>(values, in);
    nested<<<count / 128, 128>>>(in, out);
    RAN();
    auto got = out.host();
    for (int i = 0; i < count; i++) {
        int base = i / 8 * 8, bits = 0, most = 0;
        for (int k = 0; k < 8; k += 2) bits |= std::min(values[base + k], values[base + k + 1]);
        for (int k = base; k <= i; k++) most = std::max(most, values[k]);
        int expected = bits * 7 + most + i % 8 / 2 * 100000 + 4000000;
        CHECK(got[i] == expected, "nested %d: %d, not %d", i, got[i], expected);
    }
    printf("nested\n");
    Array<long long> starts(count);
    total.clear();
    highest.clear();
    updates<<<count / 256, 256>>>(in, total, highest, starts);
    RAN();
    int sum = 0, most = 0, places = 0;
    for (int value : values) sum += value, most = std::max(most, value), places += value % 4;
    CHECK(total.host()[0] == sum && highest.host()[0] == most && total.host()[1] == places, "%d %d %d", total.host()[0], highest.host()[0], total.host()[1]);
    std::vector<int> taken(places, 0);
    auto at = starts.host();
    for (int i = 0; i < count; i++)
        for (int k = 0; k < values[i] % 4; k++) taken[at[i] + k]++;
    for (int i = 0; i < places; i++) CHECK(taken[i] == 1, "place %d is taken %d times", i, taken[i]);
    printf("updates %d %d %d\n", sum, most, places);
    return check::pass();
}
