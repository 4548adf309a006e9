// needs: plain
// SHA-256 of many messages of different length, against the host and the standard's example.
#include "check.h"

__host__ __device__ inline unsigned rotate(unsigned x, int n) { return x >> n | x << (32 - n); }

__host__ __device__ inline void sha256(const unsigned char *data, unsigned length, const unsigned *k, unsigned *hash) {
    const unsigned start[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    for (int i = 0; i < 8; i++) hash[i] = start[i];
    unsigned total = (length + 9 + 63) / 64 * 64;
    for (unsigned base = 0; base < total; base += 64) {
        unsigned w[64];
        for (int i = 0; i < 16; i++) {
            w[i] = 0;
            for (unsigned b = 0; b < 4; b++) {
                unsigned at = base + i * 4 + b;
                unsigned byte = at < length ? data[at] : at == length ? 0x80 : at >= total - 4 ? (length * 8) >> 8 * (total - 1 - at) & 255 : 0;
                w[i] = w[i] << 8 | byte;
            }
        }
        for (int i = 16; i < 64; i++)
            w[i] = w[i - 16] + w[i - 7] + (rotate(w[i - 15], 7) ^ rotate(w[i - 15], 18) ^ w[i - 15] >> 3) +
                   (rotate(w[i - 2], 17) ^ rotate(w[i - 2], 19) ^ w[i - 2] >> 10);
        unsigned v[8];
        for (int i = 0; i < 8; i++) v[i] = hash[i];
        for (int i = 0; i < 64; i++) {
            unsigned t1 = v[7] + (rotate(v[4], 6) ^ rotate(v[4], 11) ^ rotate(v[4], 25)) + ((v[4] & v[5]) ^ (~v[4] & v[6])) + k[i] + w[i];
            unsigned t2 = (rotate(v[0], 2) ^ rotate(v[0], 13) ^ rotate(v[0], 22)) + ((v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]));
            for (int j = 7; j > 0; j--) v[j] = v[j - 1];
            v[4] += t1;
            v[0] = t1 + t2;
        }
        for (int i = 0; i < 8; i++) hash[i] += v[i];
    }
}

__constant__ unsigned constants[64];

__global__ void kernel(const unsigned char *data, const int *starts, unsigned *hashes, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    unsigned hash[8];
    sha256(data + starts[i], starts[i + 1] - starts[i], constants, hash);
    for (int k = 0; k < 8; k++) hashes[i * 8 + k] = hash[k];
}

int main() {
    // The first 32 bits of the fractional parts of the cube roots of the first 64 primes.
    std::vector<unsigned> k;
    for (int n = 2; k.size() < 64; n++) {
        bool prime = true;
        for (int d = 2; d * d <= n; d++) prime = prime && n % d;
        long double root = std::cbrt((long double)n);
        if (prime) k.push_back(unsigned((unsigned long long)((root - std::floor(root)) * 4294967296.0L)));
    }
    OK(cudaMemcpyToSymbol(constants, k.data(), 256));
    const int count = 300;
    std::vector<unsigned char> data = {'a', 'b', 'c'};
    std::vector<int> starts = {0, 3};
    Random random(63);
    for (int i = 1; i < count; i++) {
        for (int n = i % 131; n > 0; n--) data.push_back((unsigned char)random.bits());
        starts.push_back(int(data.size()));
    }
    Array<unsigned char> d(data);
    Array<int> dstarts(starts);
    Array<unsigned> hashes(count * 8);
    kernel<<<blocks(count, 64), 64>>>(d, dstarts, hashes, count);
    RAN();
    auto got = hashes.host();
    for (int i = 0; i < count; i++) {
        unsigned expected[8];
        sha256(data.data() + starts[i], starts[i + 1] - starts[i], k.data(), expected);
        CHECK(!memcmp(&got[i * 8], expected, 32), "message %d of %d bytes: %08x…", i, starts[i + 1] - starts[i], got[i * 8]);
    }
    CHECK(got[0] == 0xba7816bf && got[7] == 0xf20015ad, "abc: %08x … %08x", got[0], got[7]);
    printf("%08x %016llx\n", got[0], (unsigned long long)check::hash(got));
    return check::pass();
}
