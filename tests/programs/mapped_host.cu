// needs: mapped
// Page-locked memory that kernels reach: results straight to the host, a conversation between host
// and a running kernel, and pages of malloc registered later.
#include <unistd.h>

#include "check.h"

__global__ void square(const int *in, int *out, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) out[i] = in[i] * in[i];
}
__global__ void answer(volatile int *question, volatile int *reply, int rounds) {
    for (int k = 1; k <= rounds; k++) {
        while (question[0] != k) {}
        __threadfence_system();
        reply[1] = question[1] * 2;
        __threadfence_system();
        reply[0] = k;
    }
}

int main() {
    const int count = 10000;
    int *in, *out, *din, *dout;
    OK(cudaHostAlloc(&in, count * sizeof(int), cudaHostAllocMapped));
    OK(cudaHostAlloc(&out, count * sizeof(int), cudaHostAllocMapped | cudaHostAllocPortable));
    OK(cudaHostGetDevicePointer(&din, in, 0));
    OK(cudaHostGetDevicePointer(&dout, out, 0));
    for (int i = 0; i < count; i++) in[i] = i;
    square<<<blocks(count, 256), 256>>>(din, dout, count);
    RAN();
    for (int i = 0; i < count; i++) CHECK(out[i] == i * i, "element %d is %d", i, out[i]);
    unsigned flags;
    OK(cudaHostGetFlags(&flags, out));
    CHECK(flags & cudaHostAllocMapped, "flags %x", flags);

    volatile int *question = in, *reply = out;
    question[0] = reply[0] = 0;
    answer<<<1, 1>>>(din, dout, 20);
    OK(cudaGetLastError());
    for (int k = 1; k <= 20; k++) {
        question[1] = k * 11;
        __sync_synchronize();
        question[0] = k;
        for (int wait = 0; reply[0] != k; wait++) {
            CHECK(wait < 100000, "no reply to question %d", k);
            usleep(100);
        }
        CHECK(reply[1] == k * 22, "%d to %d", reply[1], k * 11);
    }
    OK(cudaDeviceSynchronize());

    size_t page = sysconf(_SC_PAGESIZE), bytes = (count * sizeof(int) + page - 1) / page * page;
    int *own = static_cast<int *>(aligned_alloc(page, bytes)), *registered;
    for (int i = 0; i < count; i++) own[i] = i + 1;
    OK(cudaHostRegister(own, bytes, cudaHostRegisterMapped));
    FAILS(cudaHostRegister(own, bytes, cudaHostRegisterMapped), cudaErrorHostMemoryAlreadyRegistered);
    FAILS(cudaGetLastError(), cudaErrorHostMemoryAlreadyRegistered);
    OK(cudaHostGetDevicePointer(&registered, own, 0));
    square<<<blocks(count, 256), 256>>>(registered, registered, count);
    RAN();
    for (int i = 0; i < count; i++) CHECK(own[i] == (i + 1) * (i + 1), "registered element %d is %d", i, own[i]);
    cudaStream_t stream;
    OK(cudaStreamCreate(&stream));
    Array<int> device(count);
    OK(cudaMemcpyAsync(device, own, count * sizeof(int), cudaMemcpyHostToDevice, stream));
    OK(cudaStreamSynchronize(stream));
    CHECK(device.host()[count - 1] == count * count, "%d", device.host()[count - 1]);
    OK(cudaHostUnregister(own));
    FAILS(cudaHostUnregister(own), cudaErrorHostMemoryNotRegistered);
    cudaGetLastError();
    free(own);
    OK(cudaStreamDestroy(stream));
    OK(cudaFreeHost(in));
    OK(cudaFreeHost(out));
    printf("20 answers\n");
    return check::pass();
}
