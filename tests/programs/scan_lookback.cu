// needs: plain
// Prefix sums in one pass with decoupled look-back: a block waits, through volatile words and
// fences, for the sums of blocks with lower tickets, which must make progress meanwhile.
#include "check.h"

const int threads = 64;
enum : unsigned { nothing = 0, own_sum = 1, whole_sum = 2 };

__global__ void scan(const unsigned *in, unsigned *out, int count, unsigned *ticket,
                     volatile unsigned long long *state) {
    __shared__ unsigned values[threads], tile, before;
    if (threadIdx.x == 0) tile = atomicAdd(ticket, 1);
    __syncthreads();
    int i = tile * threads + threadIdx.x;
    unsigned mine = i < count ? in[i] : 0;
    values[threadIdx.x] = mine;
    __syncthreads();
    for (int offset = 1; offset < threads; offset *= 2) {
        unsigned left = threadIdx.x >= offset ? values[threadIdx.x - offset] : 0;
        __syncthreads();
        values[threadIdx.x] += left;
        __syncthreads();
    }
    if (threadIdx.x == threads - 1) {
        unsigned long long sum = values[threads - 1];
        state[tile] = (tile == 0 ? whole_sum : own_sum) | sum << 32;
        __threadfence();
        unsigned prefix = 0;
        for (int k = int(tile) - 1; k >= 0; k--) {
            unsigned long long seen;
            do seen = state[k];
            while (unsigned(seen) == nothing);
            prefix += unsigned(seen >> 32);
            if (unsigned(seen) == whole_sum) break;
        }
        state[tile] = whole_sum | (unsigned long long)(prefix + unsigned(sum)) << 32;
        before = prefix;
    }
    __syncthreads();
    if (i < count) out[i] = before + values[threadIdx.x];
}

int main() {
    const int count = 20011, grid = blocks(count, threads);
    Random random(5);
    std::vector<unsigned> values(count);
    for (unsigned &value : values) value = random.below(1000);
    Array<unsigned> in(values), out(count), ticket(1);
    Array<unsigned long long> state(grid);
    for (int round = 0; round < 3; round++) {
        ticket.clear();
        state.clear();
        scan<<<grid, threads>>>(in, out, count, ticket, state);
        RAN();
        auto got = out.host();
        unsigned sum = 0;
        for (int i = 0; i < count; i++) {
            sum += values[i];
            CHECK(got[i] == sum, "element %d is %u, not %u", i, got[i], sum);
        }
        printf("round %d: total %u\n", round, got[count - 1]);
    }
    return check::pass();
}
