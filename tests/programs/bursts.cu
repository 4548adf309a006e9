// needs: plain
// env: CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=25
// Bursts of launches, many times what any side takes at once, in several streams and of several kernels: each
// has its own parameters, they go in order, and all stay on as many multiprocessors as the program was told of.
#include "check.h"

__device__ unsigned multiprocessor() {
    unsigned id;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(id));
    return id;
}

// Its order, as a number that depends on all before it.
__global__ void step(unsigned *state, unsigned number, unsigned *seen) {
    if (blockIdx.x == 0 && threadIdx.x == 0) *state = *state * 31 + number;
    if (threadIdx.x == 0) seen[multiprocessor()] = 1;
}

struct Large {
    unsigned words[200];
};

__global__ void with_large_parameter(Large large, unsigned *state, unsigned at) {
    if (threadIdx.x == 0) *state = *state * 31 + large.words[at];
}

__global__ void with_shared_memory(unsigned *state, unsigned number) {
    extern __shared__ unsigned room[];
    room[threadIdx.x] = threadIdx.x == 0 ? number : 0;
    __syncthreads();
    if (threadIdx.x == 0) *state = *state * 31 + room[0];
}

int main() {
    constexpr int STREAMS = 6, ROUNDS = 500;
    cudaDeviceProp device;
    OK(cudaGetDeviceProperties(&device, 0));
    Array<unsigned> states(STREAMS), seen(4096);
    OK(cudaMemset(states, 0, STREAMS * 4));
    OK(cudaMemset(seen, 0, 4096 * 4));
    OK(cudaDeviceSynchronize());
    cudaStream_t streams[STREAMS];
    for (auto &stream : streams) OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    unsigned expected[STREAMS] = {};
    Large large;
    for (int round = 0; round < ROUNDS; round++)
        for (int s = 0; s < STREAMS; s++) {
            unsigned number = round * STREAMS + s, *state = states + s;
            switch ((round + s) % 5) {
            case 0:
                large.words[number % 200] = number;
                with_large_parameter<<<1, 32, 0, streams[s]>>>(large, state, number % 200);
                break;
            case 1: with_shared_memory<<<1, 64, 256 + 4 * (round % 1000), streams[s]>>>(state, number); break;
            default: step<<<1 + round % 300, 1 + s * 32, 0, streams[s]>>>(state, number, seen);
            }
            expected[s] = expected[s] * 31 + number;
            if (round == ROUNDS / 2) OK(cudaStreamSynchronize(streams[s]));
        }
    RAN();
    std::vector<unsigned> found = states.host(), on = seen.host();
    unsigned used = 0;
    for (unsigned one : on) used += one;
    for (int s = 0; s < STREAMS; s++) CHECK(found[s] == expected[s], "stream %d: %u, expected %u", s, found[s], expected[s]);
    CHECK(used > 0 && used <= unsigned(device.multiProcessorCount), "%u multiprocessors of %d", used, device.multiProcessorCount);
    printf("%d launches in order, on the multiprocessors that there are\n", STREAMS * ROUNDS);
    return check::pass();
}
