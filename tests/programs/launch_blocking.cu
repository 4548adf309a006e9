// needs: plain
// env: CUDA_LAUNCH_BLOCKING=1
// With CUDA_LAUNCH_BLOCKING every launch waits for its kernel: no stream is busy afterwards, and a
// fault is the launch's own error.
#include "check.h"

__global__ void work(int *p, int rounds) {
    int v = threadIdx.x;
    for (int i = 0; i < rounds; i++) v = v * 1664525 + 1013904223;
    p[threadIdx.x] = v;
}

int main() {
    cudaStream_t stream;
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    int *p;
    OK(cudaMalloc(&p, 128));
    for (int k = 0; k < 5; k++) {
        work<<<1, 32, 0, stream>>>(p, 20000);
        OK(cudaGetLastError());
        OK(cudaStreamQuery(stream));
    }
    work<<<1, 32, 0, stream>>>(nullptr, 1);
    FAILS(cudaGetLastError(), cudaErrorIllegalAddress);
    printf("five launches\n");
    return check::pass();
}
