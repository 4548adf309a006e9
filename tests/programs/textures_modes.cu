// needs: textures
// Every address mode in every dimension, by the nearest texel and by filtering, with coordinates in texels and from 0 to 1,
// inside, at the edges and far outside; bytes as numbers from 0 to 1. Coordinates have at most 8 fractional bits, for which
// filtering is exact here.
#include "check.h"

__global__ void look1(cudaTextureObject_t t, const float *x, float *out, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) out[i] = tex1D<float>(t, x[i * 3]);
}
__global__ void look2(cudaTextureObject_t t, const float *x, float *out, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) out[i] = tex2D<float>(t, x[i * 3], x[i * 3 + 1]);
}
__global__ void look3(cudaTextureObject_t t, const float *x, float *out, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) out[i] = tex3D<float>(t, x[i * 3], x[i * 3 + 1], x[i * 3 + 2]);
}

constexpr int SIZE[3] = {16, 8, 4};

// The texel of an index in one dimension, or -1 for the border.
static int wrap(int index, int size, cudaTextureAddressMode mode) {
    switch (mode) {
    case cudaAddressModeWrap: return (index % size + size) % size;
    case cudaAddressModeMirror: {
        int place = (index % (2 * size) + 2 * size) % (2 * size);
        return place < size ? place : 2 * size - 1 - place;
    }
    case cudaAddressModeBorder: return index < 0 || index >= size ? -1 : index;
    default: return std::min(std::max(index, 0), size - 1);
    }
}

static double model(const std::vector<float> &texels, int rank, const float *at, cudaTextureAddressMode mode, bool filtered, bool normalised) {
    double sum = 0;
    int low[3] = {};
    double part[3] = {};
    for (int d = 0; d < rank; d++) {
        double x = normalised ? double(at[d]) * SIZE[d] : at[d];
        if (filtered) x -= 0.5;
        low[d] = int(std::floor(x));
        part[d] = x - low[d];
    }
    for (int corner = 0; corner < (filtered ? 1 << rank : 1); corner++) {
        double weight = 1;
        int place = 0, stride = 1;
        bool beyond = false;
        for (int d = 0; d < rank; d++) {
            int upper = corner >> d & 1, texel = wrap(low[d] + upper, SIZE[d], mode);
            if (filtered) weight *= upper ? part[d] : 1 - part[d];
            beyond |= texel < 0;
            place += texel * stride;
            stride *= SIZE[d];
        }
        if (!beyond) sum += weight * texels[place];
    }
    return sum;
}

int main() {
    const char *modes[] = {"wrap", "clamp", "mirror", "border"};
    const int count = 400;
    Random random(71);
    for (int rank = 1; rank <= 3; rank++) {
        int total = 1;
        for (int d = 0; d < rank; d++) total *= SIZE[d];
        std::vector<float> texels(total);
        std::vector<unsigned char> bytes(total);
        // Few bits, so that sums of products are exact.
        for (int i = 0; i < total; i++) bytes[i] = (unsigned char)(texels[i] = float(random.below(16)));
        auto extent = make_cudaExtent(SIZE[0], rank > 1 ? SIZE[1] : 0, rank > 2 ? SIZE[2] : 0);
        for (bool small : {false, true}) {
            auto format = small ? cudaCreateChannelDesc<unsigned char>() : cudaCreateChannelDesc<float>();
            cudaArray_t array;
            OK(cudaMalloc3DArray(&array, &format, extent));
            cudaMemcpy3DParms copy = {};
            size_t element = small ? 1 : 4;
            copy.srcPtr = make_cudaPitchedPtr(small ? (void *)bytes.data() : texels.data(), SIZE[0] * element, SIZE[0], rank > 1 ? SIZE[1] : 1);
            copy.dstArray = array;
            copy.extent = make_cudaExtent(SIZE[0], rank > 1 ? SIZE[1] : 1, rank > 2 ? SIZE[2] : 1);
            copy.kind = cudaMemcpyHostToDevice;
            OK(cudaMemcpy3D(&copy));
            for (int m = 0; m < 4; m++)
                for (bool filtered : {false, true})
                    for (bool normalised : {false, true}) {
                        auto mode = cudaTextureAddressMode(m);
                        // Wrapping and mirroring are for normalised coordinates alone.
                        if (!normalised && (mode == cudaAddressModeWrap || mode == cudaAddressModeMirror)) continue;
                        cudaResourceDesc resource = {};
                        resource.resType = cudaResourceTypeArray;
                        resource.res.array.array = array;
                        cudaTextureDesc how = {};
                        for (int d = 0; d < rank; d++) how.addressMode[d] = mode;
                        how.filterMode = filtered ? cudaFilterModeLinear : cudaFilterModePoint;
                        how.readMode = small ? cudaReadModeNormalizedFloat : cudaReadModeElementType;
                        how.normalizedCoords = normalised;
                        cudaTextureObject_t texture;
                        OK(cudaCreateTextureObject(&texture, &resource, &how, nullptr));
                        std::vector<float> at(count * 3);
                        for (int i = 0; i < count; i++)
                            for (int d = 0; d < 3; d++) {
                                // Never at the middle between two texels where the nearest is asked for.
                                double texel = (int(random.below(uint32_t(SIZE[d] * 4 * 64))) - SIZE[d] * 128 + (filtered ? 0 : 0.5)) / 64;
                                at[i * 3 + d] = float(normalised ? texel / SIZE[d] : texel);
                            }
                        Array<float> x(at), out(count);
                        auto look = rank == 1 ? look1 : rank == 2 ? look2 : look3;
                        look<<<blocks(count, 128), 128>>>(texture, x, out, count);
                        RAN();
                        auto got = out.host();
                        for (int i = 0; i < count; i++) {
                            double expected = model(texels, rank, &at[i * 3], mode, filtered, normalised) / (small ? 255 : 1);
                            // A device may round weights to 8 bits each.
                            double bound = filtered ? (small ? 0.0008 : 0.2) : small ? 1e-6 : 0;
                            CHECK(std::fabs(got[i] - expected) <= bound, "%dD, %s%s%s%s at %g %g %g: %g, not %g", rank, modes[m], filtered ? ", filtered" : "",
                                  normalised ? ", normalised" : "", small ? ", bytes" : "", at[i * 3], at[i * 3 + 1], at[i * 3 + 2], got[i], expected);
                        }
                        OK(cudaDestroyTextureObject(texture));
                    }
            OK(cudaFreeArray(array));
        }
        printf("%d dimensions\n", rank);
    }
    return check::pass();
}
