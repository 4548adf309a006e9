// needs: plain
// nvcc: -std=c++17 --extended-lambda
// Streams with priorities, and what is said of how many blocks fit: priorities are clamped to the range and kept by streams,
// captures and launches; occupancy agrees with itself as shared memory, registers and block sizes grow, and what it
// says fits can be launched. Prints what is the same on every device.
#include "check.h"

__global__ void small(int *out) { atomicAdd(out, 1); }
__global__ void __launch_bounds__(1024) wide(int *out) { atomicAdd(out, 1); }
__global__ void shared(int *out) {
    extern __shared__ int memory[];
    memory[threadIdx.x] = threadIdx.x;
    __syncthreads();
    atomicAdd(out, memory[blockDim.x - 1 - threadIdx.x] >= 0);
}

int main() {
    int least, greatest;
    OK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    CHECK(least == 0 && greatest < 0, "%d to %d", least, greatest);
    Array<int> out(1);
    out.clear();
    std::vector<cudaStream_t> streams;
    for (int priority = least + 2; priority >= greatest - 2; priority--) {
        cudaStream_t stream;
        int kept = 99;
        OK(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, priority));
        OK(cudaStreamGetPriority(stream, &kept));
        CHECK(kept == std::min(std::max(priority, greatest), least), "%d becomes %d", priority, kept);
        small<<<4, 32, 0, stream>>>(out);
        OK(cudaGetLastError());
        streams.push_back(stream);
    }
    OK(cudaDeviceSynchronize());
    CHECK(out.host()[0] == int(streams.size()) * 128, "%d", out.host()[0]);
    // A launch's own priority, and a captured node's.
    cudaGraph_t graph;
    OK(cudaStreamBeginCapture(streams.back(), cudaStreamCaptureModeGlobal));
    small<<<1, 32, 0, streams.back()>>>(out);
    OK(cudaStreamEndCapture(streams.back(), &graph));
    size_t nodes = 1;
    cudaGraphNode_t node;
    OK(cudaGraphGetNodes(graph, &node, &nodes));
    cudaLaunchAttributeValue value;
    OK(cudaGraphKernelNodeGetAttribute(node, cudaLaunchAttributePriority, &value));
    CHECK(value.priority == greatest, "the node's is %d, not %d", value.priority, greatest);
    cudaLaunchConfig_t config = {};
    config.gridDim = 2;
    config.blockDim = 32;
    config.stream = streams[0];
    cudaLaunchAttribute attribute;
    attribute.id = cudaLaunchAttributePriority;
    attribute.val.priority = greatest;
    config.attrs = &attribute;
    config.numAttrs = 1;
    OK(cudaLaunchKernelEx(&config, small, (int *)out));
    OK(cudaDeviceSynchronize());
    for (auto stream : streams) OK(cudaStreamDestroy(stream));
    printf("priorities\n");

    cudaDeviceProp device;
    OK(cudaGetDeviceProperties(&device, 0));
    int before = 1 << 30, fit = 0;
    for (int threads = 32; threads <= 1024; threads *= 2) {
        OK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&fit, small, threads, 0));
        CHECK(fit > 0 && fit <= before && fit * threads <= device.maxThreadsPerMultiProcessor, "%d blocks of %d", fit, threads);
        before = fit;
    }
    before = 1 << 30;
    for (size_t bytes = 0; bytes <= 48 << 10; bytes += 4096) {
        OK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&fit, shared, 128, bytes));
        CHECK(fit > 0 && fit <= before && fit * bytes <= device.sharedMemPerMultiprocessor, "%d blocks of %zu bytes", fit, bytes);
        before = fit;
    }
    OK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&fit, wide, 1024, 0));
    CHECK(fit >= 1, "%d", fit);
    int grid = 0, block = 0;
    OK(cudaOccupancyMaxPotentialBlockSize(&grid, &block, small));
    CHECK(block % 32 == 0 && block > 0 && block <= 1024 && grid >= device.multiProcessorCount, "%d of %d", grid, block);
    OK(cudaOccupancyMaxPotentialBlockSizeVariableSMem(&grid, &block, shared, [] __host__ __device__(int threads) { return size_t(threads) * 64; }));
    CHECK(block > 0 && size_t(block) * 64 <= device.sharedMemPerMultiprocessor, "%d of %d", grid, block);
    size_t room = 0;
    OK(cudaOccupancyAvailableDynamicSMemPerBlock(&room, shared, 2, 128));
    CHECK(room > 0 && 2 * room <= device.sharedMemPerMultiprocessor, "%zu", room);
    out.clear();
    const size_t bytes = std::min<size_t>(room, 48 << 10);
    shared<<<8, 128, bytes>>>(out);
    RAN();
    CHECK(out.host()[0] == 8 * 128, "%d", out.host()[0]);
    // More threads than fit, and more shared memory than a block may have.
    FAILS((small<<<1, 2048>>>(out), cudaGetLastError()), cudaErrorInvalidValue);
    FAILS((shared<<<1, 128, 1 << 20>>>(out), cudaGetLastError()), cudaErrorInvalidValue);
    printf("occupancy\n");
    return check::pass();
}
