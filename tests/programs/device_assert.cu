// needs: assert
// assert in kernels: a true one does nothing; a false one ends the kernel with cudaErrorAssert and
// a message on standard error.
#include <cassert>

#include "check.h"

__global__ void kernel(int limit) { assert(int(threadIdx.x) < limit && "threads below the limit"); }

int main() {
    kernel<<<1, 32>>>(32);
    RAN();
    kernel<<<1, 32>>>(31);
    OK(cudaGetLastError());
    FAILS(cudaDeviceSynchronize(), cudaErrorAssert);
    void *p;
    FAILS(cudaMalloc(&p, 4), cudaErrorAssert);
    printf("asserted\n");
    return check::pass();
}
