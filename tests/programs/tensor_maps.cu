// needs: plain
// Descriptors for tensor copies: what is encoded, what is refused, and that an address can be replaced.
// Copies by them are in tensor_copies.
#include "driver.h"

#include <cstring>

struct Tensor {
    CUtensorMapDataType type = CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
    cuuint32_t rank = 2;
    void *address;
    cuuint64_t dims[5] = {64, 48, 4, 4, 4}, strides[4] = {256, 16384, 65536, 262144};
    cuuint32_t box[5] = {16, 8, 1, 1, 1}, steps[5] = {1, 1, 1, 1, 1};
    CUtensorMapInterleave interleave = CU_TENSOR_MAP_INTERLEAVE_NONE;
    CUtensorMapSwizzle swizzle = CU_TENSOR_MAP_SWIZZLE_NONE;
    CUtensorMapFloatOOBfill fill = CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE;
};

alignas(64) static CUtensorMap maps[3];

static CUresult tiled(CUtensorMap *map, const Tensor &t) {
    return DRIVER(cuTensorMapEncodeTiled)(map, t.type, t.rank, t.address, t.dims, t.strides, t.box, t.steps, t.interleave,
                                          t.swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_128B, t.fill);
}

template <class Change> static void refused(const char *what, Tensor t, Change change) {
    change(t);
    CUresult result = tiled(maps, t);
    CHECK(result == CUDA_ERROR_INVALID_VALUE, "%s: %d", what, int(result));
}

int main() {
    char *memory;
    OK(cudaMalloc((void **)&memory, 1 << 20));
    Tensor tensor;
    tensor.address = memory;
    auto encoded = [&](CUtensorMap *map, const Tensor &t) {
        CUresult result = tiled(map, t);
        CHECK(result == CUDA_SUCCESS, "%d", int(result));
    };
    encoded(&maps[0], tensor);
    encoded(&maps[1], tensor);
    CHECK(!memcmp(&maps[0], &maps[1], sizeof maps[0]), "the same tensor has the same descriptor");
    Tensor other = tensor;
    other.address = memory + 4096;
    encoded(&maps[1], other);
    CHECK(memcmp(&maps[0], &maps[1], sizeof maps[0]), "another address, the same descriptor");
    // What is replaced is as if it had been so from the beginning, and back.
    CU(cuTensorMapReplaceAddress, &maps[0], memory + 4096);
    CHECK(!memcmp(&maps[0], &maps[1], sizeof maps[0]), "the address was not replaced");
    CU(cuTensorMapReplaceAddress, &maps[0], memory);
    encoded(&maps[1], tensor);
    CHECK(!memcmp(&maps[0], &maps[1], sizeof maps[0]), "the address was not put back");

    for (cuuint32_t rank = 1; rank <= 5; rank++) {
        Tensor t = tensor;
        t.rank = rank;
        encoded(&maps[2], t);
    }
    for (auto swizzle : {CU_TENSOR_MAP_SWIZZLE_32B, CU_TENSOR_MAP_SWIZZLE_64B, CU_TENSOR_MAP_SWIZZLE_128B}) {
        Tensor t = tensor;
        t.swizzle = swizzle;
        t.box[0] = 8;
        encoded(&maps[2], t);
    }
    refused("no dimension", tensor, [](Tensor &t) { t.rank = 0; });
    refused("six dimensions", tensor, [](Tensor &t) { t.rank = 6; });
    refused("a crooked address", tensor, [](Tensor &t) { t.address = (char *)t.address + 8; });
    refused("an empty dimension", tensor, [](Tensor &t) { t.dims[1] = 0; });
    refused("a crooked stride", tensor, [](Tensor &t) { t.strides[0] = 264; });
    refused("too long a stride", tensor, [](Tensor &t) { t.strides[0] = 1ull << 40; });
    refused("an empty box", tensor, [](Tensor &t) { t.box[1] = 0; });
    refused("too large a box", tensor, [](Tensor &t) { t.box[1] = 257; });
    refused("a box of 12 bytes", tensor, [](Tensor &t) { t.box[0] = 3; });
    refused("too far a step", tensor, [](Tensor &t) { t.steps[1] = 9; });
    refused("a box wider than its swizzle", tensor, [](Tensor &t) { t.swizzle = CU_TENSOR_MAP_SWIZZLE_32B; });
    refused("interleaved in two dimensions", tensor, [](Tensor &t) { t.interleave = CU_TENSOR_MAP_INTERLEAVE_16B; });
    refused("no such type", tensor, [](Tensor &t) { t.type = CUtensorMapDataType(99); });
    refused("NaN among integers", tensor, [](Tensor &t) {
        t.type = CU_TENSOR_MAP_DATA_TYPE_INT32;
        t.fill = CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA;
    });
    refused("no first step", tensor, [](Tensor &t) { t.steps[0] = 0; });
    CHECK(tiled(nullptr, tensor) == CUDA_ERROR_INVALID_VALUE, "NULL");
    CHECK(DRIVER(cuTensorMapReplaceAddress)(&maps[0], memory + 8) == CUDA_ERROR_INVALID_VALUE, "a crooked address");

    // Columns of pixels.
    int lower[3] = {-1, -1, -1}, upper[3] = {1, 1, 1};
    auto columns = [&](cuuint32_t rank, int from, cuuint32_t channels, cuuint32_t pixels) {
        lower[0] = from;
        return DRIVER(cuTensorMapEncodeIm2col)(&maps[2], tensor.type, rank, memory, tensor.dims, tensor.strides, lower, upper,
                                               channels, pixels, tensor.steps, tensor.interleave, tensor.swizzle,
                                               CU_TENSOR_MAP_L2_PROMOTION_NONE, tensor.fill);
    };
    CHECK(columns(4, -1, 8, 64) == CUDA_SUCCESS, "%d", int(columns(4, -1, 8, 64)));
    CHECK(columns(4, -128, 8, 1024) == CUDA_SUCCESS, "%d", int(columns(4, -128, 8, 1024)));
    CHECK(columns(2, -1, 8, 64) == CUDA_ERROR_INVALID_VALUE, "two dimensions");
    CHECK(columns(4, -129, 8, 64) == CUDA_ERROR_INVALID_VALUE, "too far a corner");
    CHECK(columns(4, -1, 8, 1025) == CUDA_ERROR_INVALID_VALUE, "too many pixels");
    CHECK(columns(4, -1, 257, 64) == CUDA_ERROR_INVALID_VALUE, "too many channels");
    CHECK(columns(4, -1, 0, 64) == CUDA_ERROR_INVALID_VALUE, "no channels");
    OK(cudaFree(memory));
    printf("done\n");
    return check::pass();
}
