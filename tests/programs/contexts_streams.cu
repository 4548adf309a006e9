// needs: plain mapped
// A context ends with a stream in it while another context's kernel still runs; streams that are
// made then work at once.
#include "driver.h"

// Ends when the flag is set, or after ten seconds.
__global__ void await(volatile int *flag) {
    unsigned long long begin, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
    do {
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    } while (*flag == 0 && now - begin < 10000000000ull);
}

__global__ void put(int *p, int value) { *p = value; }

int main() {
    CUcontext primary, other, top;
    OK(cudaFree(nullptr));
    CU(cuCtxGetCurrent, &primary);
    volatile int *flag;
    int *seen;
    OK(cudaHostAlloc((void **)&flag, sizeof *flag, cudaHostAllocMapped));
    *flag = 0;
    OK(cudaHostAlloc((void **)&seen, 8 * sizeof *seen, cudaHostAllocMapped));
    // Code that is loaded at its first launch may wait for the kernel that runs.
    put<<<1, 1>>>(seen, 0);
    OK(cudaDeviceSynchronize());
    CUstream left[4];
    CU(cuCtxCreate, &other, nullptr, 0, 0);
    for (auto &stream : left) CU(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
    CU(cuCtxPopCurrent, &top);

    cudaStream_t busy;
    OK(cudaStreamCreateWithFlags(&busy, cudaStreamNonBlocking));
    await<<<1, 1, 0, busy>>>(const_cast<int *>(flag));
    OK(cudaGetLastError());
    CU(cuCtxDestroy, other);
    cudaStream_t streams[8];
    for (int i = 0; i < 8; i++) {
        OK(cudaStreamCreateWithFlags(&streams[i], cudaStreamNonBlocking));
        put<<<1, 1, 0, streams[i]>>>(seen + i, i + 1);
        OK(cudaGetLastError());
    }
    for (int i = 0; i < 8; i++) {
        OK(cudaStreamSynchronize(streams[i]));
        CHECK(seen[i] == i + 1, "%d", seen[i]);
    }
    *flag = 1;
    OK(cudaDeviceSynchronize());
    printf("streams of an ended context make room\n");
    return check::pass();
}
