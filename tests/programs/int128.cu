// needs: plain
// 128-bit integers: carries, products, shifts, division, comparison.
#include "check.h"

typedef __int128 i128;
typedef unsigned __int128 u128;
const int operations = 9;

template <class T> __host__ __device__ void compute(u128 a, u128 b, int shift, T *o) {
    o[0] = a + b;
    o[1] = a - b;
    o[2] = a * b;
    o[3] = a << shift;
    o[4] = a >> shift;
    o[5] = u128(i128(a) >> shift);
    o[6] = b ? a / b : 0;
    o[7] = b ? a % b : 0;
    o[8] = (a < b) | (i128(a) < i128(b)) << 1 | (a == b) << 2;
}

__global__ void kernel(const u128 *x, const u128 *y, u128 *out, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) compute(x[i], y[i], i % 128, out + i * operations);
}

int main() {
    Random random(31);
    const int count = 600;
    std::vector<u128> x(count), y(count);
    for (int i = 0; i < count; i++) {
        x[i] = (u128(random.wide()) << 64 | random.wide()) >> random.below(128);
        y[i] = (u128(random.wide()) << 64 | random.wide()) >> random.below(128);
    }
    x[0] = y[0] = ~u128(0);
    y[1] = 0;
    Array<u128> dx(x), dy(y), out(count * operations);
    kernel<<<blocks(count, 64), 64>>>(dx, dy, out, count);
    RAN();
    auto got = out.host();
    for (int i = 0; i < count; i++) {
        u128 expected[operations];
        compute(x[i], y[i], i % 128, expected);
        for (int k = 0; k < operations; k++)
            CHECK(got[i * operations + k] == expected[k], "operation %d of pair %d: %016llx%016llx", k, i,
                  (unsigned long long)(got[i * operations + k] >> 64), (unsigned long long)got[i * operations + k]);
    }
    printf("%016llx\n", (unsigned long long)check::hash(got));
    return check::pass();
}
