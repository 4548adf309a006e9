// needs: plain
// 3-D pitched memory: copies of a box out of a box, with offsets, both ways, and a 3-D memset.
#include "check.h"

__global__ void number(cudaPitchedPtr box, int width, int height, int depth) {
    int x = threadIdx.x, y = blockIdx.x, z = blockIdx.y;
    if (x < width) reinterpret_cast<int *>(static_cast<char *>(box.ptr) + (z * height + y) * box.pitch)[x] = x + 100 * y + 10000 * z;
}

int main() {
    const int width = 20, height = 11, depth = 7;
    cudaPitchedPtr box;
    OK(cudaMalloc3D(&box, make_cudaExtent(width * sizeof(int), height, depth)));
    CHECK(box.pitch >= width * sizeof(int) && box.ysize == height, "pitch %zu, ysize %zu", box.pitch, box.ysize);
    number<<<dim3(height, depth), 32>>>(box, width, height, depth);
    RAN();

    // A box of 5 × 4 × 3 ints from (3, 2, 1) to (1, 1, 1) of a host box.
    const int w = 8, h = 7, d = 6;
    std::vector<int> host(w * h * d, -1);
    cudaMemcpy3DParms copy = {};
    copy.srcPtr = box;
    copy.srcPos = make_cudaPos(3 * sizeof(int), 2, 1);
    copy.dstPtr = make_cudaPitchedPtr(host.data(), w * sizeof(int), w, h);
    copy.dstPos = make_cudaPos(1 * sizeof(int), 1, 1);
    copy.extent = make_cudaExtent(5 * sizeof(int), 4, 3);
    copy.kind = cudaMemcpyDeviceToHost;
    OK(cudaMemcpy3D(&copy));
    for (int z = 0; z < d; z++)
        for (int y = 0; y < h; y++)
            for (int x = 0; x < w; x++) {
                bool inside = x >= 1 && x < 6 && y >= 1 && y < 5 && z >= 1 && z < 4;
                int expected = inside ? (x + 2) + 100 * (y + 1) + 10000 * z : -1;
                CHECK(host[(z * h + y) * w + x] == expected, "%d, %d, %d: %d, not %d", x, y, z, host[(z * h + y) * w + x], expected);
            }

    for (int &v : host) v = -v;
    std::swap(copy.srcPtr, copy.dstPtr);
    std::swap(copy.srcPos, copy.dstPos);
    copy.kind = cudaMemcpyHostToDevice;
    cudaStream_t stream;
    OK(cudaStreamCreate(&stream));
    OK(cudaMemcpy3DAsync(&copy, stream));
    OK(cudaMemset3DAsync(box, 0x01, make_cudaExtent(2 * sizeof(int), 3, 2), stream));
    OK(cudaStreamSynchronize(stream));

    std::vector<int> all(width * height * depth);
    cudaMemcpy3DParms whole = {};
    whole.srcPtr = box;
    whole.dstPtr = make_cudaPitchedPtr(all.data(), width * sizeof(int), width, height);
    whole.extent = make_cudaExtent(width * sizeof(int), height, depth);
    whole.kind = cudaMemcpyDefault;
    OK(cudaMemcpy3D(&whole));
    for (int z = 0; z < depth; z++)
        for (int y = 0; y < height; y++)
            for (int x = 0; x < width; x++) {
                int number = x + 100 * y + 10000 * z;
                bool negated = x >= 3 && x < 8 && y >= 2 && y < 6 && z >= 1 && z < 4, set = x < 2 && y < 3 && z < 2;
                int expected = set ? 0x01010101 : negated ? -number : number, got = all[(z * height + y) * width + x];
                CHECK(got == expected, "back: %d, %d, %d: %d, not %d", x, y, z, got, expected);
            }
    OK(cudaStreamDestroy(stream));
    OK(cudaFree(box.ptr));
    printf("%016llx\n", (unsigned long long)check::hash(all));
    return check::pass();
}
