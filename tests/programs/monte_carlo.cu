// needs: plain
// π by Monte Carlo with Philox 4×32-10, a counter-based generator: device and host draw the same
// numbers, so the count of hits is equal, and the published test vector holds on both.
#include "check.h"

__host__ __device__ inline unsigned high_half(unsigned a, unsigned b) {
#ifdef __CUDA_ARCH__
    return __umulhi(a, b);
#else
    return unsigned(uint64_t(a) * b >> 32);
#endif
}

__host__ __device__ inline uint4 philox(uint4 counter, uint2 key) {
    for (int round = 0; round < 10; round++) {
        unsigned high0 = high_half(0xD2511F53u, counter.x), low0 = 0xD2511F53u * counter.x;
        unsigned high1 = high_half(0xCD9E8D57u, counter.z), low1 = 0xCD9E8D57u * counter.z;
        counter = make_uint4(high1 ^ counter.y ^ key.x, low1, high0 ^ counter.w ^ key.y, low0);
        key.x += 0x9E3779B9u;
        key.y += 0xBB67AE85u;
    }
    return counter;
}

__host__ __device__ inline int hits(uint4 bits) {
    // 16-bit coordinates: exact in integers on both sides.
    auto inside = [](unsigned word) {
        unsigned long long x = word & 0xffff, y = word >> 16;
        return x * x + y * y < 0x100000000ull;
    };
    return inside(bits.x) + inside(bits.y) + inside(bits.z) + inside(bits.w);
}

__global__ void draw(unsigned long long *total, int rounds, uint2 key) {
    unsigned thread = blockIdx.x * blockDim.x + threadIdx.x;
    int own = 0;
    for (int round = 0; round < rounds; round++) own += hits(philox(make_uint4(thread, round, 0, 0), key));
    atomicAdd(total, own);
}

__global__ void one(uint4 counter, uint2 key, uint4 *out) { *out = philox(counter, key); }

int main() {
    Array<uint4> out(1);
    uint4 counter = {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344};
    one<<<1, 1>>>(counter, make_uint2(0xa4093822, 0x299f31d0), out);
    RAN();
    uint4 got = out.host()[0];
    CHECK(got.x == 0xd16cfe09 && got.y == 0x94fdcceb && got.z == 0x5001e420 && got.w == 0x24126ea1, "%08x %08x %08x %08x",
          got.x, got.y, got.z, got.w);

    const int grid = 32, threads = 128, rounds = 16;
    Array<unsigned long long> total(1);
    total.clear();
    draw<<<grid, threads>>>(total, rounds, make_uint2(42, 7));
    RAN();
    unsigned long long expected = 0, found = total.host()[0];
    for (int t = 0; t < grid * threads; t++)
        for (int r = 0; r < rounds; r++) expected += hits(philox(make_uint4(t, r, 0, 0), make_uint2(42, 7)));
    CHECK(found == expected, "%llu, not %llu", found, expected);
    double samples = 4.0 * grid * threads * rounds, pi = 4 * found / samples;
    CHECK(std::fabs(pi - 3.14159265) < 0.02, "%g", pi);
    printf("%llu hits of %.0f: %.5f\n", found, samples, pi);
    return check::pass();
}
