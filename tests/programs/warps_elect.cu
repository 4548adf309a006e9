// needs: sm_90
// nvcc: -gencode arch=compute_90,code=compute_90
// Warps agree: one of some lanes is elected, lanes with equal values of 4 and 8 bytes find each other, reductions in one
// instruction over masks that differ, votes as PTX has them, and the registers that tell of lanes.
#include "check.h"

__device__ bool elected(unsigned mask, unsigned *leader) {
    int is;
    asm volatile("{ .reg .pred p; elect.sync %0|p, %2; selp.s32 %1, 1, 0, p; }" : "=r"(*leader), "=r"(is) : "r"(mask));
    return is;
}

__global__ void elect(unsigned *out) {
    unsigned lane = threadIdx.x % 32, leader = 99;
    // The lanes of a warp part in three, each of which elects one.
    unsigned mask = lane % 3 == 0 ? 0x49249249u : lane % 3 == 1 ? 0x92492492u : 0x24924924u;
    bool is = false;
    if (lane % 3 == 0)
        is = elected(mask, &leader);
    else if (lane % 3 == 1)
        is = elected(mask, &leader);
    else
        is = elected(mask, &leader);
    unsigned chosen = __reduce_add_sync(mask, is), same = __match_any_sync(mask, leader);
    // Just one, all know the same, and it is of their own.
    out[threadIdx.x] = chosen == 1 && same == mask && (mask >> leader & 1) && (is == (leader == lane));
}

__global__ void matches(const unsigned long long *in, unsigned *any, unsigned *all, int *same) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    any[i] = __match_any_sync(~0u, in[i]) ^ __match_any_sync(~0u, unsigned(in[i]));
    int whole, parts;
    all[i] = __match_all_sync(~0u, in[i] & 1, &whole);
    unsigned half = threadIdx.x % 32 < 16 ? 0xffffu : 0xffff0000u;
    all[i] ^= __match_all_sync(half, threadIdx.x % 32 / 16, &parts);
    same[i] = whole * 2 + parts;
}

__global__ void reductions(const unsigned *in, unsigned *out) {
    int i = blockIdx.x * blockDim.x + threadIdx.x, lane = threadIdx.x % 32;
    unsigned mask = lane < 10 ? 0x3ffu : lane < 11 ? 0x400u : 0xfffff800u, x = in[i];
    unsigned value = __reduce_add_sync(mask, x);
    value = value * 31 + __reduce_min_sync(mask, x);
    value = value * 31 + __reduce_max_sync(mask, x);
    value = value * 31 + unsigned(__reduce_min_sync(mask, int(x)));
    value = value * 31 + unsigned(__reduce_max_sync(mask, int(x)));
    value = value * 31 + __reduce_and_sync(mask, x | 0xff);
    value = value * 31 + __reduce_or_sync(mask, x & 0xf0f0);
    out[i] = value * 31 + __reduce_xor_sync(mask, x);
}

__global__ void lanes(unsigned *out) {
    unsigned lane, eq, lt, le, gt, ge, warps;
    asm("mov.u32 %0, %%laneid;" : "=r"(lane));
    asm("mov.u32 %0, %%lanemask_eq;" : "=r"(eq));
    asm("mov.u32 %0, %%lanemask_lt;" : "=r"(lt));
    asm("mov.u32 %0, %%lanemask_le;" : "=r"(le));
    asm("mov.u32 %0, %%lanemask_gt;" : "=r"(gt));
    asm("mov.u32 %0, %%lanemask_ge;" : "=r"(ge));
    asm("mov.u32 %0, %%nwarpid;" : "=r"(warps));
    int uni;
    asm volatile("{ .reg .pred p, q; setp.lt.u32 p, %1, 64; vote.sync.uni.pred q, p, 0xffffffff; selp.s32 %0, 1, 0, q; }" : "=r"(uni) : "r"(threadIdx.x));
    out[threadIdx.x] = lane == threadIdx.x % 32 && eq == 1u << lane && lt == eq - 1 && le == (eq | lt) && gt == ~le && ge == ~lt && warps >= 3 && uni == 1;
}

int main() {
    Array<unsigned> out(96);
    elect<<<1, 96>>>(out);
    RAN();
    for (unsigned is : out.host()) CHECK(is == 1, "an election");
    lanes<<<1, 96>>>(out);
    RAN();
    for (unsigned is : out.host()) CHECK(is == 1, "a lane");
    const int count = 256;
    Random random(31);
    std::vector<unsigned long long> wide(count);
    // Some differ only in their upper halves.
    for (auto &value : wide) value = (unsigned long long)random.below(2) << 40 | random.below(6);
    for (int i = 32; i < 64; i++) wide[i] |= 1;
    Array<unsigned long long> in(wide);
    Array<unsigned> any(count), all(count), words(count);
    Array<int> same(count);
    matches<<<count / 64, 64>>>(in, any, all, same);
    RAN();
    auto a = any.host(), l = all.host();
    auto s = same.host();
    for (int i = 0; i < count; i++) {
        int base = i / 32 * 32;
        unsigned x = 0, y = 0, first = 1;
        for (int k = 0; k < 32; k++) {
            x |= unsigned(wide[base + k] == wide[i]) << k;
            y |= unsigned(unsigned(wide[base + k]) == unsigned(wide[i])) << k;
            first &= (wide[base + k] & 1) == (wide[base] & 1);
        }
        unsigned expected = (first ? ~0u : 0) ^ (i % 32 < 16 ? 0xffffu : 0xffff0000u);
        CHECK(a[i] == (x ^ y), "any %d: %08x, not %08x", i, a[i], x ^ y);
        CHECK(l[i] == expected && s[i] == int(first * 2 + 1), "all %d: %08x and %d", i, l[i], s[i]);
    }
    printf("matches %016llx\n", (unsigned long long)check::hash(a));
    std::vector<unsigned> values(count);
    for (auto &value : values) value = random.bits();
    Array<unsigned> from(values);
    reductions<<<count / 64, 64>>>(from, words);
    RAN();
    auto got = words.host();
    for (int i = 0; i < count; i++) {
        int base = i / 32 * 32, lane = i % 32, low = lane < 10 ? 0 : lane < 11 ? 10 : 11, high = lane < 10 ? 10 : lane < 11 ? 11 : 32;
        unsigned add = 0, least = ~0u, most = 0, both = ~0u, some = 0, differ = 0;
        int lower = INT32_MAX, upper = INT32_MIN;
        for (int k = low; k < high; k++) {
            unsigned x = values[base + k];
            add += x;
            least = std::min(least, x), most = std::max(most, x);
            lower = std::min(lower, int(x)), upper = std::max(upper, int(x));
            both &= x | 0xff, some |= x & 0xf0f0, differ ^= x;
        }
        unsigned value = add;
        for (unsigned next : {least, most, unsigned(lower), unsigned(upper), both, some, differ}) value = value * 31 + next;
        CHECK(got[i] == value, "reductions %d: %08x, not %08x", i, got[i], value);
    }
    printf("reductions %016llx\n", (unsigned long long)check::hash(got));
    return check::pass();
}
