// needs: pools
// Stream-ordered allocation: use between allocation and free in stream order, reuse, other streams
// by events, thresholds and trimming, an explicit pool, freeing what cudaMalloc gave.
#include "check.h"

__global__ void fill(int *p, int value, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) p[i] = value + i;
}
__global__ void sum(const int *p, unsigned long long *out, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) atomicAdd(out, p[i]);
}

int main() {
    int supported = 0;
    OK(cudaDeviceGetAttribute(&supported, cudaDevAttrMemoryPoolsSupported, 0));
    CHECK(supported == 1, "memory pools are not supported");
    cudaStream_t a, b;
    cudaEvent_t event;
    OK(cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking));
    OK(cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking));
    OK(cudaEventCreate(&event));
    const int count = 10000, rounds = 30;
    Array<unsigned long long> total(1);
    total.clear();
    OK(cudaDeviceSynchronize());
    unsigned long long expected = 0;
    for (int round = 0; round < rounds; round++) {
        int *p;
        OK(cudaMallocAsync(&p, count * sizeof(int), a));
        fill<<<blocks(count, 256), 256, 0, a>>>(p, round, count);
        if (round % 3 == 0) {
            OK(cudaEventRecord(event, a));
            OK(cudaStreamWaitEvent(b, event, 0));
            sum<<<blocks(count, 256), 256, 0, b>>>(p, total, count);
            OK(cudaFreeAsync(p, b));
        } else {
            sum<<<blocks(count, 256), 256, 0, a>>>(p, total, count);
            OK(cudaFreeAsync(p, a));
        }
        for (int i = 0; i < count; i++) expected += round + i;
    }
    OK(cudaGetLastError());
    OK(cudaDeviceSynchronize());
    CHECK(total.host()[0] == expected, "%llu, not %llu", total.host()[0], expected);

    cudaMemPool_t standard;
    OK(cudaDeviceGetDefaultMemPool(&standard, 0));
    uint64_t threshold = UINT64_MAX, reserved = 0, used = 1, high = 0;
    OK(cudaMemPoolSetAttribute(standard, cudaMemPoolAttrReleaseThreshold, &threshold));
    int *p;
    OK(cudaMallocAsync(&p, 8 << 20, a));
    OK(cudaStreamSynchronize(a));
    OK(cudaMemPoolGetAttribute(standard, cudaMemPoolAttrUsedMemCurrent, &used));
    CHECK(used >= 8 << 20, "%llu bytes in use", (unsigned long long)used);
    OK(cudaFreeAsync(p, a));
    OK(cudaStreamSynchronize(a));
    OK(cudaMemPoolGetAttribute(standard, cudaMemPoolAttrUsedMemCurrent, &used));
    OK(cudaMemPoolGetAttribute(standard, cudaMemPoolAttrReservedMemCurrent, &reserved));
    OK(cudaMemPoolGetAttribute(standard, cudaMemPoolAttrUsedMemHigh, &high));
    CHECK(used == 0 && reserved >= 8 << 20 && high >= 8 << 20, "used %llu, reserved %llu, high %llu", (unsigned long long)used,
          (unsigned long long)reserved, (unsigned long long)high);
    OK(cudaMemPoolTrimTo(standard, 0));
    OK(cudaMemPoolGetAttribute(standard, cudaMemPoolAttrReservedMemCurrent, &reserved));
    CHECK(reserved == 0, "%llu bytes reserved after trimming", (unsigned long long)reserved);

    cudaMemPoolProps properties = {};
    properties.allocType = cudaMemAllocationTypePinned;
    properties.location.type = cudaMemLocationTypeDevice;
    cudaMemPool_t own;
    OK(cudaMemPoolCreate(&own, &properties));
    OK(cudaMallocFromPoolAsync(&p, 4096, own, a));
    fill<<<4, 256, 0, a>>>(p, 5, 1024);
    int last;
    OK(cudaMemcpyAsync(&last, p + 1023, sizeof last, cudaMemcpyDeviceToHost, a));
    OK(cudaFreeAsync(p, a));
    OK(cudaStreamSynchronize(a));
    CHECK(last == 1028, "%d", last);
    OK(cudaMemPoolDestroy(own));

    OK(cudaMalloc(&p, 1000));
    OK(cudaFreeAsync(p, a));
    OK(cudaMallocAsync(&p, 1000, a));
    OK(cudaStreamSynchronize(a));
    OK(cudaFree(p));
    OK(cudaStreamDestroy(a));
    OK(cudaStreamDestroy(b));
    OK(cudaEventDestroy(event));
    printf("%d rounds, total %llu\n", rounds, expected);
    return check::pass();
}
