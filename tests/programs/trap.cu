// needs: plain
// __trap(): the kernel ends with an error that stays.
#include "check.h"

__global__ void kernel(int *out, int which) {
    out[threadIdx.x] = 1;
    if (threadIdx.x == which) __trap();
}

int main() {
    int *out;
    OK(cudaMalloc(&out, 256));
    kernel<<<1, 64>>>(out, 100);
    RAN();
    kernel<<<1, 64>>>(out, 33);
    OK(cudaGetLastError());
    FAILS(cudaDeviceSynchronize(), cudaErrorLaunchFailure);
    FAILS(cudaGetLastError(), cudaErrorLaunchFailure);
    FAILS(cudaFree(out), cudaErrorLaunchFailure);
    printf("trapped\n");
    return check::pass();
}
