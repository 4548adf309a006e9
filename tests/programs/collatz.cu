// needs: plain
// Loops whose length no lane can foretell: steps to 1 of the 3n + 1 problem, in 64 bits.
#include "check.h"

__host__ __device__ inline int steps(unsigned long long n) {
    int count = 0;
    for (; n != 1; count++) n = n % 2 ? 3 * n + 1 : n / 2;
    return count;
}

__global__ void kernel(int *out, unsigned long long *longest, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    out[i] = steps(i + 1);
    atomicMax(longest, (unsigned long long)out[i] << 32 | (i + 1));
}

int main() {
    const int count = 20000;
    Array<int> out(count);
    Array<unsigned long long> longest(1);
    longest.clear();
    kernel<<<blocks(count, 256), 256>>>(out, longest, count);
    RAN();
    auto got = out.host();
    for (int i = 0; i < count; i++) CHECK(got[i] == steps(i + 1), "%d takes %d steps, not %d", i + 1, got[i], steps(i + 1));
    unsigned long long top = longest.host()[0];
    CHECK(unsigned(top) == 17673 && top >> 32 == 278, "%u takes %u steps", unsigned(top), unsigned(top >> 32));
    printf("%u takes %u steps\n", unsigned(top), unsigned(top >> 32));
    return check::pass();
}
