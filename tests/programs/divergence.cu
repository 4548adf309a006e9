// needs: plain
// Divergence torture: nested and crossed branches, breaks out of two loops, early returns, switch
// with fall-through, goto into a shared tail, loops whose trip count differs in each lane.
#include "check.h"

__host__ __device__ inline unsigned torture(unsigned seed, int lane) {
    unsigned value = seed, tail = 0;
    for (int i = 0; i < int(seed % 17) + lane % 5; i++) {
        if (value & 1) {
            if (value & 2) {
                value = value * 5 + 1;
                if (value % 11 == 3) continue;
            } else {
                value ^= value >> 3;
                if (value % 13 == 5) break;
            }
        } else {
            switch (value >> 1 & 7) {
            case 0: value += 3;
            case 1: value ^= 0x55; break;
            case 2:
            case 3:
                for (unsigned k = 0; k < (value & 15); k++) {
                    value += k * k;
                    if (value % 19 == 7) goto out;
                    if (value % 7 == 1) break;
                }
                break;
            case 4: value = ~value; break;
            case 5:
                if (lane % 3 == 0) return value + tail;
                value -= 77;
                break;
            default: value = value >> 1 | value << 31;
            }
        }
        unsigned steps = 0;
        do {
            tail = tail * 3 + (value & 3);
            value += tail | 1;
            if (++steps > 6) break;
        } while (value % 4);
        while (value > 0x80000000u) value /= 3;
    }
out:
    return value ^ tail * 31;
}

__global__ void kernel(const unsigned *seeds, unsigned *out, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) out[i] = torture(seeds[i], i);
}

// Lanes leave one after another while the others go on meeting at the warp's barrier.
__global__ void stairs(int *out) {
    int lane = threadIdx.x % 32, sum = 0;
    unsigned alive = ~0u;
    for (int round = 0; round < 32; round++) {
        alive = __ballot_sync(alive, lane >= round);
        if (lane < round) break;
        sum += __popc(alive);
    }
    out[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}

// Barriers inside loops whose condition is the same for the block but not known to be.
__global__ void barriers(int *out, const int *rounds) {
    __shared__ int turn;
    if (threadIdx.x == 0) turn = 0;
    __syncthreads();
    int n = rounds[blockIdx.x], seen = 0;
    for (int k = 0; k < n; k++) {
        if (threadIdx.x == k % blockDim.x) turn += k;
        __syncthreads();
        seen = seen * 7 + turn;
        __syncthreads();
    }
    out[blockIdx.x * blockDim.x + threadIdx.x] = seen;
}

int main() {
    const int count = 8000;
    Random random(49);
    std::vector<unsigned> seeds(count);
    for (unsigned &seed : seeds) seed = random.bits();
    Array<unsigned> d(seeds), out(count);
    kernel<<<blocks(count, 128), 128>>>(d, out, count);
    RAN();
    auto got = out.host();
    for (int i = 0; i < count; i++)
        CHECK(got[i] == torture(seeds[i], i), "seed %u, lane %d: %u, not %u", seeds[i], i, got[i], torture(seeds[i], i));

    Array<int> sums(128);
    stairs<<<2, 64>>>(sums);
    RAN();
    auto s = sums.host();
    for (int i = 0; i < 128; i++) {
        int expected = 0;
        for (int round = 0; round <= i % 32; round++) expected += 32 - round;
        CHECK(s[i] == expected, "stairs, thread %d: %d, not %d", i, s[i], expected);
    }

    std::vector<int> rounds = {0, 1, 5, 40};
    Array<int> drounds(rounds), seen(4 * 96);
    barriers<<<4, 96>>>(seen, drounds);
    RAN();
    auto b = seen.host();
    for (int block = 0; block < 4; block++) {
        int turn = 0;
        unsigned expected = 0;
        for (int k = 0; k < rounds[block]; k++) expected = expected * 7 + unsigned(turn += k);
        for (int i = 0; i < 96; i++) CHECK(b[block * 96 + i] == int(expected), "block %d, thread %d: %d", block, i, b[block * 96 + i]);
    }
    printf("%016llx\n", (unsigned long long)check::hash(got));
    return check::pass();
}
