// needs: launches graphs
// nvcc: -rdc=true -lcudadevrt
// Kernels that launch others within a graph: the node after such a kernel begins when all of that is over. The same in
// two streams at once, and with a large parameter block.
#include "check.h"

struct Many {
    int values[200];
};

__global__ void leaf(int *data, Many many, int from) { data[from + threadIdx.x] += many.values[threadIdx.x]; }

__global__ void root(int *data, Many many) {
    for (int from = 0; from < 1000; from += 200) leaf<<<1, 200, 0, cudaStreamFireAndForget>>>(data, many, from);
}

__global__ void twice(int *data) { data[threadIdx.x] = 2 * data[threadIdx.x]; }

int main() {
    Many many;
    for (int i = 0; i < 200; i++) many.values[i] = i + 1;
    Array<int> one(1000), two(1000);
    one.clear();
    two.clear();
    cudaStream_t stream, other;
    OK(cudaStreamCreate(&stream));
    OK(cudaStreamCreate(&other));
    OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    root<<<1, 1, 0, stream>>>(one, many);
    twice<<<1, 1000, 0, stream>>>(one);
    root<<<1, 1, 0, stream>>>(one, many);
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    OK(cudaStreamEndCapture(stream, &graph));
    OK(cudaGraphInstantiate(&exec, graph, 0));
    std::vector<long> model(1000);
    for (int round = 0; round < 4; round++) {
        OK(cudaGraphLaunch(exec, stream));
        for (int i = 0; i < 3; i++) root<<<1, 1, 0, other>>>(two, many);
        for (int i = 0; i < 1000; i++) model[i] = 2 * (model[i] + i % 200 + 1) + i % 200 + 1;
    }
    RAN();
    auto got = one.host(), beside = two.host();
    for (int i = 0; i < 1000; i++) {
        CHECK(got[i] == model[i], "element %d: %d, not %ld", i, got[i], model[i]);
        CHECK(beside[i] == 12 * (i % 200 + 1), "element %d: %d", i, beside[i]);
    }
    OK(cudaGraphExecDestroy(exec));
    OK(cudaGraphDestroy(graph));
    printf("%d %d\n", got[999], beside[999]);
    printf("PASS\n");
}
