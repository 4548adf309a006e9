// needs: plain
// A store to an address of nobody: cudaErrorIllegalAddress at the next synchronisation, and from
// then on from every call; the process ends normally.
#include "check.h"

__global__ void store(int *p) { p[threadIdx.x] = 1; }

int main() {
    int *good;
    OK(cudaMalloc(&good, 4096));
    store<<<1, 32>>>(good);
    RAN();
    store<<<1, 32>>>(reinterpret_cast<int *>(0x10));
    OK(cudaGetLastError());
    FAILS(cudaDeviceSynchronize(), cudaErrorIllegalAddress);
    FAILS(cudaGetLastError(), cudaErrorIllegalAddress);
    FAILS(cudaDeviceSynchronize(), cudaErrorIllegalAddress);
    void *more;
    FAILS(cudaMalloc(&more, 64), cudaErrorIllegalAddress);
    int value;
    FAILS(cudaMemcpy(&value, good, 4, cudaMemcpyDeviceToHost), cudaErrorIllegalAddress);
    store<<<1, 32>>>(good);
    FAILS(cudaGetLastError(), cudaErrorIllegalAddress);
    printf("illegal address\n");
    return check::pass();
}
