// needs: plain
// memset of odd sizes at odd addresses, sync and async; copies between device arrays, overlapping
// nothing, of 0 bytes, at odd offsets; both directions of 16 MiB.
#include "check.h"

int main() {
    Random random(53);
    const int size = 5000;
    Array<unsigned char> d(size);
    std::vector<unsigned char> model(size);
    d.clear();
    cudaStream_t stream;
    OK(cudaStreamCreate(&stream));
    for (int round = 0; round < 60; round++) {
        int at = random.below(size), count = random.below(size - at + 1), value = random.below(256);
        if (round % 2) OK(cudaMemset(d + at, value, count));
        else OK(cudaMemsetAsync(d + at, value, count, stream));
        memset(model.data() + at, value, count);
        int from = random.below(size / 2), to = size / 2 + random.below(size / 2), n = random.below(std::min(size / 2 - from, size - to) + 1);
        if (round % 3) OK(cudaMemcpy(d + to, d + from, n, cudaMemcpyDeviceToDevice));
        else OK(cudaMemcpyAsync(d + to, d + from, n, cudaMemcpyDefault, stream));
        memcpy(model.data() + to, model.data() + from, n);
        OK(cudaStreamSynchronize(stream));
        OK(cudaDeviceSynchronize());
    }
    auto got = d.host();
    for (int i = 0; i < size; i++) CHECK(got[i] == model[i], "byte %d is %d, not %d", i, got[i], model[i]);

    const int large = 4 << 20;
    std::vector<unsigned> words(large);
    for (unsigned i = 0; i < large; i++) words[i] = i * 2654435761u;
    Array<unsigned> a(words), b(large);
    OK(cudaMemcpy(b, a, a.bytes(), cudaMemcpyDeviceToDevice));
    CHECK(b.host() == words, "16 MiB came back changed");
    std::vector<unsigned char> part(12345);
    OK(cudaMemcpy(part.data(), reinterpret_cast<unsigned char *>((unsigned *)b) + 7, part.size(), cudaMemcpyDeviceToHost));
    CHECK(!memcmp(part.data(), reinterpret_cast<unsigned char *>(words.data()) + 7, part.size()), "an odd part differs");
    OK(cudaStreamDestroy(stream));
    printf("%016llx\n", (unsigned long long)check::hash(got));
    return check::pass();
}
