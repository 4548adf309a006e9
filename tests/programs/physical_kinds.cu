// needs: vmm
// Physical memory of kinds that a device may or may not have: what an attribute promises is there, what it does
// not promise fails with an error that says so, and a plain allocation never suffers.
#include "driver.h"

#include <initializer_list>

static int attribute(CUdevice_attribute which) {
    int value = 0;
    CU(cuDeviceGetAttribute, &value, which, 0);
    return value;
}

int main() {
    OK(cudaFree(nullptr));
    CUmemAllocationProp plain = {};
    plain.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    plain.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    size_t unit = 0;
    CU(cuMemGetAllocationGranularity, &unit, &plain, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
    auto create = DRIVER(cuMemCreate);
    CUmemGenericAllocationHandle memory;

    // Compression is a wish: it is granted only where the device says so, and what came of it can be asked.
    CUmemAllocationProp wish = plain, granted = {};
    wish.allocFlags.compressionType = CU_MEM_ALLOCATION_COMP_GENERIC;
    CU(cuMemCreate, &memory, unit, &wish, 0);
    CU(cuMemGetAllocationPropertiesFromHandle, &granted, memory);
    bool can = attribute(CU_DEVICE_ATTRIBUTE_GENERIC_COMPRESSION_SUPPORTED);
    bool is = granted.allocFlags.compressionType == CU_MEM_ALLOCATION_COMP_GENERIC;
    CHECK(can || !is, "compressed where the device cannot");
    CHECK(granted.location.type == CU_MEM_LOCATION_TYPE_DEVICE && granted.location.id == 0, "at %d/%d", int(granted.location.type), granted.location.id);
    CU(cuMemRelease, memory);

    // Host memory: an error where it is not promised, never another device's memory.
    CUmemLocation places[] = {{CU_MEM_LOCATION_TYPE_HOST_NUMA, 0}, {CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT, 0}, {CU_MEM_LOCATION_TYPE_HOST, 0}};
    bool numa = attribute(CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED);
    for (auto place : places) {
        CUmemAllocationProp host = plain;
        host.location = place;
        CUresult made = create(&memory, unit, &host, 0);
        bool refused = made == CUDA_ERROR_NOT_SUPPORTED || made == CUDA_ERROR_INVALID_VALUE || made == CUDA_ERROR_INVALID_DEVICE;
        CHECK(made == CUDA_SUCCESS || refused, "location %d: %d", int(place.type), int(made));
        if (place.type == CU_MEM_LOCATION_TYPE_HOST_NUMA) CHECK((made == CUDA_SUCCESS) == numa, "promised %d, got %d", numa, int(made));
        if (made == CUDA_SUCCESS) CU(cuMemRelease, memory);
    }
    for (CUmemLocation place : {CUmemLocation{CU_MEM_LOCATION_TYPE_INVALID, 0}, CUmemLocation{CUmemLocationType(77), 0}, CUmemLocation{CU_MEM_LOCATION_TYPE_DEVICE, 850725928}}) {
        CUmemAllocationProp nowhere = plain;
        nowhere.location = place;
        CUresult made = create(&memory, unit, &nowhere, 0);
        CHECK(made == CUDA_ERROR_INVALID_VALUE || made == CUDA_ERROR_INVALID_DEVICE, "location %d/%d: %d", int(place.type), place.id, int(made));
    }
    CU(cuMemCreate, &memory, unit, &plain, 0);
    CU(cuMemRelease, memory);
    printf("what is promised is there, and the rest is refused\n");
    return check::pass();
}
