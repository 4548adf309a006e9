// needs: plain
// Random numbers by counting (Philox 4 × 32, ten rounds): the generator's published test vectors; the same stream whatever the
// grid; a skip of 2^64; counts in a circle, sums of dice, and a shuffle by sorting, all reproduced on the host.
#include "check.h"

struct Philox {
    uint32_t counter[4], key[2];
    __host__ __device__ void round(uint32_t (&c)[4], const uint32_t (&k)[2]) const {
#ifdef __CUDA_ARCH__
        uint32_t high0 = __umulhi(0xD2511F53u, c[0]), high1 = __umulhi(0xCD9E8D57u, c[2]);
#else
        uint32_t high0 = uint32_t(0xD2511F53ull * c[0] >> 32), high1 = uint32_t(0xCD9E8D57ull * c[2] >> 32);
#endif
        uint32_t low0 = 0xD2511F53u * c[0], low1 = 0xCD9E8D57u * c[2];
        uint32_t next[4] = {high1 ^ c[1] ^ k[0], low1, high0 ^ c[3] ^ k[1], low0};
        for (int i = 0; i < 4; i++) c[i] = next[i];
    }
    __host__ __device__ void numbers(uint32_t (&out)[4]) const {
        uint32_t c[4] = {counter[0], counter[1], counter[2], counter[3]}, k[2] = {key[0], key[1]};
        for (int i = 0; i < 10; i++) {
            round(c, k);
            k[0] += 0x9E3779B9u;
            k[1] += 0xBB67AE85u;
        }
        for (int i = 0; i < 4; i++) out[i] = c[i];
    }
    // Some numbers further on, in blocks of four.
    __host__ __device__ Philox skipped(uint64_t low, uint64_t high) const {
        Philox it = *this;
        uint64_t a = uint64_t(counter[1]) << 32 | counter[0], b = uint64_t(counter[3]) << 32 | counter[2];
        uint64_t sum = a + low;
        b += high + (sum < a);
        it.counter[0] = uint32_t(sum), it.counter[1] = uint32_t(sum >> 32), it.counter[2] = uint32_t(b), it.counter[3] = uint32_t(b >> 32);
        return it;
    }
};

__global__ void vectors(const Philox *generators, uint32_t *out) {
    uint32_t four[4];
    generators[threadIdx.x].numbers(four);
    for (int i = 0; i < 4; i++) out[threadIdx.x * 4 + i] = four[i];
}

__global__ void experiments(Philox from, int count, unsigned long long *inside, unsigned *dice, uint64_t *order) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) {
        uint32_t four[4];
        // Half of them beyond 2^64.
        from.skipped(i / 2, i % 2).numbers(four);
        uint64_t x = four[0] >> 1, y = four[1] >> 1;
        if (x * x + y * y < 1ull << 62) atomicAdd(inside, 1ull);
        atomicAdd(&dice[four[2] % 6 + four[3] % 6], 1u);
        order[i] = uint64_t(four[2]) << 32 | unsigned(i);
    }
}

int main() {
    std::vector<Philox> known = {
        {{0, 0, 0, 0}, {0, 0}},
        {{~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}},
    };
    const uint32_t expected[] = {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8, 0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd, 0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1};
    Array<Philox> generators(known);
    Array<uint32_t> out(12);
    vectors<<<1, 3>>>(generators, out);
    RAN();
    auto got = out.host();
    for (int i = 0; i < 12; i++) CHECK(got[i] == expected[i], "number %d: %08x, not %08x", i, got[i], expected[i]);
    printf("vectors\n");

    const int count = 20000;
    Philox from = {{~0u - 100, ~0u, 5, 0}, {12345, 678}};
    unsigned long long circle = 0;
    std::vector<unsigned> sums(11, 0);
    std::vector<uint64_t> order(count);
    for (int i = 0; i < count; i++) {
        uint32_t four[4];
        from.skipped(i / 2, i % 2).numbers(four);
        uint64_t x = four[0] >> 1, y = four[1] >> 1;
        circle += x * x + y * y < 1ull << 62;
        sums[four[2] % 6 + four[3] % 6]++;
        order[i] = uint64_t(four[2]) << 32 | unsigned(i);
    }
    for (int grid : {1, 7, 64}) {
        Array<unsigned long long> inside(1);
        Array<unsigned> dice(11);
        Array<uint64_t> keys(count);
        inside.clear();
        dice.clear();
        experiments<<<grid, 96>>>(from, count, inside, dice, keys);
        RAN();
        CHECK(inside.host()[0] == circle && dice.host() == sums && keys.host() == order, "%d blocks: %llu, not %llu", grid, inside.host()[0], circle);
    }
    printf("%llu of %d inside, %016llx\n", circle, count, (unsigned long long)check::hash(order));
    return check::pass();
}
