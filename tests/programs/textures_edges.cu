// needs: textures
// What textures and surfaces bear beyond the plain cases: an array filled as one run of bytes and read back,
// runs that begin and end within rows, a linear texture that is described longer than its memory, surfaces of
// arrays that were not made for them, objects that are none, and the limits that a device tells.
#include "check.h"

__global__ void look(cudaTextureObject_t t, float *out, int width) { out[blockIdx.x * width + threadIdx.x] = tex2D<float>(t, threadIdx.x + 0.5f, blockIdx.x + 0.5f); }
__global__ void sum(cudaTextureObject_t t, float *out, int count) {
    float total = 0;
    for (int i = threadIdx.x; i < count; i += blockDim.x) {
        float2 two = tex1Dfetch<float2>(t, i);
        total += two.x - two.y;
    }
    atomicAdd(out, total);
}
__global__ void write(cudaSurfaceObject_t s) { surf2Dwrite(float(threadIdx.x + 100 * blockIdx.x), s, threadIdx.x * 4, blockIdx.x); }

cudaResourceDesc of(cudaArray_t array) {
    cudaResourceDesc resource = {};
    resource.resType = cudaResourceTypeArray;
    resource.res.array.array = array;
    return resource;
}

int limit(cudaDeviceAttr attribute) {
    int value = -1;
    OK(cudaDeviceGetAttribute(&value, attribute, 0));
    return value;
}

#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
#pragma nv_diag_suppress 1444

void runs() {
    const int width = 20, height = 6, count = width * height;
    auto format = cudaCreateChannelDesc<float>();
    cudaArray_t array, twin;
    OK(cudaMallocArray(&array, &format, width, height));
    OK(cudaMallocArray(&twin, &format, width, height));
    std::vector<float> in(count), out(count);
    for (int i = 0; i < count; i++) in[i] = 3 * i + 1;
    OK(cudaMemcpyToArray(array, 0, 0, in.data(), count * 4, cudaMemcpyHostToDevice));
    cudaTextureDesc how = {};
    cudaTextureObject_t texture;
    auto resource = of(array);
    OK(cudaCreateTextureObject(&texture, &resource, &how, nullptr));
    Array<float> seen(count);
    look<<<height, width>>>(texture, seen, width);
    RAN();
    CHECK(seen.host() == in, "not what was copied");
    OK(cudaMemcpyFromArray(out.data(), array, 0, 0, count * 4, cudaMemcpyDeviceToHost));
    CHECK(out == in, "not what is in the array");
    // From device memory, and from one array to another.
    Array<float> device(in);
    OK(cudaMemset2D(device, 4, 0, 4, 1));
    OK(cudaMemcpyToArray(twin, 0, 0, device, count * 4, cudaMemcpyDeviceToDevice));
    OK(cudaMemcpyFromArray(out.data(), twin, 0, 0, count * 4, cudaMemcpyDeviceToHost));
    CHECK(out[0] == 0 && out[1] == in[1] && out[count - 1] == in[count - 1], "%g, %g", out[0], out[1]);
    // Whole rows behind the first two, and a part of one row.
    OK(cudaMemcpyToArray(array, 0, 2, in.data(), 2 * width * 4, cudaMemcpyHostToDevice));
    OK(cudaMemcpyToArray(array, 4 * 4, 5, in.data(), 3 * 4, cudaMemcpyHostToDevice));
    OK(cudaMemcpyFromArray(out.data(), array, 0, 0, count * 4, cudaMemcpyDeviceToHost));
    for (int i = 0; i < count; i++) {
        int row = i / width, at = i;
        if (row == 2 || row == 3) at -= 2 * width;
        if (row == 5 && i % width >= 4 && i % width < 7) at = i % width - 4;
        CHECK(out[i] == in[at], "element %d: %g", i, out[i]);
    }
    OK(cudaDestroyTextureObject(texture));
    OK(cudaFreeArray(array));
    OK(cudaFreeArray(twin));
}

void longer_than_its_memory() {
    const int count = 2048 * 1024, told = 2048 * (1024 + 16);
    std::vector<float2> in(count);
    for (int i = 0; i < count; i++) in[i] = {float(i % 7 + 1), float(i % 7)};
    Array<float2> memory(in);
    cudaResourceDesc resource = {};
    resource.resType = cudaResourceTypeLinear;
    resource.res.linear.devPtr = memory;
    resource.res.linear.desc = cudaCreateChannelDesc<float2>();
    for (size_t elements : {count, told}) {
        resource.res.linear.sizeInBytes = elements * sizeof(float2);
        cudaTextureDesc how = {};
        cudaTextureObject_t texture;
        OK(cudaCreateTextureObject(&texture, &resource, &how, nullptr));
        cudaResourceDesc kept;
        OK(cudaGetTextureObjectResourceDesc(&kept, texture));
        CHECK(kept.res.linear.sizeInBytes == elements * sizeof(float2), "%zu", kept.res.linear.sizeInBytes);
        Array<float> total(1);
        total.clear();
        sum<<<1, 256>>>(texture, total, count);
        RAN();
        CHECK(total.host()[0] == count, "%g", total.host()[0]);
        OK(cudaDestroyTextureObject(texture));
    }
}

void not_made_for_surfaces() {
    auto format = cudaCreateChannelDesc<float>();
    cudaArray_t plain, level;
    OK(cudaMallocArray(&plain, &format, 16, 8));
    cudaMipmappedArray_t levels;
    OK(cudaMallocMipmappedArray(&levels, &format, make_cudaExtent(32, 16, 0), 3));
    OK(cudaGetMipmappedArrayLevel(&level, levels, 1));
    for (auto array : {plain, level}) {
        auto resource = of(array);
        cudaSurfaceObject_t surface;
        OK(cudaCreateSurfaceObject(&surface, &resource));
        write<<<8, 16>>>(surface);
        RAN();
        std::vector<float> got(128);
        OK(cudaMemcpy2DFromArray(got.data(), 64, array, 0, 0, 64, 8, cudaMemcpyDeviceToHost));
        for (int i = 0; i < 128; i++) CHECK(got[i] == i % 16 + 100 * (i / 16), "element %d: %g", i, got[i]);
        OK(cudaDestroySurfaceObject(surface));
    }
    OK(cudaFreeArray(plain));
    OK(cudaFreeMipmappedArray(levels));
    OK(cudaDestroySurfaceObject(0));
    OK(cudaDestroyTextureObject(0));
}

int main() {
    runs();
    longer_than_its_memory();
    not_made_for_surfaces();
    CHECK(limit(cudaDevAttrMaxTexture1DWidth) >= 131072 && limit(cudaDevAttrMaxTexture2DWidth) >= 131072 && limit(cudaDevAttrMaxTexture2DHeight) >= 65536, "sides of textures");
    CHECK(limit(cudaDevAttrMaxTexture3DWidth) >= 16384 && limit(cudaDevAttrMaxTexture3DDepth) >= 16384 && limit(cudaDevAttrMaxTexture2DLayeredLayers) >= 2048, "sides of solid and layered textures");
    CHECK(limit(cudaDevAttrMaxTexture2DLinearWidth) >= 131072 && limit(cudaDevAttrMaxTexture2DLinearPitch) >= 2097120 && limit(cudaDevAttrMaxTexture2DMipmappedWidth) >= 32768, "sides of textures of memory");
    CHECK(limit(cudaDevAttrMaxSurface2DWidth) >= 131072 && limit(cudaDevAttrMaxSurface3DWidth) >= 16384 && limit(cudaDevAttrMaxSurfaceCubemapWidth) >= 32768, "sides of surfaces");
    printf("runs, memory, surfaces, limits\n");
    return check::pass();
}
