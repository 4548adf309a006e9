// needs: plain
// Launches that cannot be: the error comes at once, is remembered once, and hurts nothing later.
// (Runtimes before 13 say cudaErrorInvalidConfiguration; 13.0 says cudaErrorInvalidValue to all.)
#include "check.h"

__global__ void fill(int *out) { out[blockIdx.x * blockDim.x + threadIdx.x] = 1; }

int main() {
    Array<int> out(4096);
    out.clear();
    struct {
        dim3 grid, block;
        size_t shared;
        cudaError_t error;
    } cases[] = {
        {1, 0, 0, cudaErrorInvalidValue},
        {0, 1, 0, cudaErrorInvalidValue},
        {1, 1025, 0, cudaErrorInvalidValue},
        {1, dim3(32, 33, 1), 0, cudaErrorInvalidValue},
        {1, dim3(1, 1, 65), 0, cudaErrorInvalidValue},
        {dim3(1, 65536, 1), 1, 0, cudaErrorInvalidValue},
        {dim3(1, 1, 65536), 1, 0, cudaErrorInvalidValue},
        {1, 1, 1 << 20, cudaErrorInvalidValue},
    };
    int number = 0;
    for (auto &c : cases) {
        fill<<<c.grid, c.block, c.shared>>>(out);
        cudaError_t error = cudaPeekAtLastError();
        CHECK(error == c.error, "case %d: %s, not %s", number, cudaGetErrorName(error), cudaGetErrorName(c.error));
        FAILS(cudaGetLastError(), c.error);
        OK(cudaGetLastError());
        number++;
    }
    OK(cudaDeviceSynchronize());
    fill<<<4, 1024>>>(out);
    RAN();
    for (int v : out.host()) CHECK(v == 1, "%d", v);

    void *pointer = nullptr;
    FAILS(cudaMalloc(&pointer, size_t(1) << 50), cudaErrorMemoryAllocation);
    FAILS(cudaGetLastError(), cudaErrorMemoryAllocation);
    FAILS(cudaMemcpy(out, nullptr, 4, cudaMemcpyKind(77)), cudaErrorInvalidMemcpyDirection);
    FAILS(cudaSetDevice(-1), cudaErrorInvalidDevice);
    FAILS(cudaFree((int *)out + 1), cudaErrorInvalidValue);
    FAILS(cudaStreamQuery(nullptr) == cudaSuccess ? cudaSuccess : cudaErrorUnknown, cudaSuccess);
    cudaGetLastError();
    OK(cudaFree(nullptr));
    OK(cudaFreeHost(nullptr));
    CHECK(!strcmp(cudaGetErrorName(cudaErrorInvalidConfiguration), "cudaErrorInvalidConfiguration"), "%s", cudaGetErrorName(cudaErrorInvalidConfiguration));
    CHECK(!strcmp(cudaGetErrorString(cudaErrorMemoryAllocation), "out of memory"), "%s", cudaGetErrorString(cudaErrorMemoryAllocation));
    fill<<<1, 1>>>(out);
    RAN();
    printf("%d launches refused\n", number);
    return check::pass();
}
