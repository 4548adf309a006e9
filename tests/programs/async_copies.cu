// needs: sm_80
// nvcc: -std=c++17 -gencode arch=compute_80,code=compute_80
// Copies to shared memory that go on while threads compute: of 4, 8 and 16 bytes, in several groups under way, with
// zeroes behind what is there, and as a ring of four stages that a stencil reads.
#include <cuda_pipeline.h>

#include "check.h"

template <typename Word> __global__ void groups(const Word *in, Word *out) {
    __shared__ Word tile[4][64];
    int t = threadIdx.x;
    for (int g = 0; g < 4; g++) {
        __pipeline_memcpy_async(&tile[g][t], &in[(blockIdx.x * 4 + g) * 64 + t], sizeof(Word));
        __pipeline_commit();
    }
    // The oldest groups are there first.
    __pipeline_wait_prior(2);
    __syncthreads();
    out[(blockIdx.x * 4 + 0) * 64 + t] = tile[0][63 - t];
    out[(blockIdx.x * 4 + 1) * 64 + t] = tile[1][63 - t];
    __pipeline_wait_prior(0);
    __syncthreads();
    out[(blockIdx.x * 4 + 2) * 64 + t] = tile[2][63 - t];
    out[(blockIdx.x * 4 + 3) * 64 + t] = tile[3][63 - t];
}

__global__ void zeroes(const char *in, char *out, int bytes) {
    __shared__ alignas(16) char tile[64 * 16];
    int t = threadIdx.x, there = min(16, max(0, bytes - t * 16));
    for (int i = 0; i < 16; i++) tile[t * 16 + i] = 0x7f;
    __pipeline_memcpy_async(tile + t * 16, in + t * 16, 16, 16 - there);
    __pipeline_commit();
    __pipeline_wait_prior(0);
    for (int i = 0; i < 16; i++) out[t * 16 + i] = tile[t * 16 + i];
}

// Each output row is the sum of three rows of the input; rows come three stages ahead.
__global__ void rows(const float4 *in, float4 *out, int count) {
    __shared__ float4 ring[4][32];
    int t = threadIdx.x;
    auto fetch = [&](int row) {
        if (row < count) __pipeline_memcpy_async(&ring[row % 4][t], &in[row * 32 + t], 16);
        __pipeline_commit();
    };
    fetch(0);
    fetch(1);
    fetch(2);
    for (int row = 1; row + 1 < count; row++) {
        __pipeline_wait_prior(0);
        __syncthreads();
        fetch(row + 2);
        float4 a = ring[(row - 1) % 4][31 - t], b = ring[row % 4][t], c = ring[(row + 1) % 4][t];
        out[row * 32 + t] = {a.x + b.x + c.x, a.y + b.y + c.y, a.z + b.z + c.z, a.w + b.w + c.w};
    }
}

template <typename Word> void test(const char *name) {
    const int count = 5 * 4 * 64;
    std::vector<Word> values(count);
    for (int i = 0; i < count; i++) memset(&values[i], i * 7 + 1, sizeof(Word));
    Array<Word> in(values), out(count);
    groups<<<5, 64>>>((const Word *)in, (Word *)out);
    RAN();
    auto got = out.host();
    for (int i = 0; i < count; i++) CHECK(!memcmp(&got[i], &values[i / 64 * 64 + 63 - i % 64], sizeof(Word)), "%s: element %d", name, i);
    printf("%s\n", name);
}

int main() {
    test<unsigned>("4 bytes");
    test<uint2>("8 bytes");
    test<uint4>("16 bytes");
    std::vector<char> bytes(1024);
    for (int i = 0; i < 1024; i++) bytes[i] = char(i % 100 + 1);
    Array<char> in(bytes), out(1024);
    for (int count : {1024, 1000, 17, 16, 1, 0}) {
        zeroes<<<1, 64>>>(in, out, count);
        RAN();
        auto got = out.host();
        for (int i = 0; i < 1024; i++) CHECK(got[i] == (i < count ? bytes[i] : 0), "of %d bytes: %d is %d", count, i, got[i]);
    }
    printf("zeroes behind\n");
    const int count = 40;
    std::vector<float> values(count * 128);
    for (size_t i = 0; i < values.size(); i++) values[i] = float(i % 1009);
    Array<float> from(values), to(values.size());
    to.clear();
    rows<<<1, 32>>>((const float4 *)(float *)from, (float4 *)(float *)to, count);
    RAN();
    auto got = to.host();
    for (int row = 1; row + 1 < count; row++)
        for (int i = 0; i < 128; i++) {
            int turned = (31 - i / 4) * 4 + i % 4;
            float sum = values[(row - 1) * 128 + turned] + values[row * 128 + i] + values[(row + 1) * 128 + i];
            CHECK(got[row * 128 + i] == sum, "row %d, %d: %g, not %g", row, i, got[row * 128 + i], sum);
        }
    printf("a ring: %016llx\n", (unsigned long long)check::hash(got));
    return check::pass();
}
