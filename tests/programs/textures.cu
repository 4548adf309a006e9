// needs: textures
// Texture objects: linear memory, pitched 2-D with filtering and each address mode, arrays of one to
// three dimensions and layered ones, normalised reads of bytes.
#include <algorithm>

#include "check.h"

__global__ void from_linear(cudaTextureObject_t t, float *out, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) out[i] = tex1Dfetch<float>(t, i);
}
__global__ void at(cudaTextureObject_t t, const float2 *where, float *out, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) out[i] = tex2D<float>(t, where[i].x, where[i].y);
}
__global__ void bytes(cudaTextureObject_t t, float4 *out, int width) { out[blockIdx.x * width + threadIdx.x] = tex2D<float4>(t, threadIdx.x + 0.5f, blockIdx.x + 0.5f); }
__global__ void volume(cudaTextureObject_t t, int *out, int3 size) {
    int x = threadIdx.x, y = blockIdx.x, z = blockIdx.y;
    out[(z * size.y + y) * size.x + x] = tex3D<int>(t, x + 0.5f, y + 0.5f, z + 0.5f);
}
__global__ void layers(cudaTextureObject_t t, float *out, int width) { out[blockIdx.x * width + threadIdx.x] = tex1DLayered<float>(t, threadIdx.x + 0.5f, blockIdx.x); }

cudaTextureObject_t make(const cudaResourceDesc &resource, cudaTextureAddressMode mode, cudaTextureFilterMode filter, bool normalized, cudaTextureReadMode read = cudaReadModeElementType) {
    cudaTextureDesc texture = {};
    for (auto &m : texture.addressMode) m = mode;
    texture.filterMode = filter;
    texture.normalizedCoords = normalized;
    texture.readMode = read;
    cudaTextureObject_t object;
    OK(cudaCreateTextureObject(&object, &resource, &texture, nullptr));
    return object;
}

int main() {
    const int count = 1000;
    std::vector<float> values(count);
    for (int i = 0; i < count; i++) values[i] = i * 0.5f;
    Array<float> linear(values), out(count);
    cudaResourceDesc resource = {};
    resource.resType = cudaResourceTypeLinear;
    resource.res.linear = {linear, cudaCreateChannelDesc<float>(), linear.bytes()};
    auto object = make(resource, cudaAddressModeClamp, cudaFilterModePoint, false);
    from_linear<<<8, 128>>>(object, out, count);
    RAN();
    CHECK(out.host() == values, "linear memory differs");
    OK(cudaDestroyTextureObject(object));

    // An array of 8 × 6 with value 10 y + x, looked at around and between its texels.
    const int width = 8, height = 6;
    std::vector<float> image(width * height);
    for (int y = 0; y < height; y++)
        for (int x = 0; x < width; x++) image[y * width + x] = 10 * y + x;
    cudaArray_t array;
    auto channel = cudaCreateChannelDesc<float>();
    OK(cudaMallocArray(&array, &channel, width, height));
    OK(cudaMemcpy2DToArray(array, 0, 0, image.data(), width * 4, width * 4, height, cudaMemcpyHostToDevice));
    std::vector<float2> where;
    for (int y = -8; y < 32; y++)
        for (int x = -8; x < 44; x++) where.push_back(make_float2(x / 4.0f, y / 4.0f));
    Array<float2> dwhere(where);
    Array<float> seen(where.size());
    resource = {};
    resource.resType = cudaResourceTypeArray;
    resource.res.array.array = array;
    for (auto mode : {cudaAddressModeClamp, cudaAddressModeBorder})
        for (auto filter : {cudaFilterModePoint, cudaFilterModeLinear}) {
            object = make(resource, mode, filter, false);
            at<<<blocks(where.size(), 128), 128>>>(object, dwhere, seen, int(where.size()));
            RAN();
            auto got = seen.host();
            for (size_t i = 0; i < where.size(); i++) {
                auto texel = [&](int x, int y) {
                    bool inside = x >= 0 && x < width && y >= 0 && y < height;
                    if (!inside && mode == cudaAddressModeBorder) return 0.0f;
                    return image[std::min(std::max(y, 0), height - 1) * width + std::min(std::max(x, 0), width - 1)];
                };
                float expected;
                if (filter == cudaFilterModePoint) expected = texel(int(std::floor(where[i].x)), int(std::floor(where[i].y)));
                else {
                    float u = where[i].x - 0.5f, v = where[i].y - 0.5f, a = u - std::floor(u), b = v - std::floor(v);
                    int x = int(std::floor(u)), y = int(std::floor(v));
                    expected = (1 - a) * (1 - b) * texel(x, y) + a * (1 - b) * texel(x + 1, y) + (1 - a) * b * texel(x, y + 1) + a * b * texel(x + 1, y + 1);
                }
                CHECK(std::fabs(got[i] - expected) < 1e-4, "mode %d, filter %d at %g, %g: %g, not %g", mode, filter, where[i].x, where[i].y, got[i], expected);
            }
            OK(cudaDestroyTextureObject(object));
        }
    for (auto mode : {cudaAddressModeWrap, cudaAddressModeMirror}) {
        object = make(resource, mode, cudaFilterModePoint, true);
        std::vector<float2> normal(where);
        for (auto &w : normal) w = make_float2((w.x + 0.1f) / width, (w.y + 0.1f) / height);
        dwhere.set(normal);
        at<<<blocks(where.size(), 128), 128>>>(object, dwhere, seen, int(where.size()));
        RAN();
        auto got = seen.host();
        for (size_t i = 0; i < where.size(); i++) {
            auto fold = [&](float c, int size) {
                int k = int(std::floor(c));
                if (mode == cudaAddressModeWrap) return (k % size + size) % size;
                k = (k % (2 * size) + 2 * size) % (2 * size);
                return k < size ? k : 2 * size - 1 - k;
            };
            float expected = image[fold(where[i].y + 0.1f, height) * width + fold(where[i].x + 0.1f, width)];
            CHECK(got[i] == expected, "mode %d at %g, %g: %g, not %g", mode, where[i].x, where[i].y, got[i], expected);
        }
        OK(cudaDestroyTextureObject(object));
    }
    OK(cudaFreeArray(array));

    unsigned char *pitched;
    size_t pitch;
    OK(cudaMallocPitch(&pitched, &pitch, 20 * 4, 5));
    std::vector<unsigned char> colours(20 * 4 * 5);
    for (size_t i = 0; i < colours.size(); i++) colours[i] = (unsigned char)(i * 13);
    OK(cudaMemcpy2D(pitched, pitch, colours.data(), 80, 80, 5, cudaMemcpyHostToDevice));
    resource = {};
    resource.resType = cudaResourceTypePitch2D;
    resource.res.pitch2D = {pitched, cudaCreateChannelDesc<uchar4>(), 20, 5, pitch};
    object = make(resource, cudaAddressModeClamp, cudaFilterModePoint, false, cudaReadModeNormalizedFloat);
    Array<float4> normal(100);
    bytes<<<5, 20>>>(object, normal, 20);
    RAN();
    auto colour = normal.host();
    for (int i = 0; i < 100; i++)
        CHECK(std::fabs(colour[i].x - colours[4 * i] / 255.0f) < 1e-6 && std::fabs(colour[i].w - colours[4 * i + 3] / 255.0f) < 1e-6, "pixel %d: %g", i, colour[i].x);
    OK(cudaDestroyTextureObject(object));
    OK(cudaFree(pitched));

    const int3 size = {9, 5, 4};
    std::vector<int> cube(size.x * size.y * size.z);
    for (size_t i = 0; i < cube.size(); i++) cube[i] = int(i * i);
    auto integers = cudaCreateChannelDesc<int>();
    OK(cudaMalloc3DArray(&array, &integers, make_cudaExtent(size.x, size.y, size.z)));
    cudaMemcpy3DParms copy = {};
    copy.srcPtr = make_cudaPitchedPtr(cube.data(), size.x * sizeof(int), size.x, size.y);
    copy.dstArray = array;
    copy.extent = make_cudaExtent(size.x, size.y, size.z);
    copy.kind = cudaMemcpyHostToDevice;
    OK(cudaMemcpy3D(&copy));
    resource = {};
    resource.resType = cudaResourceTypeArray;
    resource.res.array.array = array;
    object = make(resource, cudaAddressModeClamp, cudaFilterModePoint, false);
    Array<int> back(cube.size());
    volume<<<dim3(size.y, size.z), size.x>>>(object, back, size);
    RAN();
    CHECK(back.host() == cube, "the volume differs");
    OK(cudaDestroyTextureObject(object));
    OK(cudaFreeArray(array));

    OK(cudaMalloc3DArray(&array, &channel, make_cudaExtent(16, 0, 3), cudaArrayLayered));
    std::vector<float> layer(48);
    for (int i = 0; i < 48; i++) layer[i] = i * 3.0f;
    copy = {};
    copy.srcPtr = make_cudaPitchedPtr(layer.data(), 64, 16, 1);
    copy.dstArray = array;
    copy.extent = make_cudaExtent(16, 1, 3);
    copy.kind = cudaMemcpyHostToDevice;
    OK(cudaMemcpy3D(&copy));
    resource.res.array.array = array;
    object = make(resource, cudaAddressModeClamp, cudaFilterModePoint, false);
    Array<float> dlayer(48);
    layers<<<3, 16>>>(object, dlayer, 16);
    RAN();
    CHECK(dlayer.host() == layer, "the layers differ");
    OK(cudaDestroyTextureObject(object));
    OK(cudaFreeArray(array));
    printf("%zu places, six modes\n", where.size());
    return check::pass();
}
