// needs: sm_90
// nvcc: -std=c++17 -gencode arch=compute_90,code=compute_90
// Boxes of tensors between global and shared memory: one to five dimensions, corners beyond every edge, steps,
// swizzled rows, elements of one to eight bytes, NaNs for what is not there, and stores that leave what is beyond.
//
// A GPU copies units of 16 bytes. What was seen on an H200: a corner whose innermost coordinate is at no multiple of them is
// an illegal instruction, for loads and stores, and so is a store that begins before the first element in any dimension; boxes
// that are wholly beyond work. Behind rows that end within a unit a store writes the rest of it, so none here reaches the end of
// such a row.
#include "driver.h"

#include <cuda/barrier>
#include <cuda/ptx>

namespace ptx = cuda::ptx;
using Barrier = cuda::barrier<cuda::thread_scope_block>;

constexpr int MOST = 16384;

struct Corner {
    int at[5];
};

template <int RANK> __device__ void load(char *tile, const CUtensorMap *map, const Corner &c, Barrier &barrier) {
    int at[RANK];
    for (int i = 0; i < RANK; i++) at[i] = c.at[i];
    ptx::cp_async_bulk_tensor(ptx::space_cluster, ptx::space_global, tile, map, at, cuda::device::barrier_native_handle(barrier));
}

template <int RANK> __device__ void store(const CUtensorMap *map, const Corner &c, char *tile) {
    int at[RANK];
    for (int i = 0; i < RANK; i++) at[i] = c.at[i];
    ptx::cp_async_bulk_tensor(ptx::space_global, ptx::space_shared, map, at, tile);
}

// A box to shared memory, as it lies there to `seen`, and from there to another place of another tensor.
template <int RANK>
__global__ void copy(const __grid_constant__ CUtensorMap from, const __grid_constant__ CUtensorMap to, Corner c, Corner d,
                     char *seen, int bytes) {
    __shared__ alignas(1024) char tile[MOST];
    __shared__ Barrier barrier;
    for (int i = threadIdx.x; i < MOST; i += blockDim.x) tile[i] = 0x55;
    if (threadIdx.x == 0) {
        init(&barrier, blockDim.x);
        ptx::fence_proxy_async(ptx::space_shared);
    }
    __syncthreads();
    Barrier::arrival_token token;
    if (threadIdx.x == 0) {
        load<RANK>(tile, &from, c, barrier);
        token = cuda::device::barrier_arrive_tx(barrier, 1, bytes);
    } else {
        token = barrier.arrive();
    }
    barrier.wait(std::move(token));
    for (int i = threadIdx.x; i < MOST; i += blockDim.x) seen[i] = tile[i];
    ptx::fence_proxy_async(ptx::space_shared);
    __syncthreads();
    if (threadIdx.x == 0) {
        store<RANK>(&to, d, tile);
        ptx::cp_async_bulk_commit_group();
        ptx::cp_async_bulk_wait_group(ptx::n32_t<0>());
    }
}

struct Case {
    CUtensorMapDataType type;
    int element, rank;
    cuuint64_t dims[5];
    cuuint32_t box[5], steps[5];
    Corner from, to;
    CUtensorMapSwizzle swizzle;
    bool nan;
};

static size_t place(const Case &c, const long (&at)[5]) {
    size_t stride = 1, sum = 0;
    for (int i = 0; i < c.rank; i++) {
        sum += at[i] * stride;
        // Rows start at multiples of 16 bytes.
        stride *= i ? c.dims[i] : (c.dims[0] * c.element + 15) / 16 * 16 / c.element;
    }
    return sum * c.element;
}

static CUtensorMap encode(const Case &c, void *memory) {
    alignas(64) CUtensorMap map;
    cuuint64_t strides[4];
    for (int i = 1; i < c.rank; i++) {
        long at[5] = {};
        at[i] = 1;
        strides[i - 1] = place(c, at);
    }
    CUresult result = DRIVER(cuTensorMapEncodeTiled)(
        &map, c.type, c.rank, memory, c.dims, strides, c.box, c.steps, CU_TENSOR_MAP_INTERLEAVE_NONE, c.swizzle,
        CU_TENSOR_MAP_L2_PROMOTION_NONE,
        c.nan ? CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA : CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    CHECK(result == CUDA_SUCCESS, "%d", int(result));
    return map;
}

static bool is_nan(const char *bytes, int element) {
    if (element == 4) {
        float value;
        memcpy(&value, bytes, 4);
        return value != value;
    }
    uint16_t half;
    memcpy(&half, bytes, 2);
    return (half & 0x7c00) == 0x7c00 && half & 0x3ff;
}

static void run(const char *name, const Case &c) {
    long last[5] = {};
    for (int i = 0; i < c.rank; i++) last[i] = c.dims[i] - 1;
    size_t size = place(c, last) + c.element;
    std::vector<char> input(size + 64), untouched(size + 64, 0x77);
    for (size_t i = 0; i < input.size(); i++) input[i] = char(i * 7 + i / 256 + 1) & 0x3f;
    Array<char> from(input), to(untouched), seen(MOST);
    int counts[5] = {1, 1, 1, 1, 1}, bytes = c.element;
    for (int i = 0; i < c.rank; i++) {
        counts[i] = i ? (c.box[i] + c.steps[i] - 1) / c.steps[i] : c.box[i];
        bytes *= counts[i];
    }
    CUtensorMap source = encode(c, from), target = encode(c, to);
    switch (c.rank) {
    case 1: copy<1><<<1, 64>>>(source, target, c.from, c.to, seen, bytes); break;
    case 2: copy<2><<<1, 64>>>(source, target, c.from, c.to, seen, bytes); break;
    case 3: copy<3><<<1, 64>>>(source, target, c.from, c.to, seen, bytes); break;
    case 4: copy<4><<<1, 64>>>(source, target, c.from, c.to, seen, bytes); break;
    default: copy<5><<<1, 64>>>(source, target, c.from, c.to, seen, bytes);
    }
    RAN();
    auto tile = seen.host(), got = to.host(), wanted = untouched;
    int swizzle = c.swizzle == CU_TENSOR_MAP_SWIZZLE_32B ? 1 : c.swizzle == CU_TENSOR_MAP_SWIZZLE_64B ? 3 : c.swizzle == CU_TENSOR_MAP_SWIZZLE_128B ? 7 : 0;
    int missing = 0;
    for (int n = 0; n < bytes / c.element; n++) {
        long in[5] = {}, out[5] = {};
        bool there = true, lands = true;
        for (int i = 0, rest = n; i < c.rank; i++) {
            int index = rest % counts[i] * (i ? c.steps[i] : 1);
            rest /= counts[i];
            in[i] = c.from.at[i] + index;
            out[i] = c.to.at[i] + index;
            there &= in[i] >= 0 && in[i] < long(c.dims[i]);
            lands &= out[i] >= 0 && out[i] < long(c.dims[i]);
        }
        int at = n * c.element;
        at ^= (at >> 7 & swizzle) << 4;
        const char *element = &tile[at];
        if (there) {
            CHECK(!memcmp(element, &input[place(c, in)], c.element), "%s: element %d of the box", name, n);
        } else if (c.nan) {
            CHECK(is_nan(element, c.element), "%s: element %d is no NaN", name, n);
        } else {
            for (int i = 0; i < c.element; i++) CHECK(!element[i], "%s: element %d is not 0", name, n);
        }
        missing += !there;
        if (lands) memcpy(&wanted[place(c, out)], element, c.element);
    }
    for (int i = bytes; i < MOST; i++) CHECK(tile[i] == 0x55, "%s: byte %d beyond the box", name, i);
    CHECK(got == wanted, "%s: what was stored", name);
    printf("%s: %d elements, %d beyond the edges\n", name, bytes / c.element, missing);
}

int main() {
    const auto NONE = CU_TENSOR_MAP_SWIZZLE_NONE;
    const auto F32 = CU_TENSOR_MAP_DATA_TYPE_FLOAT32, F16 = CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
    run("a line", {F32, 4, 1, {1000}, {256}, {1}, {{100}}, {{800}}, NONE, false});
    run("before a line", {F32, 4, 1, {1000}, {64}, {1}, {{-20}}, {{996}}, NONE, false});
    run("a plane", {F32, 4, 2, {64, 48}, {32, 16}, {1, 1}, {{8, 8}}, {{16, 20}}, NONE, false});
    run("corners", {F32, 4, 2, {60, 48}, {32, 16}, {1, 1}, {{-4, 40}}, {{48, 44}}, NONE, false});
    run("all but four beyond", {F32, 4, 2, {60, 48}, {32, 16}, {1, 1}, {{56, 47}}, {{56, 47}}, NONE, false});
    run("NaNs", {F32, 4, 2, {60, 48}, {32, 16}, {1, 1}, {{40, -8}}, {{0, 0}}, NONE, true});
    run("halves and NaNs", {F16, 2, 2, {93, 48}, {32, 8}, {1, 1}, {{72, 44}}, {{8, 3}}, NONE, true});
    run("bytes", {CU_TENSOR_MAP_DATA_TYPE_UINT8, 1, 3, {100, 10, 5}, {48, 5, 2}, {1, 1, 1}, {{64, 7, 1}}, {{16, 2, 3}}, NONE, false});
    run("doubles", {CU_TENSOR_MAP_DATA_TYPE_FLOAT64, 8, 3, {20, 10, 5}, {8, 5, 2}, {1, 1, 1}, {{14, 7, 1}}, {{2, 2, 3}}, NONE, false});
    run("four dimensions", {F16, 2, 4, {32, 6, 5, 4}, {16, 3, 2, 2}, {1, 1, 1, 1}, {{24, 4, -1, 3}}, {{0, 1, 2, 1}}, NONE, false});
    run("five dimensions", {F32, 4, 5, {16, 6, 5, 4, 3}, {8, 3, 2, 2, 2}, {1, 1, 1, 1, 1}, {{4, 4, 4, 3, 2}}, {{0, 1, 2, 1, 0}}, NONE, false});
    run("steps", {F32, 4, 3, {32, 20, 9}, {16, 9, 5}, {1, 2, 3}, {{8, 3, -3}}, {{4, 1, 1}}, NONE, false});
    run("swizzled by 32", {F16, 2, 2, {64, 64}, {16, 33}, {1, 1}, {{8, 40}}, {{40, 3}}, CU_TENSOR_MAP_SWIZZLE_32B, false});
    run("swizzled by 64", {F16, 2, 2, {64, 64}, {32, 40}, {1, 1}, {{8, 40}}, {{40, 3}}, CU_TENSOR_MAP_SWIZZLE_64B, false});
    run("swizzled by 128", {F16, 2, 2, {128, 64}, {64, 48}, {1, 1}, {{72, 30}}, {{8, 3}}, CU_TENSOR_MAP_SWIZZLE_128B, false});
    return check::pass();
}
