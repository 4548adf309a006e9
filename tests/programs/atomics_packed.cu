// needs: sm_90
// nvcc: -std=c++17 -gencode arch=compute_90,code=compute_90
// Atomics on more than one number: pairs and fours of floats, pairs of halves and of bfloat16, and, as PTX has them, vectors
// of them. Small whole numbers: all sums are exact in any order.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "check.h"

const int BINS = 16;

__global__ void floats(float2 *twos, float4 *fours, float *returned) {
    int i = blockIdx.x * blockDim.x + threadIdx.x, bin = i % BINS;
    float2 before = atomicAdd(&twos[bin], make_float2(1, float(i % 7)));
    atomicAdd(&fours[bin], make_float4(1, 2, float(i % 5), -1));
    returned[i] = before.x;
}

__global__ void halves(__half2 *twos, __nv_bfloat162 *brains, __half *single, __nv_bfloat16 *brain) {
    __shared__ __half2 own;
    if (threadIdx.x == 0) own = __half2(0, 0);
    __syncthreads();
    int i = blockIdx.x * blockDim.x + threadIdx.x, bin = i % BINS;
    atomicAdd(&twos[bin], __floats2half2_rn(1, float(i % 3)));
    atomicAdd(&brains[bin], __floats2bfloat162_rn(1, float(i % 2)));
    atomicAdd(&single[bin], __float2half(2));
    atomicAdd(&brain[bin], __float2bfloat16(-1));
    atomicAdd(&own, __floats2half2_rn(1, 2));
    __syncthreads();
    if (threadIdx.x == 0) atomicAdd(&twos[BINS], own);
}

__global__ void vectors(__half *eight, float *least, __half *most) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    // 1, 2, 3, 4 as halves.
    asm volatile("red.global.add.noftz.v4.f16 [%0], {%1, %2, %3, %4};" ::"l"(eight), "h"((short)0x3c00), "h"((short)0x4000), "h"((short)0x4200), "h"((short)0x4400) : "memory");
    asm volatile("red.global.add.noftz.v2.f16x2 [%0], {%1, %2};" ::"l"(eight + 4), "r"(0x3c003c00), "r"(0x40004000) : "memory");
    asm volatile("red.global.add.v2.f32 [%0], {%1, %2};" ::"l"(least), "f"(float(i % 4)), "f"(-1.f) : "memory");
    unsigned before, after;
    asm volatile("atom.global.max.noftz.v2.f16x2 {%0, %1}, [%2], {%3, %4};"
                 : "=r"(before), "=r"(after)
                 : "l"(most), "r"(0x3c000000 + i), "r"(0x00003c00 + i)
                 : "memory");
    // What was there is never more than what is there in the end.
    if ((before >> 16) > 0x3c00 || (after & 0xffff) > 0x3c7f) least[0] = -1;
}

int main() {
    const int threads = 64, grid = 8, count = threads * grid;
    Array<float2> twos(BINS);
    Array<float4> fours(BINS);
    Array<float> returned(count);
    twos.clear();
    fours.clear();
    floats<<<grid, threads>>>(twos, fours, returned);
    RAN();
    std::vector<float2> two(BINS, {0, 0});
    std::vector<float4> four(BINS, {0, 0, 0, 0});
    for (int i = 0; i < count; i++) {
        two[i % BINS].x += 1, two[i % BINS].y += i % 7;
        four[i % BINS].x += 1, four[i % BINS].y += 2, four[i % BINS].z += i % 5, four[i % BINS].w -= 1;
    }
    CHECK(check::hash(twos.host()) == check::hash(two) && check::hash(fours.host()) == check::hash(four), "sums of floats");
    // What a bin had before counts up to the number of its threads.
    std::vector<int> seen(count, 0);
    auto before = returned.host();
    for (int i = 0; i < count; i++) seen[i % BINS * (count / BINS) + int(before[i])]++;
    for (int times : seen) CHECK(times == 1, "a value was seen %d times", times);
    printf("floats\n");

    Array<__half2> pairs(BINS + 1);
    Array<__nv_bfloat162> brains(BINS);
    Array<__half> single(BINS), eight(8), most(4);
    Array<__nv_bfloat16> brain(BINS);
    pairs.clear(), brains.clear(), single.clear(), brain.clear(), eight.clear(), most.clear();
    halves<<<grid, threads>>>(pairs, brains, single, brain);
    RAN();
    auto p = pairs.host();
    auto b = brains.host();
    auto s = single.host();
    auto r = brain.host();
    for (int bin = 0; bin < BINS; bin++) {
        float ones = 0, thirds = 0, odd = 0;
        for (int i = bin; i < count; i += BINS) ones += 1, thirds += i % 3, odd += i % 2;
        CHECK(float(p[bin].x) == ones && float(p[bin].y) == thirds, "halves %d: %g %g", bin, float(p[bin].x), float(p[bin].y));
        CHECK(float(b[bin].x) == ones && float(b[bin].y) == odd, "bfloat16 %d: %g %g", bin, float(b[bin].x), float(b[bin].y));
        CHECK(float(s[bin]) == 2 * ones && float(r[bin]) == -ones, "single %d: %g %g", bin, float(s[bin]), float(r[bin]));
    }
    CHECK(float(p[BINS].x) == count && float(p[BINS].y) == 2 * count, "of blocks: %g %g", float(p[BINS].x), float(p[BINS].y));
    printf("halves\n");

    Array<float> least(2);
    least.clear();
    vectors<<<2, 64>>>(eight, least, most);
    RAN();
    auto e = eight.host();
    const float expected[8] = {128, 256, 384, 512, 128, 128, 256, 256};
    for (int i = 0; i < 8; i++) CHECK(float(e[i]) == expected[i], "vector %d: %g", i, float(e[i]));
    CHECK(least.host()[0] == 192 && least.host()[1] == -128, "%g %g", least.host()[0], least.host()[1]);
    unsigned words[2];
    auto m = most.host();
    memcpy(words, m.data(), 8);
    CHECK(words[0] == 0x3c00007f && words[1] == 0x3c7f, "%08x %08x", words[0], words[1]);
    printf("vectors\n");

    return check::pass();
}
