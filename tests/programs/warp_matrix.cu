// needs: plain
// Warp-synchronous code without block barriers: 32 × 32 integer matrix product with rows in
// registers, exchanged by shuffles; syncwarp with partial masks; nanosleep, clocks that advance.
#include "check.h"

__global__ void multiply(const int *a, const int *b, int *c) {
    int lane = threadIdx.x, row[32], sum[32];
#pragma unroll
    for (int k = 0; k < 32; k++) row[k] = b[k * 32 + lane];
    for (int i = 0; i < 32; i++) {
        int mine = a[i * 32 + lane], total = 0;
#pragma unroll
        for (int k = 0; k < 32; k++) total += __shfl_sync(~0u, mine, k) * row[k];
        sum[i] = total;
    }
    for (int i = 0; i < 32; i++) c[i * 32 + lane] = sum[i];
}

__global__ void halves(int *out) {
    __shared__ int s[32];
    int lane = threadIdx.x;
    s[lane] = lane;
    __syncwarp();
    if (lane < 16) {
        for (int k = 8; k > 0; k /= 2) {
            if (lane < k) s[lane] += s[lane + k];
            __syncwarp(0x0000ffff);
        }
    } else {
        for (int k = 0; k < 20; k++) {
            int next = s[16 + (lane + 1) % 16];
            __syncwarp(0xffff0000);
            s[lane] = next;
            __syncwarp(0xffff0000);
        }
    }
    __syncwarp();
    out[lane] = s[lane == 0 ? 0 : 16 + lane % 16];
}

__global__ void clocks(int *out) {
    long long start = clock64();
    unsigned long long began;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(began));
    unsigned long long now = began;
    while (now - began < 200000) {
        __nanosleep(1000);
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    }
    *out = clock64() > start && now > began;
}

int main() {
    std::vector<int> a(1024), b(1024);
    Random random(75);
    for (int i = 0; i < 1024; i++) a[i] = int(random.below(2000)) - 1000, b[i] = int(random.below(2000)) - 1000;
    Array<int> da(a), db(b), c(1024);
    multiply<<<1, 32>>>(da, db, c);
    RAN();
    auto got = c.host();
    for (int i = 0; i < 32; i++)
        for (int j = 0; j < 32; j++) {
            int sum = 0;
            for (int k = 0; k < 32; k++) sum += a[i * 32 + k] * b[k * 32 + j];
            CHECK(got[i * 32 + j] == sum, "%d, %d: %d, not %d", i, j, got[i * 32 + j], sum);
        }
    halves<<<1, 32>>>(c);
    RAN();
    auto h = c.host();
    CHECK(h[0] == 120, "sum %d", h[0]);
    for (int lane = 1; lane < 32; lane++) CHECK(h[lane] == 16 + (lane % 16 + 20) % 16, "lane %d: %d", lane, h[lane]);
    clocks<<<1, 1>>>(c);
    RAN();
    CHECK(c.host()[0] == 1, "the clocks stand still");
    printf("%016llx\n", (unsigned long long)check::hash(got));
    return check::pass();
}
