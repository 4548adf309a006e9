// needs: launches device_graphs
// nvcc: -std=c++17 -rdc=true -lcudadevrt
// Graphs that kernels launch: fire and forget, each once (one that runs is not launched again), and as a tail that launches
// itself until it is done.
#include "check.h"

__global__ void add(int *place, int value) { atomicAdd(place, value); }

__global__ void fire(cudaGraphExec_t first, cudaGraphExec_t second) {
    cudaGraphLaunch(first, cudaStreamGraphFireAndForget);
    cudaGraphLaunch(second, cudaStreamGraphFireAndForget);
}

__global__ void again(int *left, int *rounds) {
    atomicAdd(rounds, 1);
    if (--*left > 0) cudaGraphLaunch(cudaGetCurrentGraphExec(), cudaStreamGraphTailLaunch);
}

template <typename... Args> cudaGraphExec_t graph_of(cudaStream_t stream, bool for_device, void (*kernel)(Args...), Args... args) {
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    kernel<<<1, 1, 0, stream>>>(args...);
    OK(cudaStreamEndCapture(stream, &graph));
    OK(cudaGraphInstantiate(&exec, graph, for_device ? cudaGraphInstantiateFlagDeviceLaunch : 0));
    if (for_device) OK(cudaGraphUpload(exec, stream));
    OK(cudaGraphDestroy(graph));
    return exec;
}

int main() {
    cudaStream_t stream;
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    Array<int> sum(1), left(std::vector<int>{20}), rounds(1);
    sum.clear();
    rounds.clear();
    auto seven = graph_of(stream, true, add, (int *)sum, 7), hundred = graph_of(stream, true, add, (int *)sum, 100);
    OK(cudaStreamSynchronize(stream));
    auto outer = graph_of(stream, true, fire, seven, hundred);
    for (int i = 0; i < 4; i++) {
        OK(cudaGraphLaunch(outer, stream));
        OK(cudaStreamSynchronize(stream));
    }
    CHECK(sum.host()[0] == 428, "%d", sum.host()[0]);
    auto loop = graph_of(stream, true, again, (int *)left, (int *)rounds);
    OK(cudaGraphLaunch(loop, stream));
    OK(cudaStreamSynchronize(stream));
    CHECK(rounds.host()[0] == 20 && left.host()[0] == 0, "%d rounds, %d left", rounds.host()[0], left.host()[0]);
    printf("%d and %d\n", sum.host()[0], rounds.host()[0]);
    return check::pass();
}
