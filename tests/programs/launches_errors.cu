// needs: launches
// nvcc: -rdc=true -lcudadevrt
// What device code is told of launches and objects that are wrong; what is right goes on, and the host sees no error.
// Then a child that faults: it is the fault of the whole.
#include "check.h"

__device__ int codes[16];
__device__ int ran;

__global__ void child() { atomicAdd(&ran, 1); }

__global__ void wrong() {
    int n = 0;
    child<<<1, 2000>>>();
    codes[n++] = cudaPeekAtLastError() != cudaSuccess;
    codes[n++] = cudaGetLastError() != cudaSuccess;
    codes[n++] = cudaGetLastError();
    child<<<0, 1>>>();
    codes[n++] = cudaGetLastError() != cudaSuccess;
    child<<<1, 1, 1 << 20>>>();
    codes[n++] = cudaGetLastError() != cudaSuccess;
    cudaStream_t stream;
    codes[n++] = cudaStreamCreateWithFlags(&stream, cudaStreamDefault) != cudaSuccess;
    cudaEvent_t event;
    codes[n++] = cudaEventCreateWithFlags(&event, cudaEventDefault) != cudaSuccess;
    cudaGetLastError();
    child<<<1, 1>>>();
    codes[n++] = cudaGetLastError();
    int *memory = nullptr;
    codes[n++] = cudaMalloc((void **)&memory, 1000);
    for (int i = 0; i < 250; i++) memory[i] = i;
    codes[n++] = memory[249];
    codes[n++] = cudaFree(memory);
    int device = -1;
    codes[n++] = cudaGetDevice(&device) == cudaSuccess && device == 0;
}

__global__ void bad_child(int *nowhere) { *nowhere = 1; }

__global__ void launches_bad(int *nowhere) {
    child<<<1, 1>>>();
    bad_child<<<1, 1>>>(nowhere);
    child<<<1, 1, 0, cudaStreamTailLaunch>>>();
}

int main() {
    wrong<<<1, 1>>>();
    RAN();
    int got[16], count = 0;
    OK(cudaMemcpyFromSymbol(got, codes, sizeof(got)));
    OK(cudaMemcpyFromSymbol(&count, ran, sizeof(count)));
    const int wanted[] = {1, 1, 0, 1, 1, 0, 1, 0, 0, 249, 0, 1};
    for (int i = 0; i < 12; i++) CHECK(got[i] == wanted[i], "place %d: %d, not %d", i, got[i], wanted[i]);
    CHECK(count == 1, "%d", count);
    launches_bad<<<1, 1>>>((int *)0x10);
    OK(cudaGetLastError());
    FAILS(cudaDeviceSynchronize(), cudaErrorIllegalAddress);
    printf("wrong launches\n");
    printf("PASS\n");
}
