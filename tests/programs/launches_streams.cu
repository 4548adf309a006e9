// needs: launches
// nvcc: -rdc=true -lcudadevrt
// Streams and events of device code: order within a stream and within a block's own, copies and fills among the
// launches, one stream that waits for another, and many blocks that do all that at once.
#include "check.h"

const int STEPS = 12;

__global__ void step(int *value, int factor, int add) { *value = *value * factor + add; }

__global__ void chain(int *values) {
    // In the block's own stream, one after another.
    for (int i = 0; i < STEPS; i++) step<<<1, 1>>>(values + blockIdx.x, 3, i);
}

__global__ void both(int *values, int *copies, int *bad) {
    int *mine = values + 4 * blockIdx.x, *copy = copies + 4 * blockIdx.x;
    cudaStream_t one, two;
    cudaEvent_t event;
    if (cudaStreamCreateWithFlags(&one, cudaStreamNonBlocking) != cudaSuccess) atomicAdd(bad, 1);
    if (cudaStreamCreateWithFlags(&two, cudaStreamNonBlocking) != cudaSuccess) atomicAdd(bad, 1);
    if (cudaEventCreateWithFlags(&event, cudaEventDisableTiming) != cudaSuccess) atomicAdd(bad, 1);
    // NVIDIA's device runtime (CUDA 13.0, an H200) writes zeros whatever the value is.
    cudaMemsetAsync(mine, 0, 4, one);
    step<<<1, 1, 0, one>>>(mine, 5, blockIdx.x);
    step<<<1, 1, 0, one>>>(mine, 7, 1);
    cudaEventRecord(event, one);
    cudaStreamWaitEvent(two, event, 0);
    cudaMemcpyAsync(mine + 1, mine, 4, cudaMemcpyDeviceToDevice, two);
    step<<<1, 1, 0, two>>>(mine + 1, 2, 9);
    cudaEventRecord(event, two);
    cudaStreamWaitEvent(one, event, 0);
    cudaMemcpyAsync(copy, mine, 16, cudaMemcpyDeviceToDevice, one);
    // Handles may go before the work has.
    if (cudaEventDestroy(event) != cudaSuccess) atomicAdd(bad, 1);
    if (cudaStreamDestroy(one) != cudaSuccess) atomicAdd(bad, 1);
    if (cudaStreamDestroy(two) != cudaSuccess) atomicAdd(bad, 1);
    if (cudaGetLastError() != cudaSuccess) atomicAdd(bad, 1);
}

int main() {
    const int blocks = 24;
    Array<int> values(4 * blocks), copies(4 * blocks), bad(1);
    values.clear();
    bad.clear();
    chain<<<blocks, 1>>>(values);
    RAN();
    int wanted = 0;
    for (int i = 0; i < STEPS; i++) wanted = wanted * 3 + i;
    auto got = values.host();
    for (int i = 0; i < blocks; i++) CHECK(got[i] == wanted, "block %d: %d, not %d", i, got[i], wanted);

    std::vector<int> start(4 * blocks);
    for (size_t i = 0; i < start.size(); i++) start[i] = i + 100;
    values.set(start);
    both<<<blocks, 1>>>(values, copies, bad);
    RAN();
    CHECK(bad.host()[0] == 0, "%d", bad.host()[0]);
    auto copied = copies.host();
    for (int i = 0; i < blocks; i++) {
        unsigned one = i * 7 + 1, two = one * 2 + 9;
        CHECK(unsigned(copied[4 * i]) == one, "block %d: %x, not %x", i, copied[4 * i], one);
        CHECK(unsigned(copied[4 * i + 1]) == two, "block %d: %x, not %x", i, copied[4 * i + 1], two);
        CHECK(copied[4 * i + 3] == 4 * i + 103, "block %d: %d", i, copied[4 * i + 3]);
    }
    printf("%d %x\n", wanted, copied[1]);
    printf("PASS\n");
}
