// needs: plain
// Stable radix sort of key-value pairs, 4 bits a pass: counts, a scan of them, a stable scatter by
// ballots.
#include <algorithm>

#include "check.h"

const int threads = 128, digits = 16, warps = threads / 32;

__global__ void count_digits(const unsigned *keys, unsigned *counts, int count, int shift) {
    __shared__ unsigned own[digits];
    if (threadIdx.x < digits) own[threadIdx.x] = 0;
    __syncthreads();
    int i = blockIdx.x * threads + threadIdx.x;
    if (i < count) atomicAdd(&own[keys[i] >> shift & 15], 1);
    __syncthreads();
    if (threadIdx.x < digits) counts[threadIdx.x * gridDim.x + blockIdx.x] = own[threadIdx.x];
}

__global__ void scan_counts(unsigned *counts, int count) {
    unsigned before = 0;
    for (int base = 0; base < count; base += 32) {
        unsigned value = base + threadIdx.x < count ? counts[base + threadIdx.x] : 0, sum = value;
        for (int offset = 1; offset < 32; offset *= 2) {
            unsigned left = __shfl_up_sync(~0u, sum, offset);
            if (threadIdx.x >= offset) sum += left;
        }
        if (base + threadIdx.x < count) counts[base + threadIdx.x] = before + sum - value;
        before += __shfl_sync(~0u, sum, 31);
    }
}

__global__ void scatter(const unsigned *keys, const int *values, unsigned *new_keys, int *new_values,
                        const unsigned *offsets, int count, int shift) {
    __shared__ unsigned in_warp[warps][digits];
    int i = blockIdx.x * threads + threadIdx.x, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    unsigned key = i < count ? keys[i] : 0, digit = i < count ? key >> shift & 15 : 16, rank = 0;
    for (unsigned d = 0; d < digits; d++) {
        unsigned same = __ballot_sync(~0u, digit == d);
        if (lane == 0) in_warp[warp][d] = __popc(same);
        if (digit == d) rank = __popc(same & ((1u << lane) - 1));
    }
    __syncthreads();
    if (i >= count) return;
    for (int w = 0; w < warp; w++) rank += in_warp[w][digit];
    unsigned place = offsets[digit * gridDim.x + blockIdx.x] + rank;
    new_keys[place] = key;
    new_values[place] = values[i];
}

int main() {
    const int count = 20003, grid = blocks(count, threads);
    Random random(11);
    std::vector<unsigned> keys(count);
    std::vector<int> values(count);
    std::vector<std::pair<unsigned, int>> expected(count);
    for (int i = 0; i < count; i++) {
        keys[i] = random.below(5000) * 858993u; // with repetitions
        values[i] = i;
        expected[i] = {keys[i], i};
    }
    std::stable_sort(expected.begin(), expected.end(), [](auto &a, auto &b) { return a.first < b.first; });
    Array<unsigned> a(keys), b(count), counts(digits * grid);
    Array<int> va(values), vb(count);
    unsigned *from = a, *to = b;
    int *vfrom = va, *vto = vb;
    for (int shift = 0; shift < 32; shift += 4) {
        count_digits<<<grid, threads>>>(from, counts, count, shift);
        scan_counts<<<1, 32>>>(counts, digits * grid);
        scatter<<<grid, threads>>>(from, vfrom, to, vto, counts, count, shift);
        std::swap(from, to);
        std::swap(vfrom, vto);
    }
    RAN();
    auto got = a.host();
    auto got_values = va.host();
    for (int i = 0; i < count; i++)
        CHECK(got[i] == expected[i].first && got_values[i] == expected[i].second, "element %d: %u from %d, not %u from %d",
              i, got[i], got_values[i], expected[i].first, expected[i].second);
    printf("%016llx %016llx\n", (unsigned long long)check::hash(got), (unsigned long long)check::hash(got_values));
    return check::pass();
}
