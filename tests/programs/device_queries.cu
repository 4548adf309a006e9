// needs: plain
// Properties, attributes, memory sizes, limits, versions: they agree with one another and with what
// a kernel sees. Prints none of them: they differ between devices.
#include <set>

#include "check.h"

__global__ void look(unsigned *out) {
    unsigned sm, sms, warp;
    asm("mov.u32 %0, %%smid;" : "=r"(sm));
    asm("mov.u32 %0, %%nsmid;" : "=r"(sms));
    asm("mov.u32 %0, WARP_SZ;" : "=r"(warp));
    out[blockIdx.x] = sm;
    if (blockIdx.x == 0) out[gridDim.x] = sms, out[gridDim.x + 1] = warp;
}

int main() {
    int devices, device = -1;
    OK(cudaGetDeviceCount(&devices));
    CHECK(devices >= 1, "%d devices", devices);
    OK(cudaGetDevice(&device));
    CHECK(device == 0, "device %d", device);
    cudaDeviceProp properties;
    OK(cudaGetDeviceProperties(&properties, 0));
    CHECK(properties.name[0] && properties.warpSize == 32 && properties.maxThreadsPerBlock == 1024, "%s, %d, %d", properties.name,
          properties.warpSize, properties.maxThreadsPerBlock);
    auto attribute = [](cudaDeviceAttr which) {
        int value = -1;
        OK(cudaDeviceGetAttribute(&value, which, 0));
        return value;
    };
    CHECK(attribute(cudaDevAttrMultiProcessorCount) == properties.multiProcessorCount, "%d", attribute(cudaDevAttrMultiProcessorCount));
    CHECK(attribute(cudaDevAttrComputeCapabilityMajor) == properties.major && properties.major * 10 + properties.minor >= 75, "%d.%d",
          properties.major, properties.minor);
    CHECK(attribute(cudaDevAttrMaxSharedMemoryPerBlock) == int(properties.sharedMemPerBlock) && properties.sharedMemPerBlock == 49152, "%zu",
          properties.sharedMemPerBlock);
    CHECK(properties.maxGridSize[0] == INT32_MAX && properties.maxGridSize[1] == 65535 && properties.maxThreadsDim[2] == 64, "%d",
          properties.maxGridSize[0]);
    CHECK(properties.unifiedAddressing == 1, "no unified addressing");

    size_t free, total;
    OK(cudaMemGetInfo(&free, &total));
    CHECK(free > 0 && free <= total && total <= properties.totalGlobalMem + (1ull << 30), "%zu of %zu, %zu", free, total, properties.totalGlobalMem);
    void *some;
    OK(cudaMalloc(&some, 64 << 20));
    size_t less;
    OK(cudaMemGetInfo(&less, &total));
    CHECK(less + (32 << 20) <= free, "64 MiB took %zu bytes", free - less);
    cudaPointerAttributes pointer;
    OK(cudaPointerGetAttributes(&pointer, static_cast<char *>(some) + 100));
    CHECK(pointer.type == cudaMemoryTypeDevice && pointer.device == 0 && pointer.devicePointer == static_cast<char *>(some) + 100, "type %d", pointer.type);
    OK(cudaPointerGetAttributes(&pointer, &total));
    CHECK(pointer.type == cudaMemoryTypeUnregistered, "type %d", pointer.type);
    void *pinned;
    OK(cudaMallocHost(&pinned, 4096));
    OK(cudaPointerGetAttributes(&pointer, pinned));
    CHECK(pointer.type == cudaMemoryTypeHost && pointer.hostPointer == pinned, "type %d", pointer.type);
    OK(cudaFreeHost(pinned));
    OK(cudaFree(some));

    int driver, runtime;
    OK(cudaDriverGetVersion(&driver));
    OK(cudaRuntimeGetVersion(&runtime));
    CHECK(runtime / 1000 == 13 && driver >= 13000, "driver %d, runtime %d", driver, runtime);
    char bus[32];
    OK(cudaDeviceGetPCIBusId(bus, sizeof bus, 0));
    int again = -1;
    OK(cudaDeviceGetByPCIBusId(&again, bus));
    CHECK(again == 0, "%s is device %d", bus, again);

    const int grid = 200;
    Array<unsigned> out(grid + 2);
    look<<<grid, 32>>>(out);
    RAN();
    auto got = out.host();
    for (int i = 0; i < grid; i++) CHECK(got[i] < got[grid], "block %d ran on SM %u of %u", i, got[i], got[grid]);
    CHECK(int(got[grid]) >= properties.multiProcessorCount && got[grid + 1] == 32, "%u SMs, warps of %u", got[grid], got[grid + 1]);
    printf("consistent\n");
    return check::pass();
}
