// needs: plain
// 60 streams, each with a chain of 20 launches, copies and memsets of its own, issued in turn;
// order inside each stream holds, events join them all at the end.
#include "check.h"

__global__ void step(unsigned *state, unsigned key, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) state[i] = state[i] * 1664525u + key + i;
}

int main() {
    const int streams = 60, steps = 20, count = 500;
    std::vector<cudaStream_t> stream(streams);
    std::vector<cudaEvent_t> done(streams);
    std::vector<unsigned *> state(streams);
    unsigned *copies;
    OK(cudaMallocHost(&copies, streams * count * sizeof(unsigned)));
    for (int s = 0; s < streams; s++) {
        OK(cudaStreamCreate(&stream[s]));
        OK(cudaEventCreateWithFlags(&done[s], cudaEventDisableTiming));
        OK(cudaMalloc(&state[s], count * sizeof(unsigned)));
        OK(cudaMemsetAsync(state[s], s, count * sizeof(unsigned), stream[s]));
    }
    for (int k = 0; k < steps; k++)
        for (int s = 0; s < streams; s++) step<<<4, 128, 0, stream[s]>>>(state[s], s * 1000 + k, count);
    OK(cudaGetLastError());
    for (int s = 0; s < streams; s++) {
        OK(cudaMemcpyAsync(copies + s * count, state[s], count * sizeof(unsigned), cudaMemcpyDeviceToHost, stream[s]));
        OK(cudaEventRecord(done[s], stream[s]));
    }
    cudaStream_t last;
    OK(cudaStreamCreateWithFlags(&last, cudaStreamNonBlocking));
    for (auto &event : done) OK(cudaStreamWaitEvent(last, event, 0));
    OK(cudaStreamSynchronize(last));
    for (auto &event : done) OK(cudaEventQuery(event));
    for (int s = 0; s < streams; s++)
        for (int i = 0; i < count; i++) {
            unsigned expected = 0x01010101u * s;
            for (int k = 0; k < steps; k++) expected = expected * 1664525u + s * 1000 + k + i;
            CHECK(copies[s * count + i] == expected, "stream %d, element %d: %u, not %u", s, i, copies[s * count + i], expected);
        }
    printf("%016llx\n", (unsigned long long)check::hash(copies, streams * count * sizeof(unsigned)));
    for (int s = 0; s < streams; s++) {
        OK(cudaStreamDestroy(stream[s]));
        OK(cudaEventDestroy(done[s]));
        OK(cudaFree(state[s]));
    }
    OK(cudaStreamDestroy(last));
    OK(cudaFreeHost(copies));
    return check::pass();
}
