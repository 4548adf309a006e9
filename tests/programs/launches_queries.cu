// needs: launches
// nvcc: -rdc=true -lcudadevrt
// What device code can ask of errors, devices and kernels: the same as the host is told.
#include "check.h"

__device__ int table[256];
__device__ char said[4][64];
__device__ int numbers[8];

__global__ void __launch_bounds__(96) bounded(int x) {
    __shared__ int pad[333];
    pad[threadIdx.x] = x;
    __syncthreads();
    table[threadIdx.x] = pad[(threadIdx.x + 1) % blockDim.x];
}

__device__ void copy(int place, const char *text) {
    int i = 0;
    for (; i < 63 && text[i]; i++) said[place][i] = text[i];
    said[place][i] = 0;
}

__global__ void ask() {
    copy(0, cudaGetErrorName(cudaErrorInvalidValue));
    copy(1, cudaGetErrorString(cudaErrorInvalidConfiguration));
    copy(2, cudaGetErrorString(cudaSuccess));
    copy(3, cudaGetErrorString((cudaError_t)123456));
    cudaFuncAttributes facts;
    if (cudaFuncGetAttributes(&facts, bounded) == cudaSuccess) {
        numbers[0] = facts.maxThreadsPerBlock;
        numbers[1] = facts.sharedSizeBytes;
    }
    cudaDeviceGetAttribute(&numbers[2], cudaDevAttrWarpSize, 0);
    cudaDeviceGetAttribute(&numbers[3], cudaDevAttrMaxThreadsPerBlock, 0);
    cudaOccupancyMaxActiveBlocksPerMultiprocessor(&numbers[4], bounded, 96, 0);
    cudaDeviceGetAttribute(&numbers[5], cudaDevAttrMultiProcessorCount, 0);
    numbers[6] = cudaDeviceGetAttribute(&numbers[7], cudaDevAttrWarpSize, 99) != cudaSuccess;
}

int main() {
    ask<<<1, 1>>>();
    RAN();
    char texts[4][64];
    int got[8], occupancy = 0, sms = 0;
    OK(cudaMemcpyFromSymbol(texts, said, sizeof(texts)));
    OK(cudaMemcpyFromSymbol(got, numbers, sizeof(got)));
    OK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&occupancy, bounded, 96, 0));
    OK(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0));
    CHECK(got[0] == 96 && got[1] == 333 * 4, "%d %d", got[0], got[1]);
    CHECK(got[2] == 32 && got[3] == 1024, "%d %d", got[2], got[3]);
    CHECK(got[4] == occupancy, "%d, not %d", got[4], occupancy);
    CHECK(got[5] == sms, "%d, not %d", got[5], sms);
    CHECK(got[6] == 1, "a device that is none");
    for (const char *text : texts) printf("%s\n", text);
    printf("PASS\n");
}
