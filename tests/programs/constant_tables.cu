// needs: plain
// 60 KiB of constant memory, read at one address and at a different one in each lane; CRC-32 by
// table against the bitwise definition.
#include "check.h"

__constant__ unsigned crc_table[8][256];
__constant__ float large[12 * 1024];

__global__ void crc(const unsigned char *data, unsigned *out, int length) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    const unsigned char *p = data + i * length;
    unsigned value = ~0u;
    int k = 0;
    for (; k + 4 <= length; k += 4) {
        unsigned word = value ^ (p[k] | p[k + 1] << 8 | p[k + 2] << 16 | unsigned(p[k + 3]) << 24);
        value = crc_table[3][word & 255] ^ crc_table[2][word >> 8 & 255] ^ crc_table[1][word >> 16 & 255] ^ crc_table[0][word >> 24];
    }
    for (; k < length; k++) value = value >> 8 ^ crc_table[0][(value ^ p[k]) & 255];
    out[i] = ~value;
}

__global__ void sum(float *out) {
    float uniform = 0, spread = 0;
    for (int k = 0; k < 12 * 1024; k += 97) uniform += large[k];
    for (int k = threadIdx.x; k < 12 * 1024; k += blockDim.x) spread += large[k];
    atomicAdd(out, spread);
    if (threadIdx.x == 0) out[1] = uniform;
}

int main() {
    std::vector<unsigned> table(8 * 256);
    for (unsigned i = 0; i < 256; i++) {
        unsigned value = i;
        for (int bit = 0; bit < 8; bit++) value = value >> 1 ^ (value & 1 ? 0xedb88320u : 0);
        table[i] = value;
    }
    for (unsigned k = 1; k < 8; k++)
        for (unsigned i = 0; i < 256; i++) table[k * 256 + i] = table[(k - 1) * 256 + i] >> 8 ^ table[table[(k - 1) * 256 + i] & 255];
    OK(cudaMemcpyToSymbol(crc_table, table.data(), table.size() * sizeof(unsigned)));
    const int count = 256, length = 61;
    Random random(55);
    std::vector<unsigned char> data(count * length);
    for (auto &byte : data) byte = random.bits();
    memcpy(data.data(), "123456789", 9);
    Array<unsigned char> d(data);
    Array<unsigned> out(count);
    crc<<<2, 128>>>(d, out, length);
    RAN();
    auto got = out.host();
    for (int i = 0; i < count; i++) {
        unsigned value = ~0u;
        for (int k = 0; k < length; k++) {
            value ^= data[i * length + k];
            for (int bit = 0; bit < 8; bit++) value = value >> 1 ^ (value & 1 ? 0xedb88320u : 0);
        }
        CHECK(got[i] == ~value, "string %d: %08x, not %08x", i, got[i], ~value);
    }
    crc<<<1, 1>>>(d, out, 9);
    RAN();
    CHECK(out.host()[0] == 0xcbf43926, "%08x", out.host()[0]);

    std::vector<float> values(12 * 1024);
    float uniform = 0, spread = 0;
    for (int k = 0; k < 12 * 1024; k++) values[k] = float(k % 31);
    for (int k = 0; k < 12 * 1024; k++) spread += values[k];
    for (int k = 0; k < 12 * 1024; k += 97) uniform += values[k];
    OK(cudaMemcpyToSymbol(large, values.data(), values.size() * sizeof(float)));
    Array<float> sums(2);
    sums.clear();
    sum<<<1, 96>>>(sums);
    RAN();
    auto s = sums.host();
    CHECK(s[0] == spread && s[1] == uniform, "%g and %g, not %g and %g", s[0], s[1], spread, uniform);
    printf("%016llx %g %g\n", (unsigned long long)check::hash(got), s[0], s[1]);
    return check::pass();
}
