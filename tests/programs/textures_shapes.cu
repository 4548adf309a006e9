// needs: textures
// Texture objects of other shapes: mipmaps, cubes, layers, gathers, gradients; integer, half and
// normalised formats; views; what descriptions say afterwards.
#include <algorithm>
#include <cuda_fp16.h>

#include "check.h"

template <class T> __global__ void pixels(cudaTextureObject_t t, T *out, int width) { out[blockIdx.x * width + threadIdx.x] = tex2D<T>(t, threadIdx.x + 0.5f, blockIdx.x + 0.5f); }
__global__ void lod(cudaTextureObject_t t, const float *level, float *out, int count) {
    int i = threadIdx.x;
    if (i < count) out[i] = tex2DLod<float>(t, 0.3f, 0.6f, level[i]);
}
__global__ void gradients(cudaTextureObject_t t, float *out) {
    float d = threadIdx.x == 0 ? 1 / 64.0f : (1 << threadIdx.x) / 8.0f;
    out[threadIdx.x] = tex2DGrad<float>(t, 0.3f, 0.6f, make_float2(d, 0), make_float2(0, d / 2));
}
__global__ void cube(cudaTextureObject_t t, const float3 *direction, float *out, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) out[i] = texCubemap<float>(t, direction[i].x, direction[i].y, direction[i].z);
}
__global__ void cubes(cudaTextureObject_t t, const float3 *direction, float *out, int count, int layer) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) out[i] = texCubemapLayered<float>(t, direction[i].x, direction[i].y, direction[i].z, layer);
}
__global__ void around(cudaTextureObject_t t, float4 *out, int width) { out[blockIdx.x * width + threadIdx.x] = tex2Dgather<float4>(t, threadIdx.x + 1.0f, blockIdx.x + 1.0f, 1); }
__global__ void layered(cudaTextureObject_t t, float *out, int width, int height) {
    int x = threadIdx.x, y = blockIdx.x, z = int(blockIdx.y) - 1;
    out[(blockIdx.y * height + y) * width + x] = tex2DLayered<float>(t, x + 0.5f, y + 0.5f, z);
}
__global__ void line(cudaTextureObject_t t, float *out, int count) {
    int i = threadIdx.x;
    if (i < count) out[i] = tex1D<float>(t, i * 0.25f - 1);
}

cudaTextureDesc described(cudaTextureAddressMode mode, cudaTextureFilterMode filter, bool normalized, cudaTextureReadMode read = cudaReadModeElementType) {
    cudaTextureDesc texture = {};
    for (auto &m : texture.addressMode) m = mode;
    texture.filterMode = filter;
    texture.normalizedCoords = normalized;
    texture.readMode = read;
    return texture;
}
cudaResourceDesc of(cudaArray_t array) {
    cudaResourceDesc resource = {};
    resource.resType = cudaResourceTypeArray;
    resource.res.array.array = array;
    return resource;
}
cudaTextureObject_t make(const cudaResourceDesc &resource, const cudaTextureDesc &texture, const cudaResourceViewDesc *view = nullptr) {
    cudaTextureObject_t object;
    OK(cudaCreateTextureObject(&object, &resource, &texture, view));
    return object;
}

// Writes `texels` to an array of their type, reads it as `Seen`, and compares.
template <class T, class Seen, class Expect>
void format(const char *name, cudaChannelFormatDesc channel, const std::vector<T> &texels, cudaTextureReadMode read, bool srgb, double tolerance, Expect expect) {
    const int width = 5, height = int(texels.size()) / width;
    cudaArray_t array;
    OK(cudaMallocArray(&array, &channel, width, height));
    OK(cudaMemcpy2DToArray(array, 0, 0, texels.data(), width * sizeof(T), width * sizeof(T), height, cudaMemcpyHostToDevice));
    auto texture = described(cudaAddressModeClamp, cudaFilterModePoint, false, read);
    texture.sRGB = srgb;
    auto object = make(of(array), texture);
    Array<Seen> out(texels.size());
    pixels<Seen><<<height, width>>>(object, out, width);
    RAN();
    auto got = out.host();
    for (size_t i = 0; i < texels.size(); i++) {
        double difference = expect(texels[i], got[i]);
        CHECK(difference <= tolerance, "%s, texel %zu: off by %g", name, i, difference);
    }
    OK(cudaDestroyTextureObject(object));
    OK(cudaFreeArray(array));
}

void formats() {
    Random random;
    const size_t count = 35;
    std::vector<signed char> bytes(count);
    std::vector<ushort2> shorts(count);
    std::vector<uint4> words(count);
    std::vector<short4> signeds(count);
    std::vector<__half> halves(count);
    std::vector<uchar4> colours(count);
    for (size_t i = 0; i < count; i++) {
        bytes[i] = (signed char)random.bits();
        shorts[i] = make_ushort2(random.bits(), random.bits());
        words[i] = make_uint4(random.bits(), random.bits(), random.bits(), random.bits());
        signeds[i] = make_short4(random.bits(), random.bits(), random.bits(), random.bits());
        halves[i] = __float2half(float(int(random.below(2000)) - 1000) / 16);
        colours[i] = make_uchar4(random.bits(), random.bits(), random.bits(), random.bits());
    }
    bytes[3] = -128;
    format<signed char, signed char>("char", cudaCreateChannelDesc<signed char>(), bytes, cudaReadModeElementType, false, 0, [](signed char t, signed char s) { return std::abs(t - s); });
    format<signed char, float>("char as a fraction", cudaCreateChannelDesc<signed char>(), bytes, cudaReadModeNormalizedFloat, false, 1e-6,
                               [](signed char t, float s) { return std::fabs(std::max(t / 127.0f, -1.0f) - s); });
    format<ushort2, ushort2>("ushort2", cudaCreateChannelDesc<ushort2>(), shorts, cudaReadModeElementType, false, 0, [](ushort2 t, ushort2 s) { return std::abs(t.x - s.x) + std::abs(t.y - s.y); });
    format<ushort2, float2>("ushort2 as fractions", cudaCreateChannelDesc<ushort2>(), shorts, cudaReadModeNormalizedFloat, false, 1e-6,
                            [](ushort2 t, float2 s) { return std::fabs(t.x / 65535.0f - s.x) + std::fabs(t.y / 65535.0f - s.y); });
    format<uint4, uint4>("uint4", cudaCreateChannelDesc<uint4>(), words, cudaReadModeElementType, false, 0, [](uint4 t, uint4 s) { return t.x != s.x || t.y != s.y || t.z != s.z || t.w != s.w; });
    format<short4, short4>("short4", cudaCreateChannelDesc<short4>(), signeds, cudaReadModeElementType, false, 0, [](short4 t, short4 s) { return t.x != s.x || t.y != s.y || t.z != s.z || t.w != s.w; });
    format<__half, float>("half", cudaCreateChannelDescHalf(), halves, cudaReadModeElementType, false, 0, [](__half t, float s) { return std::fabs(__half2float(t) - s); });
    format<uchar4, float4>("sRGB", cudaCreateChannelDesc<uchar4>(), colours, cudaReadModeNormalizedFloat, true, 8e-3, [](uchar4 t, float4 s) {
        auto light = [](int v) { double c = v / 255.0; return c <= 0.04045 ? c / 12.92 : std::pow((c + 0.055) / 1.055, 2.4); };
        return std::fabs(light(t.x) - s.x) + std::fabs(light(t.z) - s.z) + std::fabs(t.w / 255.0 - s.w);
    });
}

void mipmaps() {
    cudaMipmappedArray_t levels;
    auto channel = cudaCreateChannelDesc<float>();
    OK(cudaMallocMipmappedArray(&levels, &channel, make_cudaExtent(8, 8, 0), 4));
    for (int level = 0; level < 4; level++) {
        cudaArray_t array;
        OK(cudaGetMipmappedArrayLevel(&array, levels, level));
        cudaExtent extent;
        cudaChannelFormatDesc seen;
        unsigned flags;
        OK(cudaArrayGetInfo(&seen, &extent, &flags, array));
        int side = 8 >> level;
        CHECK(int(extent.width) == side && int(extent.height) == side && seen.x == 32, "level %d: %zu × %zu", level, extent.width, extent.height);
        std::vector<float> texels(side * side, level * 100.0f);
        OK(cudaMemcpy2DToArray(array, 0, 0, texels.data(), side * 4, side * 4, side, cudaMemcpyHostToDevice));
    }
    cudaResourceDesc resource = {};
    resource.resType = cudaResourceTypeMipmappedArray;
    resource.res.mipmap.mipmap = levels;
    std::vector<float> wanted = {-1, 0, 0.25f, 0.75f, 1, 1.5f, 2.25f, 3, 7};
    Array<float> asked(wanted), out(wanted.size());
    for (auto filter : {cudaFilterModePoint, cudaFilterModeLinear}) {
        auto texture = described(cudaAddressModeClamp, cudaFilterModePoint, true);
        texture.mipmapFilterMode = filter;
        texture.maxMipmapLevelClamp = 10;
        auto object = make(resource, texture);
        lod<<<1, 32>>>(object, asked, out, int(wanted.size()));
        RAN();
        auto got = out.host();
        for (size_t i = 0; i < wanted.size(); i++) {
            float level = std::min(std::max(wanted[i], 0.0f), 3.0f);
            float expected = 100 * (filter == cudaFilterModeLinear ? level : std::floor(level + 0.5f));
            CHECK(std::fabs(got[i] - expected) < 1e-3 || (filter == cudaFilterModePoint && level == 1.5f), "filter %d, level %g: %g", filter, wanted[i], got[i]);
        }
        Array<float> steep(4);
        gradients<<<1, 4>>>(object, steep);
        RAN();
        got = steep.host();
        for (int i = 0; i < 4; i++) CHECK(std::fabs(got[i] - 100 * i) < 1e-3, "gradient %d: %g", i, got[i]);
        OK(cudaDestroyTextureObject(object));
    }
    // Clamped and shifted levels.
    auto texture = described(cudaAddressModeClamp, cudaFilterModePoint, true);
    texture.mipmapFilterMode = cudaFilterModeLinear;
    texture.mipmapLevelBias = 0.5f;
    texture.minMipmapLevelClamp = 1;
    texture.maxMipmapLevelClamp = 2;
    auto object = make(resource, texture);
    lod<<<1, 32>>>(object, asked, out, int(wanted.size()));
    RAN();
    auto got = out.host();
    for (size_t i = 0; i < wanted.size(); i++) {
        float expected = 100 * std::min(std::max(wanted[i] + 0.5f, 1.0f), 2.0f);
        CHECK(std::fabs(got[i] - expected) < 1e-3, "clamped level %g: %g", wanted[i], got[i]);
    }
    OK(cudaDestroyTextureObject(object));
    OK(cudaFreeMipmappedArray(levels));
}

std::vector<float> six_faces(int side, int layers, std::vector<float3> &directions, std::vector<float> &expected, int layer) {
    std::vector<float> texels(side * side * 6 * layers);
    for (size_t i = 0; i < texels.size(); i++) texels[i] = float(i);
    for (int face = 0; face < 6; face++)
        for (int y = 0; y < side; y++)
            for (int x = 0; x < side; x++) {
                float s = 2 * (x + 0.5f) / side - 1, t = 2 * (y + 0.5f) / side - 1;
                float3 all[6] = {{1, -t, -s}, {-1, -t, s}, {s, 1, t}, {s, -1, -t}, {s, -t, 1}, {-s, -t, -1}};
                directions.push_back(all[face]);
                expected.push_back(texels[((layer * 6 + face) * side + y) * side + x]);
            }
    return texels;
}

void copy_to(cudaArray_t array, const std::vector<float> &texels, int width, int height, int depth) {
    cudaMemcpy3DParms copy = {};
    copy.srcPtr = make_cudaPitchedPtr(const_cast<float *>(texels.data()), width * 4, width, height);
    copy.dstArray = array;
    copy.extent = make_cudaExtent(width, height, depth);
    copy.kind = cudaMemcpyHostToDevice;
    OK(cudaMemcpy3D(&copy));
}

void cubes() {
    const int side = 4;
    auto channel = cudaCreateChannelDesc<float>();
    auto texture = described(cudaAddressModeClamp, cudaFilterModePoint, true);
    for (int layers : {0, 3}) {
        std::vector<float3> directions;
        std::vector<float> expected;
        auto texels = six_faces(side, std::max(layers, 1), directions, expected, layers ? 1 : 0);
        cudaArray_t array;
        OK(cudaMalloc3DArray(&array, &channel, make_cudaExtent(side, side, 6 * std::max(layers, 1)), cudaArrayCubemap | (layers ? cudaArrayLayered : 0)));
        copy_to(array, texels, side, side, 6 * std::max(layers, 1));
        auto object = make(of(array), texture);
        Array<float3> to(directions);
        Array<float> out(expected.size());
        if (layers) cubes<<<4, 32>>>(object, to, out, int(expected.size()), 1);
        else cube<<<4, 32>>>(object, to, out, int(expected.size()));
        RAN();
        CHECK(out.host() == expected, "the cube's faces differ, %d layers", layers);
        OK(cudaDestroyTextureObject(object));
        OK(cudaFreeArray(array));
    }
}

void gather_and_layers() {
    const int width = 6, height = 5, depth = 3;
    cudaArray_t array;
    auto two = cudaCreateChannelDesc<float2>();
    OK(cudaMallocArray(&array, &two, width, height, cudaArrayTextureGather));
    std::vector<float2> pairs(width * height);
    for (int i = 0; i < width * height; i++) pairs[i] = make_float2(-i, i);
    OK(cudaMemcpy2DToArray(array, 0, 0, pairs.data(), width * 8, width * 8, height, cudaMemcpyHostToDevice));
    auto object = make(of(array), described(cudaAddressModeClamp, cudaFilterModePoint, false));
    Array<float4> four((width - 1) * (height - 1));
    around<<<height - 1, width - 1>>>(object, four, width - 1);
    RAN();
    auto got = four.host();
    for (int y = 0; y < height - 1; y++)
        for (int x = 0; x < width - 1; x++) {
            float4 v = got[y * (width - 1) + x];
            float at = y * width + x;
            CHECK(v.w == at && v.z == at + 1 && v.x == at + width && v.y == at + width + 1, "gather at %d, %d: %g %g %g %g", x, y, v.x, v.y, v.z, v.w);
        }
    OK(cudaDestroyTextureObject(object));
    OK(cudaFreeArray(array));

    auto one = cudaCreateChannelDesc<float>();
    OK(cudaMalloc3DArray(&array, &one, make_cudaExtent(width, height, depth), cudaArrayLayered));
    std::vector<float> texels(width * height * depth);
    for (size_t i = 0; i < texels.size(); i++) texels[i] = i * 0.25f;
    copy_to(array, texels, width, height, depth);
    object = make(of(array), described(cudaAddressModeClamp, cudaFilterModePoint, false));
    // The index of a layer is unsigned: what is beyond the last, on either side, is the last.
    Array<float> out(width * height * (depth + 2));
    layered<<<dim3(height, depth + 2), width>>>(object, out, width, height);
    RAN();
    auto seen = out.host();
    for (int z = -1; z <= depth; z++)
        for (int i = 0; i < width * height; i++) {
            int from = z < 0 || z >= depth ? depth - 1 : z;
            CHECK(seen[(z + 1) * width * height + i] == texels[from * width * height + i], "layer %d, texel %d", z, i);
        }
    OK(cudaDestroyTextureObject(object));
    OK(cudaFreeArray(array));
}

void edges_of_a_line() {
    const int count = 8;
    cudaArray_t array;
    auto channel = cudaCreateChannelDesc<float>();
    OK(cudaMallocArray(&array, &channel, count, 0));
    std::vector<float> texels(count);
    for (int i = 0; i < count; i++) texels[i] = 10 * i;
    OK(cudaMemcpy2DToArray(array, 0, 0, texels.data(), count * 4, count * 4, 1, cudaMemcpyHostToDevice));
    auto texture = described(cudaAddressModeBorder, cudaFilterModePoint, false);
    texture.borderColor[0] = 0.25f;
    auto object = make(of(array), texture);
    cudaResourceDesc resource;
    cudaTextureDesc kept;
    OK(cudaGetTextureObjectResourceDesc(&resource, object));
    OK(cudaGetTextureObjectTextureDesc(&kept, object));
    CHECK(resource.resType == cudaResourceTypeArray && resource.res.array.array == array, "type %d", resource.resType);
    // Not the border: an H200's driver was seen to give 0.25, -0.25 and -1 for it.
    CHECK(kept.addressMode[0] == cudaAddressModeBorder && !kept.normalizedCoords, "mode %d", kept.addressMode[0]);
    Array<float> out(48);
    line<<<1, 64>>>(object, out, 48);
    RAN();
    auto got = out.host();
    for (int i = 0; i < 48; i++) {
        int at = int(std::floor(i * 0.25f - 1));
        float expected = at < 0 || at >= count ? 0.25f : texels[at];
        CHECK(got[i] == expected, "at %g: %g, not %g", i * 0.25f - 1, got[i], expected);
    }
    OK(cudaDestroyTextureObject(object));
    // What makes no sense together.
    cudaArray_t integers;
    auto whole = cudaCreateChannelDesc<int>();
    OK(cudaMallocArray(&integers, &whole, 4, 4));
    resource = of(integers);
    texture = described(cudaAddressModeClamp, cudaFilterModeLinear, false);
    FAILS(cudaCreateTextureObject(&object, &resource, &texture, nullptr), cudaErrorInvalidFilterSetting);
    cudaGetLastError();
    OK(cudaFreeArray(integers));
    OK(cudaFreeArray(array));
}

int main() {
    formats();
    mipmaps();
    cubes();
    gather_and_layers();
    edges_of_a_line();
    printf("formats, levels, cubes, layers, edges\n");
    return check::pass();
}
