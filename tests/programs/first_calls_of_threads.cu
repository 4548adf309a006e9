// needs: managed mapped pools
// The first runtime call of a thread that never had a context, after another thread made the device's:
// each call that needs one finds it.
#include <functional>
#include <sys/mman.h>
#include <thread>
#include <unistd.h>

#include "check.h"
#include "driver.h"

__global__ void fill(int *p, int value) { p[threadIdx.x] = value; }

static void in_new_thread(const char *what, std::function<void()> calls) {
    std::thread thread([&] {
        calls();
        printf("%s\n", what);
        // And the thread goes on like any other.
        Array<int> array(32);
        fill<<<1, 32>>>(array, 7);
        RAN();
        CHECK(array.host()[31] == 7, "%d", array.host()[31]);
    });
    thread.join();
}

static void *page() {
    void *p = mmap(nullptr, 1 << 16, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(p != MAP_FAILED, "mmap");
    return p;
}

static void all() {
    static int *host, *device;
    static cudaEvent_t event;
    static cudaStream_t stream;
    in_new_thread("cudaMallocHost", [] { OK(cudaMallocHost((void **)&host, 4096)); });
    in_new_thread("cudaFreeHost", [] { OK(cudaFreeHost(host)); });
    in_new_thread("cudaHostAlloc", [] { OK(cudaHostAlloc((void **)&host, 4096, cudaHostAllocDefault)); });
    in_new_thread("cudaHostGetDevicePointer", [] { OK(cudaHostGetDevicePointer((void **)&device, host, 0)); });
    in_new_thread("cudaHostGetFlags", [] {
        unsigned flags;
        OK(cudaHostGetFlags(&flags, host));
    });
    in_new_thread("cudaPointerGetAttributes", [] {
        cudaPointerAttributes attributes;
        OK(cudaPointerGetAttributes(&attributes, host));
        CHECK(attributes.type == cudaMemoryTypeHost, "%d", attributes.type);
    });
    in_new_thread("cudaPointerGetAttributes of a stack", [] {
        cudaPointerAttributes attributes;
        OK(cudaPointerGetAttributes(&attributes, &attributes));
        CHECK(attributes.type == cudaMemoryTypeUnregistered, "%d", attributes.type);
    });
    in_new_thread("cudaFreeHost of cudaHostAlloc", [] { OK(cudaFreeHost(host)); });
    in_new_thread("cudaHostAlloc portable, mapped", [] {
        OK(cudaHostAlloc((void **)&host, 4096, cudaHostAllocPortable | cudaHostAllocMapped));
        OK(cudaFreeHost(host));
    });
    // As PyTorch's allocator of page-locked memory does.
    in_new_thread("cudaGetDevice, state, cudaHostAlloc", [] {
        int number = -1, active = -1;
        unsigned flags;
        OK(cudaGetDevice(&number));
        CHECK(number == 0, "%d", number);
        CU(cuDevicePrimaryCtxGetState, 0, &flags, &active);
        CHECK(active == 1, "%d", active);
        OK(cudaHostAlloc((void **)&host, 4096, cudaHostAllocDefault));
        OK(cudaFreeHost(host));
    });
    static void *memory = page();
    in_new_thread("cudaHostRegister", [] { OK(cudaHostRegister(memory, 1 << 16, cudaHostRegisterDefault)); });
    in_new_thread("cudaHostUnregister", [] { OK(cudaHostUnregister(memory)); });
    in_new_thread("cudaMallocManaged", [] { OK(cudaMallocManaged((void **)&device, 4096)); });
    in_new_thread("cudaFree of managed", [] { OK(cudaFree(device)); });
    in_new_thread("cudaMalloc", [] { OK(cudaMalloc((void **)&device, 4096)); });
    in_new_thread("cudaMemset", [] { OK(cudaMemset(device, 0, 4096)); });
    in_new_thread("cudaMemcpy", [] {
        int there = 1;
        OK(cudaMemcpy(&there, device, 4, cudaMemcpyDeviceToHost));
        CHECK(there == 0, "%d", there);
    });
    in_new_thread("cudaFree", [] { OK(cudaFree(device)); });
    in_new_thread("cudaMallocAsync", [] { OK(cudaMallocAsync((void **)&device, 4096, 0)); });
    in_new_thread("cudaFreeAsync", [] { OK(cudaFreeAsync(device, 0)); });
    in_new_thread("cudaEventCreate", [] { OK(cudaEventCreate(&event)); });
    in_new_thread("cudaEventRecord", [] { OK(cudaEventRecord(event)); });
    in_new_thread("cudaEventSynchronize", [] { OK(cudaEventSynchronize(event)); });
    in_new_thread("cudaEventQuery", [] { OK(cudaEventQuery(event)); });
    in_new_thread("cudaEventDestroy", [] { OK(cudaEventDestroy(event)); });
    in_new_thread("cudaStreamCreate", [] { OK(cudaStreamCreate(&stream)); });
    in_new_thread("cudaStreamSynchronize", [] { OK(cudaStreamSynchronize(stream)); });
    in_new_thread("cudaStreamDestroy", [] { OK(cudaStreamDestroy(stream)); });
    in_new_thread("cudaMemGetInfo", [] {
        size_t free_bytes, total;
        OK(cudaMemGetInfo(&free_bytes, &total));
    });
    in_new_thread("cudaDeviceSynchronize", [] { OK(cudaDeviceSynchronize()); });
    in_new_thread("cudaStreamSynchronize(0)", [] { OK(cudaStreamSynchronize(0)); });
    in_new_thread("cudaFuncGetAttributes", [] {
        cudaFuncAttributes attributes;
        OK(cudaFuncGetAttributes(&attributes, fill));
    });
}

int main() {
    OK(cudaFree(nullptr));
    all();
    // The device's context is made anew.
    OK(cudaDeviceReset());
    in_new_thread("cudaHostAlloc after a reset", [] {
        void *host;
        OK(cudaHostAlloc(&host, 4096, cudaHostAllocDefault));
        OK(cudaFreeHost(host));
    });
    all();
    return check::pass();
}
