// needs: plain
// Kernel parameters of more than 4 KB, up to 32,764 bytes.
#include "check.h"

template <int bytes> struct Block {
    unsigned words[bytes / 4];
};

template <int bytes> __global__ void kernel(const __grid_constant__ Block<bytes> block, unsigned *out) {
    unsigned sum = 0;
    for (int i = threadIdx.x; i < bytes / 4; i += blockDim.x) sum += block.words[i] ^ i;
    atomicAdd(out, sum);
}

template <int bytes> void test() {
    static Block<bytes> block;
    unsigned sum = 0;
    for (unsigned i = 0; i < bytes / 4; i++) sum += (block.words[i] = i * 2654435761u) ^ i;
    Array<unsigned> out(1);
    out.clear();
    kernel<<<1, 64>>>(block, (unsigned *)out);
    RAN();
    CHECK(out.host()[0] == sum, "%d bytes: %u, not %u", bytes, out.host()[0], sum);
    printf("%d bytes: %u\n", bytes, sum);
}

int main() {
    test<4080>();
    test<8000>();
    test<32744>();
    return check::pass();
}
