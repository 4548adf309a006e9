// needs: vmm
// Addresses far beyond the device's memory: one and an eighth of it several times over, a tebibyte, aligned
// ones; the same memory mapped at both ends of each, and all of it given back.
#include "driver.h"

__global__ void put(unsigned long long *at, unsigned long long value) { *at = value; }

int main() {
    OK(cudaFree(nullptr));
    size_t free, total, told;
    OK(cudaMemGetInfo(&free, &total));
    CU(cuDeviceTotalMem, &told, 0);
    CHECK(total == told, "%zu and %zu", total, told);
    CUmemAllocationProp properties = {};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    size_t unit = 0;
    CU(cuMemGetAllocationGranularity, &unit, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
    CUmemAccessDesc access = {properties.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    struct { CUdeviceptr base; size_t bytes, align; } ranges[12];
    size_t segment = (total / 8 * 9 + unit - 1) / unit * unit;
    for (int k = 0; k < 12; k++) {
        auto &range = ranges[k];
        range.bytes = k < 8 ? segment : k == 8 ? size_t(1) << 40 : unit;
        range.align = k < 9 ? 0 : unit << (k - 8);
        CU(cuMemAddressReserve, &range.base, range.bytes, range.align, 0, 0);
        CHECK(range.base % (range.align ? range.align : unit) == 0, "range %d begins at %llx", k, range.base);
        for (int j = 0; j < k; j++)
            CHECK(range.base + range.bytes <= ranges[j].base || ranges[j].base + ranges[j].bytes <= range.base, "%d and %d overlap", k, j);
    }
    CUmemGenericAllocationHandle memory;
    CU(cuMemCreate, &memory, unit, &properties, 0);
    for (auto &range : ranges) {
        CUdeviceptr end = range.base + range.bytes - unit;
        CU(cuMemMap, range.base, unit, 0, memory, 0);
        if (end != range.base) CU(cuMemMap, end, unit, 0, memory, 0);
        CU(cuMemSetAccess, range.base, unit, &access, 1);
        if (end != range.base) CU(cuMemSetAccess, end, unit, &access, 1);
        put<<<1, 1>>>(reinterpret_cast<unsigned long long *>(end) + 3, range.base);
        RAN();
        unsigned long long seen = 0;
        OK(cudaMemcpy(&seen, reinterpret_cast<void *>(range.base + 24), sizeof seen, cudaMemcpyDeviceToHost));
        CHECK(seen == range.base, "%llx where %llx was written", seen, range.base);
        CU(cuMemUnmap, range.base, unit);
        if (end != range.base) CU(cuMemUnmap, end, unit);
    }
    CU(cuMemRelease, memory);
    for (auto &range : ranges) CU(cuMemAddressFree, range.base, range.bytes);
    for (int k = 0; k < 50; k++) {
        CUdeviceptr base;
        CU(cuMemAddressReserve, &base, size_t(1) << 40, 0, 0, 0);
        CU(cuMemAddressFree, base, size_t(1) << 40);
    }
    size_t now;
    OK(cudaMemGetInfo(&now, &total));
    CHECK(now == free, "%zu free before, %zu after", free, now);
    CUdeviceptr none;
    CHECK(DRIVER(cuMemAddressReserve)(&none, 0, 0, 0, 0) == CUDA_ERROR_INVALID_VALUE, "no bytes");
    CHECK(DRIVER(cuMemAddressReserve)(&none, unit + 1, 0, 0, 0) == CUDA_ERROR_INVALID_VALUE, "odd bytes");
    printf("twelve reservations, each with memory at both ends\n");
    return check::pass();
}
