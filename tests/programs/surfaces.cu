// needs: textures
// Surface objects: kernels write arrays that are then copied out or read as textures; boundary modes.
#include "check.h"

__global__ void paint(cudaSurfaceObject_t surface, int width, int height) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y;
    if (x < width && y < height) surf2Dwrite(make_short2(x, y), surface, x * sizeof(short2), y);
}
__global__ void turn(cudaSurfaceObject_t in, cudaSurfaceObject_t out, int width, int height) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y;
    if (x >= width) return;
    short2 value = surf2Dread<short2>(in, x * sizeof(short2), y);
    short2 beyond = surf2Dread<short2>(in, (x + width) * sizeof(short2), y, cudaBoundaryModeZero);
    surf2Dwrite(make_short2(value.y + beyond.x, value.x), out, (width - 1 - x) * sizeof(short2), height - 1 - y);
}

int main() {
    const int width = 100, height = 30;
    auto channel = cudaCreateChannelDesc<short2>();
    cudaArray_t arrays[2];
    cudaSurfaceObject_t surfaces[2];
    for (int k = 0; k < 2; k++) {
        OK(cudaMallocArray(&arrays[k], &channel, width, height, cudaArraySurfaceLoadStore));
        cudaResourceDesc resource = {};
        resource.resType = cudaResourceTypeArray;
        resource.res.array.array = arrays[k];
        OK(cudaCreateSurfaceObject(&surfaces[k], &resource));
    }
    paint<<<dim3(2, height), 64>>>(surfaces[0], width, height);
    turn<<<dim3(2, height), 64>>>(surfaces[0], surfaces[1], width, height);
    RAN();
    std::vector<short2> got(width * height);
    OK(cudaMemcpy2DFromArray(got.data(), width * 4, arrays[1], 0, 0, width * 4, height, cudaMemcpyDeviceToHost));
    for (int y = 0; y < height; y++)
        for (int x = 0; x < width; x++) {
            short2 v = got[y * width + x];
            CHECK(v.x == height - 1 - y && v.y == width - 1 - x, "%d, %d: %d, %d", x, y, v.x, v.y);
        }
    for (int k = 0; k < 2; k++) {
        OK(cudaDestroySurfaceObject(surfaces[k]));
        OK(cudaFreeArray(arrays[k]));
    }
    printf("%016llx\n", (unsigned long long)check::hash(got));
    return check::pass();
}
