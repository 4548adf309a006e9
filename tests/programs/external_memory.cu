// needs: vmm
// Memory that was made by the driver's virtual memory management, exported as a descriptor, and imported again
// as another interface's: mapped as a whole and from an offset on, freed, destroyed; what is refused.
#include <sys/mman.h>
#include <unistd.h>

#include "driver.h"

__global__ void add(int *p, int value) { p[blockIdx.x * blockDim.x + threadIdx.x] += value + threadIdx.x; }

int main() {
    OK(cudaFree(nullptr));
    CUmemAllocationProp made = {};
    made.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    made.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    made.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    const size_t bytes = 4 << 20, half = bytes / 2;
    CUmemGenericAllocationHandle handle;
    CU(cuMemCreate, &handle, bytes, &made, 0);
    CUdeviceptr own;
    CU(cuMemAddressReserve, &own, bytes, 0, 0, 0);
    CU(cuMemMap, own, bytes, 0, handle, 0);
    CUmemAccessDesc access = {made.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CU(cuMemSetAccess, own, bytes, &access, 1);
    int descriptor = -1;
    CU(cuMemExportToShareableHandle, &descriptor, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    CU(cuMemsetD32, own, 7, bytes / 4);
    OK(cudaDeviceSynchronize());

    cudaExternalMemoryHandleDesc described = {};
    described.type = cudaExternalMemoryHandleTypeOpaqueFd;
    described.handle.fd = dup(descriptor);
    described.size = bytes;
    cudaExternalMemory_t memory;
    OK(cudaImportExternalMemory(&memory, &described));
    cudaExternalMemoryBufferDesc part = {};
    int *whole, *behind;
    part.size = bytes;
    OK(cudaExternalMemoryGetMappedBuffer((void **)&whole, memory, &part));
    part.offset = part.size = half;
    OK(cudaExternalMemoryGetMappedBuffer((void **)&behind, memory, &part));
    part.offset = half + 4;
    void *none;
    FAILS(cudaExternalMemoryGetMappedBuffer(&none, memory, &part), cudaErrorInvalidValue);
    cudaGetLastError();
    add<<<1, 64>>>(whole, 10);
    add<<<1, 64>>>(behind, 20);
    RAN();
    // It is all the same memory.
    std::vector<int> got(bytes / 4);
    OK(cudaMemcpy(got.data(), (void *)own, bytes, cudaMemcpyDeviceToHost));
    for (int i = 0; i < 64; i++) CHECK(got[i] == 17 + i && got[half / 4 + i] == 27 + i, "element %d: %d, %d", i, got[i], got[half / 4 + i]);
    CHECK(got[64] == 7, "%d", got[64]);
    // What is mapped outlives the handle, each part by itself.
    OK(cudaDestroyExternalMemory(memory));
    OK(cudaFree(whole));
    add<<<1, 64>>>(behind, 0);
    RAN();
    OK(cudaMemcpy(got.data(), behind, 256, cudaMemcpyDeviceToHost));
    CHECK(got[1] == 29, "%d", got[1]);
    OK(cudaFree(behind));

    // Other descriptors, and handles of other systems.
    described.handle.fd = memfd_create("none", 0);
    CHECK(cudaImportExternalMemory(&memory, &described) != cudaSuccess, "a file was taken for memory");
    described.type = cudaExternalMemoryHandleTypeOpaqueWin32;
    FAILS(cudaImportExternalMemory(&memory, &described), cudaErrorNotSupported);
    cudaGetLastError();
    close(descriptor);
    CU(cuMemUnmap, own, bytes);
    CU(cuMemAddressFree, own, bytes);
    CU(cuMemRelease, handle);
    printf("imported, mapped, freed\n");
    return check::pass();
}
