// needs: textures
// Surfaces of one and three dimensions, of layers and of cubes, of elements from one byte to sixteen;
// boundaries that clamp and that read zeroes; a texture of what a surface wrote.
#include <algorithm>

#include "check.h"

__global__ void lines(cudaSurfaceObject_t s, int width) {
    int x = threadIdx.x;
    if (x < width) surf1Dwrite((unsigned char)(x * 3), s, x);
}
__global__ void solid(cudaSurfaceObject_t s) {
    int x = threadIdx.x, y = blockIdx.x, z = blockIdx.y;
    surf3Dwrite(make_float4(x, y, z, x * y + z), s, x * sizeof(float4), y, z);
}
__global__ void layers(cudaSurfaceObject_t s) { surf2DLayeredwrite((unsigned long long)(threadIdx.x + 100 * blockIdx.x + 10000ull * blockIdx.y) << 32, s, threadIdx.x * 8, blockIdx.x, blockIdx.y); }
__global__ void faces(cudaSurfaceObject_t s) { surfCubemapwrite(int(threadIdx.x + 10 * blockIdx.x + 100 * blockIdx.y), s, threadIdx.x * 4, blockIdx.x, blockIdx.y); }
__global__ void beyond(cudaSurfaceObject_t s, int *out, int width, int height) {
    int x = int(threadIdx.x) - 4, y = int(blockIdx.x) - 4, at = blockIdx.x * blockDim.x + threadIdx.x;
    out[2 * at] = surf2Dread<int>(s, x * 4, y, cudaBoundaryModeClamp);
    out[2 * at + 1] = surf2Dread<int>(s, x * 4, y, cudaBoundaryModeZero);
    // Writes beyond the edge vanish.
    if (x < 0 || y < 0 || x >= width || y >= height) surf2Dwrite(-1, s, x * 4, y, cudaBoundaryModeZero);
}
__global__ void look(cudaTextureObject_t t, float *out, int width) { out[blockIdx.x * width + threadIdx.x] = tex2D<float>(t, threadIdx.x + 0.5f, blockIdx.x + 0.5f); }
__global__ void fill(cudaSurfaceObject_t s) { surf2Dwrite(float(threadIdx.x) * blockIdx.x, s, threadIdx.x * 4, blockIdx.x); }

cudaSurfaceObject_t on(cudaArray_t array) {
    cudaResourceDesc resource = {};
    resource.resType = cudaResourceTypeArray;
    resource.res.array.array = array;
    cudaSurfaceObject_t surface;
    OK(cudaCreateSurfaceObject(&surface, &resource));
    return surface;
}
template <class T> std::vector<T> content(cudaArray_t array, int width, int height, int depth) {
    std::vector<T> got(width * height * depth);
    cudaMemcpy3DParms copy = {};
    copy.srcArray = array;
    copy.dstPtr = make_cudaPitchedPtr(got.data(), width * sizeof(T), width, height);
    copy.extent = make_cudaExtent(width, height, depth);
    copy.kind = cudaMemcpyDeviceToHost;
    OK(cudaMemcpy3D(&copy));
    return got;
}

int main() {
    cudaArray_t array;
    auto bytes = cudaCreateChannelDesc<unsigned char>();
    OK(cudaMalloc3DArray(&array, &bytes, make_cudaExtent(77, 0, 0), cudaArraySurfaceLoadStore));
    auto surface = on(array);
    lines<<<1, 96>>>(surface, 77);
    RAN();
    auto line = content<unsigned char>(array, 77, 1, 1);
    for (int x = 0; x < 77; x++) CHECK(line[x] == (unsigned char)(x * 3), "byte %d: %d", x, line[x]);
    OK(cudaDestroySurfaceObject(surface));
    OK(cudaFreeArray(array));

    auto vectors = cudaCreateChannelDesc<float4>();
    OK(cudaMalloc3DArray(&array, &vectors, make_cudaExtent(9, 5, 4), cudaArraySurfaceLoadStore));
    surface = on(array);
    solid<<<dim3(5, 4), 9>>>(surface);
    RAN();
    auto box = content<float4>(array, 9, 5, 4);
    for (int i = 0; i < 180; i++) {
        int x = i % 9, y = i / 9 % 5, z = i / 45;
        CHECK(box[i].x == x && box[i].y == y && box[i].z == z && box[i].w == x * y + z, "%d, %d, %d: %g %g %g %g", x, y, z, box[i].x, box[i].y, box[i].z, box[i].w);
    }
    OK(cudaDestroySurfaceObject(surface));
    OK(cudaFreeArray(array));

    auto pairs = cudaCreateChannelDesc<uint2>();
    OK(cudaMalloc3DArray(&array, &pairs, make_cudaExtent(6, 7, 3), cudaArraySurfaceLoadStore | cudaArrayLayered));
    surface = on(array);
    layers<<<dim3(7, 3), 6>>>(surface);
    RAN();
    auto wide = content<uint2>(array, 6, 7, 3);
    for (int i = 0; i < 126; i++) CHECK(wide[i].x == 0 && wide[i].y == unsigned(i % 6 + 100 * (i / 6 % 7) + 10000 * (i / 42)), "element %d: %u", i, wide[i].y);
    OK(cudaDestroySurfaceObject(surface));
    OK(cudaFreeArray(array));

    auto integers = cudaCreateChannelDesc<int>();
    OK(cudaMalloc3DArray(&array, &integers, make_cudaExtent(4, 4, 6), cudaArraySurfaceLoadStore | cudaArrayCubemap));
    surface = on(array);
    faces<<<dim3(4, 6), 4>>>(surface);
    RAN();
    auto cube = content<int>(array, 4, 4, 6);
    for (int i = 0; i < 96; i++) CHECK(cube[i] == i % 4 + 10 * (i / 4 % 4) + 100 * (i / 16), "face element %d: %d", i, cube[i]);
    OK(cudaDestroySurfaceObject(surface));
    OK(cudaFreeArray(array));

    const int width = 10, height = 6;
    OK(cudaMallocArray(&array, &integers, width, height, cudaArraySurfaceLoadStore));
    std::vector<int> numbers(width * height);
    for (int i = 0; i < width * height; i++) numbers[i] = i + 1;
    OK(cudaMemcpy2DToArray(array, 0, 0, numbers.data(), width * 4, width * 4, height, cudaMemcpyHostToDevice));
    surface = on(array);
    Array<int> out(2 * 20 * 14);
    beyond<<<14, 20>>>(surface, out, width, height);
    RAN();
    auto seen = out.host();
    for (int y = -4; y < 10; y++)
        for (int x = -4; x < 16; x++) {
            int at = (y + 4) * 20 + x + 4;
            bool inside = x >= 0 && y >= 0 && x < width && y < height;
            int near = numbers[std::min(std::max(y, 0), height - 1) * width + std::min(std::max(x, 0), width - 1)];
            CHECK(seen[2 * at] == near, "clamped %d, %d: %d, not %d", x, y, seen[2 * at], near);
            CHECK(seen[2 * at + 1] == (inside ? near : 0), "zero %d, %d: %d", x, y, seen[2 * at + 1]);
        }
    CHECK(content<int>(array, width, height, 1) == numbers, "a write beyond the edge was made");
    OK(cudaDestroySurfaceObject(surface));
    OK(cudaFreeArray(array));

    auto floats = cudaCreateChannelDesc<float>();
    OK(cudaMallocArray(&array, &floats, width, height, cudaArraySurfaceLoadStore));
    surface = on(array);
    cudaResourceDesc resource = {};
    resource.resType = cudaResourceTypeArray;
    resource.res.array.array = array;
    cudaTextureDesc texture = {};
    cudaTextureObject_t object;
    OK(cudaCreateTextureObject(&object, &resource, &texture, nullptr));
    Array<float> read(width * height);
    fill<<<height, width>>>(surface);
    look<<<height, width>>>(object, read, width);
    RAN();
    auto values = read.host();
    for (int i = 0; i < width * height; i++) CHECK(values[i] == float(i % width) * (i / width), "element %d: %g", i, values[i]);
    OK(cudaDestroyTextureObject(object));
    OK(cudaDestroySurfaceObject(surface));
    OK(cudaFreeArray(array));
    printf("%016llx\n", (unsigned long long)(check::hash(box) ^ check::hash(seen)));
    return check::pass();
}
