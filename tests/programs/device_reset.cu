// needs: plain
// cudaDeviceReset frees everything; the process starts anew with fresh symbols and streams.
#include "check.h"

__device__ int value = 17;
__global__ void add(int n) { value += n; }

int main() {
    for (int round = 1; round <= 3; round++) {
        void *some;
        cudaStream_t stream;
        OK(cudaMalloc(&some, 1 << 20));
        OK(cudaStreamCreate(&stream));
        add<<<1, 1, 0, stream>>>(round);
        OK(cudaStreamSynchronize(stream));
        int got;
        OK(cudaMemcpyFromSymbol(&got, value, sizeof got));
        CHECK(got == 17 + round, "round %d: %d", round, got);
        OK(cudaDeviceReset());
    }
    size_t free, total;
    OK(cudaMemGetInfo(&free, &total));
    printf("three lives\n");
    return check::pass();
}
