// needs: plain
// Pitched memory and 2-D copies in all directions, sync and async, 2-D memset; what lies between
// rows stays as it was.
#include "check.h"

__global__ void add(unsigned char *data, size_t pitch, int width, int height) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y;
    if (x < width && y < height) data[y * pitch + x] += 1;
}

int main() {
    const int width = 301, height = 37, host_pitch = 320;
    unsigned char *a, *b;
    size_t pitch_a, pitch_b;
    OK(cudaMallocPitch(&a, &pitch_a, width, height));
    OK(cudaMallocPitch(&b, &pitch_b, width + 100, height));
    CHECK(pitch_a >= width && pitch_a % 32 == 0 && pitch_b >= width + 100, "pitches %zu, %zu", pitch_a, pitch_b);
    OK(cudaMemset(a, 0xee, pitch_a * height));
    OK(cudaMemset(b, 0xdd, pitch_b * height));
    std::vector<unsigned char> from(host_pitch * height), to(host_pitch * height, 0x77);
    Random random(51);
    for (auto &byte : from) byte = random.bits();

    OK(cudaMemcpy2D(a, pitch_a, from.data(), host_pitch, width, height, cudaMemcpyHostToDevice));
    add<<<dim3(3, height), 128>>>(a, pitch_a, width, height);
    OK(cudaMemcpy2D(b + 50, pitch_b, a, pitch_a, width, height, cudaMemcpyDeviceToDevice));
    OK(cudaMemcpy2D(to.data(), host_pitch, b + 50, pitch_b, width, height, cudaMemcpyDeviceToHost));
    for (int y = 0; y < height; y++)
        for (int x = 0; x < host_pitch; x++) {
            int expected = x < width ? (unsigned char)(from[y * host_pitch + x] + 1) : 0x77;
            CHECK(to[y * host_pitch + x] == expected, "%d, %d: %d, not %d", x, y, to[y * host_pitch + x], expected);
        }
    // The whole of the second area: 50 bytes before and after each row are untouched.
    std::vector<unsigned char> whole(pitch_b * height);
    OK(cudaMemcpy(whole.data(), b, whole.size(), cudaMemcpyDefault));
    for (int y = 0; y < height; y++)
        CHECK(whole[y * pitch_b + 49] == 0xdd && whole[y * pitch_b + 50 + width] == 0xdd, "row %d spills", y);

    cudaStream_t stream;
    OK(cudaStreamCreate(&stream));
    unsigned char *pinned;
    OK(cudaMallocHost(&pinned, host_pitch * height));
    memset(pinned, 0x11, host_pitch * height);
    OK(cudaMemset2DAsync(a, pitch_a, 0x5a, 100, 10, stream));
    OK(cudaMemcpy2DAsync(pinned, host_pitch, a, pitch_a, width, height, cudaMemcpyDeviceToHost, stream));
    OK(cudaStreamSynchronize(stream));
    for (int y = 0; y < height; y++)
        for (int x = 0; x < width; x++) {
            int expected = x < 100 && y < 10 ? 0x5a : (unsigned char)(from[y * host_pitch + x] + 1);
            CHECK(pinned[y * host_pitch + x] == expected, "after the memset %d, %d: %d", x, y, pinned[y * host_pitch + x]);
        }
    FAILS(cudaMemcpy2D(a, 10, from.data(), host_pitch, width, height, cudaMemcpyHostToDevice), cudaErrorInvalidPitchValue);
    FAILS(cudaGetLastError(), cudaErrorInvalidPitchValue);
    OK(cudaFreeHost(pinned));
    OK(cudaStreamDestroy(stream));
    OK(cudaFree(a));
    OK(cudaFree(b));
    printf("%016llx\n", (unsigned long long)check::hash(to));
    return check::pass();
}
