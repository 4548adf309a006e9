// needs: graphs
// Graphs built node by node: kernels, copies, memsets, a child graph, dependencies; parameters and
// whole graphs updated after instantiation; clones; queries.
#include "check.h"

__global__ void scale(int *p, int factor, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) p[i] = p[i] * factor + i;
}

const int count = 1000;

cudaGraphNode_t add_kernel(cudaGraph_t graph, const std::vector<cudaGraphNode_t> &after, int **p, int *factor) {
    static int size = count;
    void *arguments[] = {p, factor, &size};
    cudaKernelNodeParams parameters = {};
    parameters.func = reinterpret_cast<void *>(scale);
    parameters.gridDim = blocks(count, 128);
    parameters.blockDim = 128;
    parameters.kernelParams = arguments;
    cudaGraphNode_t node;
    OK(cudaGraphAddKernelNode(&node, graph, after.data(), after.size(), &parameters));
    return node;
}

int main() {
    Array<int> a(count), b(count);
    int *pa = a, *pb = b, three = 3, five = 5;
    std::vector<int> start(count), result(count);
    for (int i = 0; i < count; i++) start[i] = i % 10;

    cudaGraph_t graph, child;
    OK(cudaGraphCreate(&child, 0));
    auto first = add_kernel(child, {}, &pb, &five);
    add_kernel(child, {first}, &pb, &three);
    OK(cudaGraphCreate(&graph, 0));
    cudaGraphNode_t in, nested, copy, clear, out;
    OK(cudaGraphAddMemcpyNode1D(&in, graph, nullptr, 0, pa, start.data(), count * sizeof(int), cudaMemcpyHostToDevice));
    cudaMemsetParams fill = {};
    fill.dst = pb;
    fill.value = 0x01010101;
    fill.elementSize = 4;
    fill.width = count;
    fill.height = 1;
    OK(cudaGraphAddMemsetNode(&clear, graph, nullptr, 0, &fill));
    auto kernel = add_kernel(graph, {in}, &pa, &three);
    OK(cudaGraphAddMemcpyNode1D(&copy, graph, nullptr, 0, pb, pa, count * sizeof(int), cudaMemcpyDeviceToDevice));
    cudaGraphNode_t from[] = {kernel, clear}, to[] = {copy, copy};
    OK(cudaGraphAddDependencies(graph, from, to, nullptr, 2));
    OK(cudaGraphAddChildGraphNode(&nested, graph, &copy, 1, child));
    OK(cudaGraphAddMemcpyNode1D(&out, graph, &nested, 1, result.data(), pb, count * sizeof(int), cudaMemcpyDeviceToHost));
    size_t nodes = 0, edges = 0, roots = 0;
    OK(cudaGraphGetNodes(graph, nullptr, &nodes));
    OK(cudaGraphGetEdges(graph, nullptr, nullptr, nullptr, &edges));
    OK(cudaGraphGetRootNodes(graph, nullptr, &roots));
    CHECK(nodes == 6 && edges == 5 && roots == 2, "%zu nodes, %zu edges, %zu roots", nodes, edges, roots);
    cudaGraphNodeType type;
    OK(cudaGraphNodeGetType(nested, &type));
    CHECK(type == cudaGraphNodeTypeGraph, "type %d", type);

    cudaStream_t stream;
    OK(cudaStreamCreate(&stream));
    cudaGraphExec_t program;
    OK(cudaGraphInstantiate(&program, graph, 0));
    auto run = [&](int factor, const char *what) {
        OK(cudaGraphLaunch(program, stream));
        OK(cudaStreamSynchronize(stream));
        for (int i = 0; i < count; i++) {
            int expected = (((start[i] * factor + i) * 5 + i) * 3) + i;
            CHECK(result[i] == expected, "%s: element %d is %d, not %d", what, i, result[i], expected);
        }
    };
    run(3, "as built");

    int seven = 7, size = count;
    void *arguments[] = {&pa, &seven, &size};
    cudaKernelNodeParams parameters = {};
    parameters.func = reinterpret_cast<void *>(scale);
    parameters.gridDim = 4;
    parameters.blockDim = 256;
    parameters.kernelParams = arguments;
    OK(cudaGraphExecKernelNodeSetParams(program, kernel, &parameters));
    run(7, "with the node's new parameters");

    cudaGraph_t clone;
    OK(cudaGraphClone(&clone, graph));
    cudaGraphNode_t twin;
    OK(cudaGraphNodeFindInClone(&twin, kernel, clone));
    int nine = 9;
    arguments[1] = &nine;
    OK(cudaGraphKernelNodeSetParams(twin, &parameters));
    cudaGraphExecUpdateResultInfo info = {};
    OK(cudaGraphExecUpdate(program, clone, &info));
    CHECK(info.result == cudaGraphExecUpdateSuccess, "%d", info.result);
    run(9, "after a whole update");

    OK(cudaGraphDestroyNode(out));
    FAILS(cudaGraphExecUpdate(program, graph, &info), cudaErrorGraphExecUpdateFailure);
    CHECK(info.result == cudaGraphExecUpdateErrorTopologyChanged, "%d", info.result);
    cudaGetLastError();
    run(9, "after a refused update");
    OK(cudaGraphExecDestroy(program));
    for (auto g : {graph, child, clone}) OK(cudaGraphDestroy(g));
    OK(cudaStreamDestroy(stream));
    printf("%zu nodes, %zu edges, three updates\n", nodes, edges);
    return check::pass();
}
