// needs: plain
// Launch bounds and function attributes, occupancy, and launches that respect or break them.
#include "check.h"

__global__ void __launch_bounds__(64, 2) bounded(int *out) { out[blockIdx.x * blockDim.x + threadIdx.x] = blockDim.x; }
__global__ void plain(int *out) {
    __shared__ int s[256];
    extern __shared__ int more[];
    s[threadIdx.x] = threadIdx.x;
    if (threadIdx.x == 0) more[0] = 1;
    __syncthreads();
    out[threadIdx.x] = s[blockDim.x - 1 - threadIdx.x] + more[0];
}
__constant__ int constants[100];
__global__ void with_local(int *out, int n) {
    int values[200];
    for (int i = 0; i < 200; i++) values[i] = i * n + constants[i % 100];
    out[threadIdx.x] = values[n % 200];
}

int main() {
    cudaFuncAttributes attributes;
    OK(cudaFuncGetAttributes(&attributes, bounded));
    CHECK(attributes.maxThreadsPerBlock == 64, "bounded: %d threads", attributes.maxThreadsPerBlock);
    CHECK(attributes.numRegs > 0 && attributes.ptxVersion > 0 && attributes.binaryVersion > 0, "%d registers, ptx %d, binary %d",
          attributes.numRegs, attributes.ptxVersion, attributes.binaryVersion);
    OK(cudaFuncGetAttributes(&attributes, plain));
    CHECK(attributes.sharedSizeBytes == 1024, "plain: %zu bytes of shared memory", attributes.sharedSizeBytes);
    CHECK(attributes.maxThreadsPerBlock >= 256 && attributes.maxThreadsPerBlock <= 1024, "plain: %d threads", attributes.maxThreadsPerBlock);
    CHECK(attributes.maxDynamicSharedSizeBytes > 0, "no dynamic shared memory");
    OK(cudaFuncGetAttributes(&attributes, with_local));
    CHECK(attributes.localSizeBytes >= 800, "with_local: %zu bytes of local memory", attributes.localSizeBytes);

    Array<int> out(4096);
    bounded<<<3, 64>>>(out);
    RAN();
    CHECK(out.host()[191] == 64, "%d", out.host()[191]);
    bounded<<<3, 65>>>(out);
    FAILS(cudaGetLastError(), cudaErrorInvalidValue);
    OK(cudaDeviceSynchronize());

    int active = 0, one = 0, grid = 0, block = 0;
    OK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&active, plain, 128, 0));
    OK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&one, plain, 1024, 0));
    CHECK(active >= 2 && one >= 1 && one <= active, "%d blocks of 128, %d of 1024", active, one);
    OK(cudaOccupancyMaxPotentialBlockSize(&grid, &block, plain, 0, 0));
    CHECK(grid >= 1 && block >= 32 && block <= 1024 && block % 32 == 0, "%d × %d", grid, block);
    size_t dynamic = 0;
    OK(cudaOccupancyAvailableDynamicSMemPerBlock(&dynamic, plain, 1, 128));
    CHECK(dynamic >= 32 * 1024, "%zu bytes", dynamic);
    plain<<<1, 128, 4>>>(out);
    RAN();
    CHECK(out.host()[0] == 128, "%d", out.host()[0]);
    with_local<<<1, 32>>>(out, 7);
    RAN();
    CHECK(out.host()[5] == 49, "%d", out.host()[5]);
    printf("three kernels\n");
    return check::pass();
}
