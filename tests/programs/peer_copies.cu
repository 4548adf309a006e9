// needs: peer
// devices: 2
// Two devices: each with its own memory, streams and symbols; copies between them, direct access of
// one to the other's memory where the devices can.
#include "check.h"

__device__ int number;
__global__ void fill(int *p, int value, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) p[i] = value + i;
    if (i == 0) number = value;
}
__global__ void read_other(const int *theirs, int *mine, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) mine[i] += theirs[i];
}

int main() {
    int devices;
    OK(cudaGetDeviceCount(&devices));
    CHECK(devices >= 2, "%d devices", devices);
    const int count = 5000;
    int *p[2];
    for (int d = 0; d < 2; d++) {
        OK(cudaSetDevice(d));
        OK(cudaMalloc(&p[d], count * sizeof(int)));
        fill<<<blocks(count, 128), 128>>>(p[d], 1000 * (d + 1), count);
        RAN();
    }
    for (int d = 0; d < 2; d++) {
        OK(cudaSetDevice(d));
        int value;
        OK(cudaMemcpyFromSymbol(&value, number, sizeof value));
        CHECK(value == 1000 * (d + 1), "device %d has %d", d, value);
        cudaPointerAttributes attributes;
        OK(cudaPointerGetAttributes(&attributes, p[d]));
        CHECK(attributes.device == d, "device %d", attributes.device);
    }
    std::vector<int> got(count);
    OK(cudaMemcpyPeer(p[1], 1, p[0], 0, count / 2 * sizeof(int)));
    OK(cudaMemcpy(got.data(), p[1], count * sizeof(int), cudaMemcpyDefault));
    for (int i = 0; i < count; i++) CHECK(got[i] == (i < count / 2 ? 1000 : 2000) + i, "element %d is %d", i, got[i]);
    OK(cudaSetDevice(0));
    cudaStream_t stream;
    OK(cudaStreamCreate(&stream));
    OK(cudaMemcpyPeerAsync(p[0], 0, p[1], 1, count * sizeof(int), stream));
    OK(cudaStreamSynchronize(stream));
    int can = 0;
    OK(cudaDeviceCanAccessPeer(&can, 0, 1));
    if (can) {
        OK(cudaDeviceEnablePeerAccess(1, 0));
        FAILS(cudaDeviceEnablePeerAccess(1, 0), cudaErrorPeerAccessAlreadyEnabled);
        cudaGetLastError();
        read_other<<<blocks(count, 128), 128>>>(p[1], p[0], count);
        RAN();
        OK(cudaDeviceDisablePeerAccess(1));
    } else {
        read_other<<<blocks(count, 128), 128>>>(p[0], p[0], count);
        RAN();
    }
    OK(cudaMemcpy(got.data(), p[0], count * sizeof(int), cudaMemcpyDefault));
    for (int i = 0; i < count; i++) CHECK(got[i] == 2 * ((i < count / 2 ? 1000 : 2000) + i), "sum %d is %d", i, got[i]);
    // A kernel goes to the device of its stream, whichever is current.
    OK(cudaSetDevice(1));
    fill<<<1, 1, 0, stream>>>(p[0], 7, 1);
    OK(cudaGetLastError());
    OK(cudaStreamSynchronize(stream));
    for (int d = 0; d < 2; d++) {
        OK(cudaSetDevice(d));
        int value;
        OK(cudaMemcpyFromSymbol(&value, number, sizeof value));
        CHECK(value == (d ? 2000 : 7), "device %d has %d at last", d, value);
    }
    printf("two devices\n");
    return check::pass();
}
