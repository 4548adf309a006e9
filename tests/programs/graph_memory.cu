// needs: graphs pools
// Memory nodes: allocation and free captured into a graph, the address known at once, replays that
// reuse it, and an allocation freed outside the graph.
#include "check.h"

__global__ void fill(int *p, int value, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) p[i] = value + i;
}
__global__ void add(const int *p, int *out, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) out[i] += p[i];
}

int main() {
    const int count = 3000, grid = blocks(count, 128);
    cudaStream_t stream;
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    Array<int> out(count);
    out.clear();
    OK(cudaDeviceSynchronize());
    int *p = nullptr;
    OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    OK(cudaMallocAsync(&p, count * sizeof(int), stream));
    CHECK(p != nullptr, "no address");
    fill<<<grid, 128, 0, stream>>>(p, 7, count);
    add<<<grid, 128, 0, stream>>>(p, out, count);
    OK(cudaFreeAsync(p, stream));
    cudaGraph_t graph;
    OK(cudaStreamEndCapture(stream, &graph));
    cudaGraphExec_t program;
    OK(cudaGraphInstantiate(&program, graph, 0));
    for (int k = 0; k < 10; k++) OK(cudaGraphLaunch(program, stream));
    OK(cudaStreamSynchronize(stream));
    auto got = out.host();
    for (int i = 0; i < count; i++) CHECK(got[i] == 10 * (7 + i), "element %d is %d", i, got[i]);
    OK(cudaGraphExecDestroy(program));
    OK(cudaGraphDestroy(graph));

    OK(cudaGraphCreate(&graph, 0));
    cudaMemAllocNodeParams parameters = {};
    parameters.poolProps.allocType = cudaMemAllocationTypePinned;
    parameters.poolProps.location.type = cudaMemLocationTypeDevice;
    parameters.bytesize = count * sizeof(int);
    cudaGraphNode_t node;
    OK(cudaGraphAddMemAllocNode(&node, graph, nullptr, 0, &parameters));
    OK(cudaGraphInstantiate(&program, graph, 0));
    OK(cudaGraphLaunch(program, stream));
    p = static_cast<int *>(parameters.dptr);
    fill<<<grid, 128, 0, stream>>>(p, 1, count);
    int last;
    OK(cudaMemcpyAsync(&last, p + count - 1, sizeof last, cudaMemcpyDeviceToHost, stream));
    OK(cudaFreeAsync(p, stream));
    OK(cudaStreamSynchronize(stream));
    CHECK(last == count, "%d", last);
    OK(cudaGraphExecDestroy(program));
    OK(cudaGraphDestroy(graph));
    OK(cudaDeviceGraphMemTrim(0));
    OK(cudaStreamDestroy(stream));
    printf("ten replays\n");
    return check::pass();
}
