// needs: plain
// 64-bit atomics on global and shared memory, and system scope.
#include <algorithm>

#include "check.h"

typedef unsigned long long u64;

__global__ void many(u64 *a, long long *b, u64 *tickets) {
    __shared__ u64 s[2];
    if (threadIdx.x < 2) s[threadIdx.x] = 0;
    __syncthreads();
    u64 i = blockIdx.x * blockDim.x + threadIdx.x, big = i << 33 | i;
    tickets[i] = atomicAdd(&a[0], 1ull << 32);
    atomicAdd_system(&a[1], big);
    atomicOr(&a[2], 1ull << i % 61);
    atomicAnd(&a[3], ~(1ull << i % 50));
    atomicXor(&a[4], big);
    atomicMin(&a[5], ~0ull - big);
    atomicMax(&a[6], big);
    atomicMin(&b[0], 5 - (long long)big);
    atomicMax(&b[1], (long long)big - (1ll << 60));
    u64 old = a[7], seen;
    do {
        seen = old;
        old = atomicCAS(&a[7], seen, seen + big % 1000003);
    } while (old != seen);
    atomicAdd(&s[0], big);
    atomicMax(&s[1], big ^ 12345);
    __syncthreads();
    if (threadIdx.x == 0) {
        atomicAdd(&a[8], s[0]);
        atomicMax(&a[9], s[1]);
    }
}

int main() {
    const int grid = 9, threads = 128, n = grid * threads;
    Array<u64> a(std::vector<u64>{7, 0, 0, ~0ull, 0, ~0ull, 0, 0, 0, 0}), tickets(n);
    Array<long long> b(std::vector<long long>{INT64_MAX, INT64_MIN});
    many<<<grid, threads>>>(a, b, tickets);
    RAN();
    std::vector<u64> expected = {7 + (u64(n) << 32), 0, (1ull << 61) - 1, ~((1ull << 50) - 1), 0, ~0ull, 0, 0, 0, 0};
    long long low = INT64_MAX, high = INT64_MIN;
    for (u64 i = 0; i < n; i++) {
        u64 big = i << 33 | i;
        expected[1] += big, expected[8] += big;
        expected[4] ^= big;
        expected[5] = std::min(expected[5], ~0ull - big);
        expected[6] = std::max(expected[6], big);
        expected[7] += big % 1000003;
        expected[9] = std::max(expected[9], big ^ 12345);
        low = std::min(low, 5 - (long long)big);
        high = std::max(high, (long long)big - (1ll << 60));
    }
    auto got = a.host();
    auto gotb = b.host();
    for (int k = 0; k < 10; k++) CHECK(got[k] == expected[k], "word %d is %llx, not %llx", k, got[k], expected[k]);
    CHECK(gotb[0] == low && gotb[1] == high, "%lld and %lld, not %lld and %lld", gotb[0], gotb[1], low, high);
    auto t = tickets.host();
    std::sort(t.begin(), t.end());
    for (u64 i = 0; i < n; i++) CHECK(t[i] == 7 + (i << 32), "ticket %llu is %llx", i, t[i]);
    printf("%llx %llx\n", got[1], got[7]);
    return check::pass();
}
