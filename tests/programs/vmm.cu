// needs: vmm
// Virtual memory management: one range that grows by mapping more physical memory, one allocation
// mapped twice, access refused where nothing is mapped.
#include "driver.h"

__global__ void fill(int *p, int value, size_t count) {
    for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) p[i] = value + int(i);
}

int main() {
    OK(cudaFree(nullptr));
    CUmemAllocationProp properties = {};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    size_t unit = 0;
    CU(cuMemGetAllocationGranularity, &unit, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
    CHECK(unit >= 4096 && (unit & (unit - 1)) == 0, "granularity %zu", unit);
    CUmemAccessDesc access = {properties.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUdeviceptr range;
    CU(cuMemAddressReserve, &range, 8 * unit, 0, 0, 0);
    CUmemGenericAllocationHandle handles[4];
    for (int k = 0; k < 4; k++) {
        CU(cuMemCreate, &handles[k], unit, &properties, 0);
        CU(cuMemMap, range + k * unit, unit, 0, handles[k], 0);
        CU(cuMemSetAccess, range + k * unit, unit, &access, 1);
        size_t count = (k + 1) * unit / sizeof(int);
        fill<<<16, 128>>>(reinterpret_cast<int *>(range), k, count);
        RAN();
        int last = 0;
        OK(cudaMemcpy(&last, reinterpret_cast<int *>(range) + count - 1, sizeof last, cudaMemcpyDeviceToHost));
        CHECK(last == k + int(count) - 1, "with %d parts the last is %d", k + 1, last);
    }
    // The first part again at another address.
    CU(cuMemMap, range + 6 * unit, unit, 0, handles[0], 0);
    CU(cuMemSetAccess, range + 6 * unit, unit, &access, 1);
    int value = 4711, seen = 0;
    OK(cudaMemcpy(reinterpret_cast<int *>(range) + 5, &value, sizeof value, cudaMemcpyHostToDevice));
    OK(cudaMemcpy(&seen, reinterpret_cast<int *>(range + 6 * unit) + 5, sizeof seen, cudaMemcpyDeviceToHost));
    CHECK(seen == value, "the second mapping shows %d", seen);
    CU(cuMemUnmap, range + 6 * unit, unit);
    CU(cuMemUnmap, range, 4 * unit);
    for (auto handle : handles) CU(cuMemRelease, handle);
    CU(cuMemAddressFree, range, 8 * unit);
    printf("four parts, one of them twice\n");
    return check::pass();
}
