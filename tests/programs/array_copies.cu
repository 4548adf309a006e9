// needs: textures
// Copies from and to arrays in every direction: runs, rectangles and boxes, by the runtime and by the
// driver API; streams; memory that comes back when arrays go.
#include <algorithm>

#include "driver.h"

int main() {
    const int width = 37, height = 11, depth = 5;
    auto channel = cudaCreateChannelDesc<int>();
    std::vector<int> numbers(width * height * depth);
    for (size_t i = 0; i < numbers.size(); i++) numbers[i] = int(i * 7 + 1);

    // A rectangle into the middle of one array, from there into another, and out.
    cudaArray_t first, second;
    OK(cudaMallocArray(&first, &channel, width, height));
    OK(cudaMallocArray(&second, &channel, width, height));
    OK(cudaMemcpy2DToArray(first, 4 * 4, 3, numbers.data(), width * 4, 20 * 4, 6, cudaMemcpyHostToDevice));
    OK(cudaMemcpy2DArrayToArray(second, 8, 1, first, 4 * 4, 3, 20 * 4, 6, cudaMemcpyDeviceToDevice));
    std::vector<int> got(width * height, -1);
    OK(cudaMemcpy2DFromArray(got.data(), width * 4, second, 8, 1, 20 * 4, 6, cudaMemcpyDeviceToHost));
    for (int y = 0; y < 6; y++)
        for (int x = 0; x < 20; x++) CHECK(got[y * width + x] == numbers[y * width + x], "%d, %d: %d", x, y, got[y * width + x]);
    CHECK(got[20] == -1 && got[6 * width] == -1, "bytes beside the rectangle");
    // All of it: what was not written is zero.
    OK(cudaMemcpy2DFromArray(got.data(), width * 4, first, 0, 0, width * 4, height, cudaMemcpyDeviceToHost));
    long long sum = 0;
    for (int v : got) sum += v;
    printf("sum %lld\n", sum);
    FAILS(cudaMemcpy2DToArray(first, 4 * 4, 6, numbers.data(), width * 4, 20 * 4, 6, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
    cudaGetLastError();

    // Runs of bytes by the driver API, which lie in the first row.
    CUarray flat = reinterpret_cast<CUarray>(first);
    CUarray other = reinterpret_cast<CUarray>(second);
    std::vector<int> all(numbers.begin(), numbers.begin() + width);
    CU(cuMemcpyHtoA, flat, 0, all.data(), all.size() * 4);
    std::vector<int> part(10);
    CU(cuMemcpyAtoH, part.data(), flat, 5 * 4, part.size() * 4);
    for (int i = 0; i < 10; i++) CHECK(part[i] == numbers[5 + i], "run, element %d: %d", i, part[i]);
    Array<int> device(20);
    CUdeviceptr pointer = reinterpret_cast<CUdeviceptr>(static_cast<int *>(device));
    CU(cuMemcpyAtoD, pointer, flat, 3 * 4, 8 * 4);
    CU(cuMemcpyDtoA, other, 2 * 4, pointer, 8 * 4);
    CU(cuMemcpyAtoA, flat, 0, other, 2 * 4, 8 * 4);
    CU(cuMemcpyAtoH, part.data(), flat, 0, 8 * 4);
    for (int i = 0; i < 8; i++) CHECK(part[i] == numbers[3 + i], "way round, element %d: %d", i, part[i]);
    CHECK(DRIVER(cuMemcpyHtoA)(flat, 4, all.data(), all.size() * 4) == CUDA_ERROR_INVALID_VALUE, "a run beyond the row");
    OK(cudaFreeArray(second));

    // Boxes, in a stream, from page-locked memory and device memory.
    cudaStream_t stream;
    OK(cudaStreamCreate(&stream));
    cudaArray_t solid;
    OK(cudaMalloc3DArray(&solid, &channel, make_cudaExtent(width, height, depth)));
    int *pinned;
    OK(cudaMallocHost(&pinned, numbers.size() * 4));
    std::copy(numbers.begin(), numbers.end(), pinned);
    cudaMemcpy3DParms copy = {};
    copy.srcPtr = make_cudaPitchedPtr(pinned, width * 4, width, height);
    copy.dstArray = solid;
    copy.extent = make_cudaExtent(width, height, depth);
    copy.kind = cudaMemcpyHostToDevice;
    OK(cudaMemcpy3DAsync(&copy, stream));
    cudaPitchedPtr box;
    OK(cudaMalloc3D(&box, make_cudaExtent(10 * 4, 4, 3)));
    copy = {};
    copy.srcArray = solid;
    copy.srcPos = make_cudaPos(5, 6, 1);
    copy.dstPtr = box;
    copy.extent = make_cudaExtent(10, 4, 3);
    copy.kind = cudaMemcpyDeviceToDevice;
    OK(cudaMemcpy3DAsync(&copy, stream));
    std::vector<int> small(10 * 4 * 3);
    copy = {};
    copy.srcPtr = box;
    copy.dstPtr = make_cudaPitchedPtr(small.data(), 40, 10, 4);
    copy.extent = make_cudaExtent(40, 4, 3);
    copy.kind = cudaMemcpyDeviceToHost;
    OK(cudaMemcpy3DAsync(&copy, stream));
    OK(cudaStreamSynchronize(stream));
    for (int z = 0; z < 3; z++)
        for (int y = 0; y < 4; y++)
            for (int x = 0; x < 10; x++) {
                int expected = numbers[((z + 1) * height + y + 6) * width + x + 5], v = small[(z * 4 + y) * 10 + x];
                CHECK(v == expected, "box %d, %d, %d: %d, not %d", x, y, z, v, expected);
            }
    OK(cudaFree(box.ptr));
    OK(cudaFreeHost(pinned));
    OK(cudaFreeArray(solid));
    OK(cudaFreeArray(first));

    // Descriptions by the driver API.
    CUDA_ARRAY3D_DESCRIPTOR wanted = {16, 8, 6, CU_AD_FORMAT_HALF, 2, CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_SURFACE_LDST}, kept;
    CUarray described;
    CU(cuArray3DCreate, &described, &wanted);
    CU(cuArray3DGetDescriptor, &kept, described);
    CHECK(kept.Width == 16 && kept.Height == 8 && kept.Depth == 6 && kept.Format == CU_AD_FORMAT_HALF && kept.NumChannels == 2 && kept.Flags == wanted.Flags,
          "%zu × %zu × %zu, format %d, flags %x", kept.Width, kept.Height, kept.Depth, kept.Format, kept.Flags);
    CU(cuArrayDestroy, described);
    for (auto change : {0, 1, 2, 3}) {
        auto wrong = wanted;
        if (change == 0) wrong.Width = 0;
        if (change == 1) wrong.NumChannels = 3;
        if (change == 2) wrong.Depth = 1 << 20;
        if (change == 3) wrong.Flags = CUDA_ARRAY3D_CUBEMAP;
        CHECK(DRIVER(cuArray3DCreate)(&described, &wrong) == CUDA_ERROR_INVALID_VALUE, "wrong description %d", change);
    }

    // Large arrays, again and again: more than a device has, were they not given back.
    for (int round = 0; round < 40; round++) {
        cudaArray_t large;
        OK(cudaMallocArray(&large, &channel, 8192, 8192));
        OK(cudaMemcpy2DToArray(large, 0, 8191, numbers.data(), width * 4, width * 4, 1, cudaMemcpyHostToDevice));
        OK(cudaFreeArray(large));
    }
    OK(cudaStreamDestroy(stream));
    return check::pass();
}
