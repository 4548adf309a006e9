// needs: sm_80
// nvcc: -gencode arch=compute_80,code=compute_80
// Warps of a block, and lanes of a warp, that wait for each other without a barrier of all: a chain of warps by
// flags in shared memory, a ring of queues between producers and consumers, lanes that spin for the lane before them, a
// ticket lock of all threads, and named barriers in pairs.
#include "check.h"

constexpr int WARPS = 8;

// Each warp takes what the one before has left and adds its own.
__global__ void chain(int *out, int rounds) {
    __shared__ volatile int flag[WARPS], value[32];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (threadIdx.x < WARPS) flag[threadIdx.x] = 0;
    if (warp == 0) value[lane] = lane;
    __syncthreads();
    for (int round = 1; round <= rounds; round++) {
        int before = (warp + WARPS - 1) % WARPS, ready = warp == 0 ? round - 1 : round;
        if (lane == 0)
            while (flag[before] < ready) {}
        __syncwarp();
        __threadfence_block();
        value[lane] = value[lane] * 3 + warp;
        __threadfence_block();
        __syncwarp();
        if (lane == 0) flag[warp] = round;
    }
    __syncthreads();
    if (warp == 0) out[lane] = value[lane];
}

// Even warps put, odd ones take; a queue between each two.
__global__ void queues(unsigned long long *out, int items) {
    constexpr int ROOM = 4;
    __shared__ volatile int slots[WARPS / 2][ROOM];
    __shared__ unsigned head[WARPS / 2], tail[WARPS / 2];
    int warp = threadIdx.x / 32, queue = warp / 2;
    if (threadIdx.x < WARPS / 2) head[threadIdx.x] = tail[threadIdx.x] = 0;
    __syncthreads();
    if (threadIdx.x % 32) return;
    unsigned long long sum = 0;
    for (unsigned i = 0; i < unsigned(items); i++) {
        unsigned seen;
        if (warp % 2 == 0) {
            do asm volatile("ld.acquire.cta.shared.u32 %0, [%1];" : "=r"(seen) : "r"((unsigned)__cvta_generic_to_shared(&tail[queue])) : "memory");
            while (i - seen >= ROOM);
            slots[queue][i % ROOM] = i * i + queue;
            asm volatile("st.release.cta.shared.u32 [%0], %1;" ::"r"((unsigned)__cvta_generic_to_shared(&head[queue])), "r"(i + 1) : "memory");
        } else {
            do asm volatile("ld.acquire.cta.shared.u32 %0, [%1];" : "=r"(seen) : "r"((unsigned)__cvta_generic_to_shared(&head[queue])) : "memory");
            while (seen == i);
            sum = sum * 3 + slots[queue][i % ROOM];
            asm volatile("st.release.cta.shared.u32 [%0], %1;" ::"r"((unsigned)__cvta_generic_to_shared(&tail[queue])), "r"(i + 1) : "memory");
        }
    }
    if (warp % 2) out[queue] = sum;
}

// Lane after lane, backwards: each spins until its neighbour above is done.
__global__ void lanes(int *out) {
    __shared__ volatile int done[65];
    int t = threadIdx.x;
    done[t] = 0;
    if (t == 0) done[64] = 1000;
    __syncthreads();
    while (done[t + 1] == 0) {}
    __threadfence_block();
    int before = done[t + 1];
    done[t] = before + t;
    out[t] = before;
}

__global__ void tickets(int *out) {
    __shared__ unsigned next, serving;
    __shared__ volatile int order[256];
    if (threadIdx.x == 0) next = serving = 0;
    __syncthreads();
    unsigned mine = atomicAdd(&next, 1);
    while (atomicAdd(&serving, 0) != mine) {}
    __threadfence_block();
    order[mine] = mine ? order[mine - 1] + 1 : 1;
    __threadfence_block();
    atomicAdd(&serving, 1);
    __syncthreads();
    out[threadIdx.x] = order[threadIdx.x];
}

// Warps meet in pairs, and the pairs change from round to round.
__global__ void pairs(int *out, int rounds) {
    __shared__ int value[2][WARPS];
    int warp = threadIdx.x / 32, mine = warp;
    for (int round = 0; round < rounds; round++) {
        int bit = 1 << round % 3, partner = warp ^ bit, low = min(warp, partner);
        value[round % 2][warp] = mine;
        // A barrier for each pair, and 64 threads in it.
        asm volatile("bar.sync %0, 64;" ::"r"(1 + low) : "memory");
        mine = mine * 5 + value[round % 2][partner];
        asm volatile("bar.sync %0, 64;" ::"r"(1 + low) : "memory");
    }
    if (threadIdx.x % 32 == 0) out[warp] = mine;
}

int main() {
    Array<int> out(256);
    const int rounds = 20;
    chain<<<1, WARPS * 32>>>(out, rounds);
    RAN();
    auto got = out.host();
    for (int lane = 0; lane < 32; lane++) {
        unsigned value = lane;
        for (int i = 0; i < rounds * WARPS; i++) value = value * 3 + i % WARPS;
        CHECK(unsigned(got[lane]) == value, "chain %d: %d, not %d", lane, got[lane], int(value));
    }
    printf("a chain of warps\n");
    Array<unsigned long long> sums(WARPS / 2);
    queues<<<1, WARPS * 32>>>(sums, 200);
    RAN();
    auto sum = sums.host();
    for (int q = 0; q < WARPS / 2; q++) {
        unsigned long long expected = 0;
        for (int i = 0; i < 200; i++) expected = expected * 3 + i * i + q;
        CHECK(sum[q] == expected, "queue %d: %llu", q, sum[q]);
    }
    printf("queues\n");
    lanes<<<1, 64>>>(out);
    RAN();
    got = out.host();
    for (int t = 63, value = 1000; t >= 0; t--) {
        CHECK(got[t] == value, "lane %d: %d, not %d", t, got[t], value);
        value += t;
    }
    printf("lanes\n");
    tickets<<<1, 256>>>(out);
    RAN();
    got = out.host();
    for (int i = 0; i < 256; i++) CHECK(got[i] == i + 1, "ticket %d: %d", i, got[i]);
    printf("tickets\n");
    pairs<<<1, WARPS * 32>>>(out, 9);
    RAN();
    got = out.host();
    unsigned value[WARPS], before[WARPS];
    for (int w = 0; w < WARPS; w++) value[w] = w;
    for (int round = 0; round < 9; round++) {
        memcpy(before, value, sizeof value);
        for (int w = 0; w < WARPS; w++) value[w] = before[w] * 5 + before[w ^ 1 << round % 3];
    }
    for (int w = 0; w < WARPS; w++) CHECK(unsigned(got[w]) == value[w], "pair %d: %d, not %d", w, got[w], int(value[w]));
    printf("pairs %d\n", got[0]);
    return check::pass();
}
