// needs: plain
// nvcc: -std=c++17
// Cooperative groups by label: lanes with equal labels are a group of their own, which sums, finds the greatest, scans and
// chooses one of its own for an atomic; groups of those that reached a branch; one that invokes for all.
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cooperative_groups/scan.h>

#include "check.h"

namespace cg = cooperative_groups;

__global__ void labels(const int *label, const int *value, int *sums, int *most, int *before, int *ranks, int *totals) {
    auto warp = cg::tiled_partition<32>(cg::this_thread_block());
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    auto same = cg::labeled_partition(warp, label[i]);
    sums[i] = cg::reduce(same, value[i], cg::plus<int>());
    most[i] = cg::reduce(same, value[i], cg::greater<int>());
    before[i] = cg::exclusive_scan(same, value[i]);
    ranks[i] = same.thread_rank() * 100 + same.num_threads();
    int all = cg::reduce(same, value[i], cg::plus<int>());
    if (same.thread_rank() == 0) atomicAdd(&totals[label[i]], all);
}

__global__ void branches(const int *value, int *out, int *calls) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (value[i] % 3 == 0) {
        auto here = cg::coalesced_threads();
        int found = cg::invoke_one_broadcast(here, [&] { return atomicAdd(calls, int(here.num_threads())); });
        // All of the group have the same, whatever it is.
        out[i] = here.all(here.shfl(found, 0) == found) ? cg::reduce(here, value[i], cg::bit_xor<int>()) : -1;
    } else if (value[i] % 3 == 1) {
        auto here = cg::coalesced_threads();
        out[i] = here.shfl(value[i], here.num_threads() - 1) * 2 + here.any(value[i] > 990);
    } else {
        auto here = cg::coalesced_threads();
        out[i] = int(here.ballot(value[i] % 2)) * 32 + int(here.meta_group_size());
    }
}

int main() {
    const int count = 512, kinds = 5;
    Random random(23);
    std::vector<int> label(count), value(count);
    for (int i = 0; i < count; i++) label[i] = int(random.below(kinds)), value[i] = int(random.below(1000));
    Array<int> l(label), v(value), sums(count), most(count), before(count), ranks(count), totals(kinds), out(count), calls(1);
    totals.clear();
    labels<<<count / 64, 64>>>(l, v, sums, most, before, ranks, totals);
    RAN();
    auto s = sums.host(), m = most.host(), b = before.host(), r = ranks.host(), t = totals.host();
    std::vector<int> total(kinds, 0);
    for (int base = 0; base < count; base += 32)
        for (int i = base; i < base + 32; i++) {
            int sum = 0, high = 0, left = 0, rank = 0, size = 0;
            for (int k = base; k < base + 32; k++) {
                if (label[k] != label[i]) continue;
                sum += value[k];
                high = std::max(high, value[k]);
                size++;
                if (k < i) left += value[k], rank++;
            }
            total[label[i]] += value[i];
            CHECK(s[i] == sum && m[i] == high && b[i] == left && r[i] == rank * 100 + size, "%d: %d %d %d %d, not %d %d %d %d", i, s[i], m[i], b[i],
                  r[i], sum, high, left, rank * 100 + size);
        }
    CHECK(t == total, "totals");
    printf("labels %016llx\n", (unsigned long long)check::hash(s));

    calls.clear();
    branches<<<count / 64, 64>>>(v, out, calls);
    RAN();
    auto got = out.host();
    int thirds = 0;
    for (int base = 0; base < count; base += 32) {
        int bits = 0, last = 0, high = 0, ballot = 0, rank = 0;
        for (int k = base; k < base + 32; k++) {
            if (value[k] % 3 == 0) bits ^= value[k], thirds++;
            if (value[k] % 3 == 1) last = value[k], high |= value[k] > 990;
            if (value[k] % 3 == 2) ballot |= (value[k] % 2) << rank++;
        }
        for (int k = base; k < base + 32; k++) {
            int expected = value[k] % 3 == 0 ? bits : value[k] % 3 == 1 ? last * 2 + high : ballot * 32 + 1;
            CHECK(got[k] == expected, "branch of %d: %d, not %d", k, got[k], expected);
        }
    }
    CHECK(calls.host()[0] == thirds, "%d called for, not %d", calls.host()[0], thirds);
    printf("branches %d\n", thirds);
    return check::pass();
}
