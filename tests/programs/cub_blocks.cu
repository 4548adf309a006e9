// needs: plain
// nvcc: -std=c++17
// CUB inside a block: loads and stores that exchange, radix and merge sorts, scans with a running prefix, reductions, heads of
// runs, histograms; and inside a warp.
#include <algorithm>
#include <cub/cub.cuh>
#include <numeric>

#include "check.h"

constexpr int THREADS = 128, ITEMS = 4, TILE = THREADS * ITEMS;

__global__ void sort(const unsigned *in, unsigned *out) {
    using Load = cub::BlockLoad<unsigned, THREADS, ITEMS, cub::BLOCK_LOAD_WARP_TRANSPOSE>;
    using Store = cub::BlockStore<unsigned, THREADS, ITEMS, cub::BLOCK_STORE_TRANSPOSE>;
    using Sort = cub::BlockRadixSort<unsigned, THREADS, ITEMS>;
    __shared__ union {
        typename Load::TempStorage load;
        typename Store::TempStorage store;
        typename Sort::TempStorage sort;
    } memory;
    unsigned items[ITEMS];
    Load(memory.load).Load(in + blockIdx.x * TILE, items);
    __syncthreads();
    Sort(memory.sort).Sort(items);
    __syncthreads();
    Store(memory.store).Store(out + blockIdx.x * TILE, items);
}

struct Less {
    __device__ bool operator()(unsigned a, unsigned b) const { return a % 1000 < b % 1000; }
};

__global__ void merge(const unsigned *in, unsigned *out) {
    using Sort = cub::BlockMergeSort<unsigned, THREADS, ITEMS>;
    __shared__ typename Sort::TempStorage memory;
    unsigned items[ITEMS];
    for (int i = 0; i < ITEMS; i++) items[i] = in[blockIdx.x * TILE + threadIdx.x * ITEMS + i];
    Sort(memory).StableSort(items, Less());
    for (int i = 0; i < ITEMS; i++) out[blockIdx.x * TILE + threadIdx.x * ITEMS + i] = items[i];
}

// The sum so far, which each tile's scan adds to.
struct Running {
    unsigned sum;
    __device__ unsigned operator()(unsigned tile) {
        unsigned before = sum;
        sum += tile;
        return before;
    }
};

__global__ void scan(const unsigned *in, unsigned *out, int tiles) {
    using Scan = cub::BlockScan<unsigned, THREADS, cub::BLOCK_SCAN_RAKING>;
    __shared__ typename Scan::TempStorage memory;
    Running running{0};
    for (int tile = 0; tile < tiles; tile++) {
        unsigned items[ITEMS];
        for (int i = 0; i < ITEMS; i++) items[i] = in[tile * TILE + threadIdx.x * ITEMS + i] % 100;
        Scan(memory).ExclusiveSum(items, items, running);
        __syncthreads();
        for (int i = 0; i < ITEMS; i++) out[tile * TILE + threadIdx.x * ITEMS + i] = items[i];
    }
}

__global__ void rest(const unsigned *in, unsigned *out, int *bins) {
    using Reduce = cub::BlockReduce<unsigned, THREADS, cub::BLOCK_REDUCE_WARP_REDUCTIONS>;
    using Heads = cub::BlockDiscontinuity<unsigned, THREADS>;
    using Histogram = cub::BlockHistogram<unsigned char, THREADS, 2, 16>;
    using WarpScan = cub::WarpScan<unsigned>;
    using WarpReduce = cub::WarpReduce<unsigned, 16>;
    __shared__ union {
        typename Reduce::TempStorage reduce;
        typename Heads::TempStorage heads;
        typename Histogram::TempStorage histogram;
        typename WarpScan::TempStorage scans[THREADS / 32];
        typename WarpReduce::TempStorage reductions[THREADS / 16];
    } memory;
    __shared__ int counted[16];
    unsigned t = threadIdx.x, value = in[blockIdx.x * THREADS + t] % 16;
    unsigned most = Reduce(memory.reduce).Reduce(value * t, cuda::maximum<>());
    __syncthreads();
    unsigned items[1] = {value / 4};
    int heads[1];
    Heads(memory.heads).FlagHeads(heads, items, cuda::std::not_equal_to<>());
    __syncthreads();
    unsigned scanned;
    WarpScan(memory.scans[t / 32]).InclusiveSum(value, scanned);
    __syncthreads();
    unsigned summed = WarpReduce(memory.reductions[t / 16]).Sum(value);
    __syncthreads();
    unsigned char bytes[2] = {(unsigned char)value, (unsigned char)(15 - value)};
    Histogram(memory.histogram).Histogram(bytes, counted);
    __syncthreads();
    if (t < 16) bins[blockIdx.x * 16 + t] = counted[t];
    out[blockIdx.x * THREADS + t] = (t == 0 ? most : 0) * 4096 + heads[0] * 2048 + scanned + (t % 16 == 0 ? summed : 0);
}

int main() {
    const int tiles = 6, count = tiles * TILE;
    Random random(61);
    std::vector<unsigned> values(count);
    for (auto &value : values) value = random.bits();
    Array<unsigned> in(values), out(count);
    sort<<<tiles, THREADS>>>(in, out);
    RAN();
    auto expected = values;
    for (int i = 0; i < count; i += TILE) std::sort(expected.begin() + i, expected.begin() + i + TILE);
    CHECK(out.host() == expected, "radix sort");
    merge<<<tiles, THREADS>>>(in, out);
    RAN();
    expected = values;
    for (int i = 0; i < count; i += TILE)
        std::stable_sort(expected.begin() + i, expected.begin() + i + TILE, [](unsigned a, unsigned b) { return a % 1000 < b % 1000; });
    CHECK(out.host() == expected, "merge sort");
    scan<<<1, THREADS>>>(in, out, tiles);
    RAN();
    auto got = out.host();
    for (int i = 0, sum = 0; i < count; i++) {
        CHECK(got[i] == unsigned(sum), "scan: %d is %u, not %d", i, got[i], sum);
        sum += values[i] % 100;
    }
    printf("sorts and scans %016llx\n", (unsigned long long)check::hash(expected));
    Array<int> bins(tiles * 16);
    rest<<<tiles, THREADS>>>(in, out, bins);
    RAN();
    got = out.host();
    auto counted = bins.host();
    for (int b = 0; b < tiles; b++) {
        unsigned most = 0, histogram[16] = {};
        for (int t = 0; t < THREADS; t++) {
            unsigned value = values[b * THREADS + t] % 16;
            most = std::max(most, value * t);
            histogram[value]++, histogram[15 - value]++;
        }
        for (int t = 0; t < THREADS; t++) {
            unsigned scanned = 0, summed = 0, value = values[b * THREADS + t] % 16;
            for (int k = t / 32 * 32; k <= t; k++) scanned += values[b * THREADS + k] % 16;
            for (int k = t; k < t + 16 && t % 16 == 0; k++) summed += values[b * THREADS + k] % 16;
            bool head = t == 0 || values[b * THREADS + t - 1] % 16 / 4 != value / 4;
            unsigned wanted = (t == 0 ? most : 0) * 4096 + head * 2048 + scanned + summed;
            CHECK(got[b * THREADS + t] == wanted, "block %d, %d: %u, not %u", b, t, got[b * THREADS + t], wanted);
        }
        for (int i = 0; i < 16; i++) CHECK(counted[b * 16 + i] == int(histogram[i]), "bin %d: %d", i, counted[b * 16 + i]);
    }
    printf("reductions, heads, histograms, warps\n");
    return check::pass();
}
