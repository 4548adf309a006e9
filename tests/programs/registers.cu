// needs: plain
// How many registers a kernel is said to have keeps to its bounds, and a block size that may be launched
// fits a multiprocessor: libraries divide by how many do.
#include "check.h"

template <int N> __device__ void work(double *data) {
    double v[N];
    for (int i = 0; i < N; i++) v[i] = data[i * blockDim.x + threadIdx.x];
    for (int round = 0; round < 3; round++) {
#pragma unroll
        for (int i = 0; i < N; i++) v[i] = v[i] * v[(i * 7 + 3) % N] + v[(i + N / 2) % N];
    }
    for (int i = 0; i < N; i++) data[i * blockDim.x + threadIdx.x] = v[i];
}

__global__ void free_of_bounds(double *data) { work<119>(data); }
__global__ void __launch_bounds__(640) of_640(double *data) { work<119>(data); }
__global__ void __launch_bounds__(128, 8) of_128_by_8(double *data) { work<119>(data); }

template <typename Kernel> void look(Kernel kernel, int most_registers, int blocks, int threads) {
    cudaFuncAttributes attributes;
    OK(cudaFuncGetAttributes(&attributes, kernel));
    CHECK(attributes.numRegs > 0 && attributes.numRegs <= most_registers, "%d registers", attributes.numRegs);
    for (int size = 32; size <= attributes.maxThreadsPerBlock; size += 32) {
        int fit = 0;
        OK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&fit, kernel, size, 0));
        CHECK(fit > 0, "no block of %d threads fits with %d registers", size, attributes.numRegs);
    }
    int fit = 0;
    OK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&fit, kernel, threads, 0));
    CHECK(fit >= blocks, "%d blocks of %d fit", fit, threads);
}

int main() {
    look(free_of_bounds, 255, 1, 128);
    look(of_640, 102, 1, 640);
    look(of_128_by_8, 64, 8, 128);
    Array<double> data(119 * 640);
    of_640<<<1, 640>>>(data);
    RAN();
    printf("three kernels\n");
    return check::pass();
}
