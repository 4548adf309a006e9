// needs: plain
// Every 32-bit atomic on global and shared memory, with contention; returned values are distinct
// where the operation implies it.
#include <algorithm>

#include "check.h"

__global__ void many(int *a, unsigned *u, int *tickets) {
    int i = blockIdx.x * blockDim.x + threadIdx.x, n = gridDim.x * blockDim.x;
    tickets[i] = atomicAdd(&a[0], 1);
    atomicSub(&a[1], i);
    atomicMin(&a[2], (i * 7919) % n - 50);
    atomicMax(&a[3], (i * 7919) % n - 50);
    atomicOr(&a[4], 1 << i % 31);
    atomicAnd(&a[5], ~(1 << i % 17));
    atomicXor(&a[6], i);
    tickets[n + i] = atomicExch(&a[7], i);
    atomicInc(&u[0], 99);
    atomicDec(&u[1], 99);
    atomicMin(&u[2], 4000000000u - i);
    atomicMax(&u[3], 3000000000u + i);
    int old = a[8], seen;
    do {
        seen = old;
        old = atomicCAS(&a[8], seen, seen + i % 5);
    } while (old != seen);
}

__global__ void in_shared(int *out) {
    __shared__ int s[6];
    if (threadIdx.x < 6) s[threadIdx.x] = threadIdx.x == 2 ? INT32_MAX : 0;
    __syncthreads();
    int i = threadIdx.x;
    atomicAdd(&s[0], i);
    atomicXor(&s[1], i * 3);
    atomicMin(&s[2], 1000 - i);
    atomicMax(&s[3], i ^ 21);
    if (i % 3 == 0) atomicAdd_block(&s[4], 1);
    int old;
    do old = s[5];
    while (atomicCAS(&s[5], old, old + 2) != old);
    __syncthreads();
    if (i < 6) out[blockIdx.x * 6 + i] = s[i];
}

int main() {
    const int grid = 12, threads = 96, n = grid * threads;
    Array<int> a(std::vector<int>{0, 0, INT32_MAX, INT32_MIN, 0, -1, 0, -1, 0}), tickets(2 * n), out(grid * 6);
    Array<unsigned> u(std::vector<unsigned>{0, 0, ~0u, 0});
    many<<<grid, threads>>>(a, u, tickets);
    RAN();
    auto got = a.host();
    auto gotu = u.host();
    auto t = tickets.host();
    int sum = 0, low = INT32_MAX, high = INT32_MIN, flips = 0, fives = 0;
    for (int i = 0; i < n; i++) {
        sum -= i;
        low = std::min(low, i * 7919 % n - 50);
        high = std::max(high, i * 7919 % n - 50);
        flips ^= i;
        fives += i % 5;
    }
    int exchanged = got[7];
    got[7] = 0;
    std::vector<int> expected = {n, sum, low, high, 0x7fffffff, ~0x1ffff, flips, 0, fives};
    for (int k = 0; k < 9; k++) CHECK(got[k] == expected[k], "word %d is %d, not %d", k, got[k], expected[k]);
    std::vector<unsigned> expectedu = {unsigned(n % 100), unsigned((100 - n % 100) % 100), 4000000000u - (n - 1), 3000000000u + (n - 1)};
    for (int k = 0; k < 4; k++) CHECK(gotu[k] == expectedu[k], "unsigned %d is %u, not %u", k, gotu[k], expectedu[k]);
    // Tickets are 0 to n - 1, and every exchanged value is handed on just once.
    std::sort(t.begin(), t.begin() + n);
    t.push_back(exchanged);
    std::sort(t.begin() + n, t.end());
    for (int i = 0; i < n; i++) CHECK(t[i] == i, "ticket %d is %d", i, t[i]);
    for (int i = 0; i <= n; i++) CHECK(t[n + i] == i - 1, "exchanged value %d is %d", i, t[n + i]);

    in_shared<<<grid, threads>>>(out);
    RAN();
    auto s = out.host();
    int xors = 0, top = 0;
    for (int i = 0; i < threads; i++) xors ^= i * 3, top = std::max(top, i ^ 21);
    int in_block[6] = {threads * (threads - 1) / 2, xors, 1000 - (threads - 1), top, threads / 3, 2 * threads};
    for (int i = 0; i < grid * 6; i++) CHECK(s[i] == in_block[i % 6], "block %d word %d is %d, not %d", i / 6, i % 6, s[i], in_block[i % 6]);
    printf("%d %u %d\n", sum, gotu[0], fives);
    return check::pass();
}
