// needs: graphs
// Executable graphs that are changed: whole updates that fit and that do not, nodes one by one, nodes
// switched off, child graphs, host nodes, edges, user objects; and what is refused.
#include <unistd.h>

#include "check.h"

__global__ void add(int *p, int n) { p[threadIdx.x] += n; }

int calls = 0, freed = 0;
void call(void *data) { calls += *static_cast<int *>(data); }
void end_object(void *) { freed++; }

cudaKernelNodeParams kernel(int *&p, int &n) {
    static void *arguments[2];
    arguments[0] = &p, arguments[1] = &n;
    cudaKernelNodeParams parameters = {};
    parameters.func = reinterpret_cast<void *>(add);
    parameters.gridDim = 1;
    parameters.blockDim = 32;
    parameters.kernelParams = arguments;
    return parameters;
}

int main() {
    Array<int> values(64);
    values.clear();
    int *p = values, one = 1, ten = 10, *pinned;
    OK(cudaMallocHost(&pinned, 256));
    cudaStream_t stream;
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    OK(cudaDeviceSynchronize());

    cudaGraph_t graph, clone;
    cudaGraphNode_t nodes[4], found;
    OK(cudaGraphCreate(&graph, 0));
    auto launch = kernel(p, one);
    OK(cudaGraphAddKernelNode(&nodes[0], graph, nullptr, 0, &launch));
    cudaMemsetParams fill = {};
    fill.dst = p + 32;
    fill.value = 7;
    fill.elementSize = 4;
    fill.width = 10;
    fill.height = 1;
    OK(cudaGraphAddMemsetNode(&nodes[1], graph, &nodes[0], 1, &fill));
    cudaHostNodeParams host = {call, &one};
    OK(cudaGraphAddHostNode(&nodes[2], graph, &nodes[1], 1, &host));
    OK(cudaGraphAddMemcpyNode1D(&nodes[3], graph, &nodes[2], 1, pinned, p, 256, cudaMemcpyDeviceToHost));
    cudaGraphExec_t program;
    OK(cudaGraphInstantiate(&program, graph, 0));
    unsigned long long flags = 9;
    OK(cudaGraphExecGetFlags(program, &flags));
    CHECK(flags == 0, "%llu", flags);
    auto run = [&] {
        OK(cudaGraphLaunch(program, stream));
        OK(cudaStreamSynchronize(stream));
    };
    run();
    CHECK(pinned[0] == 1 && pinned[32] == 7 && pinned[42] == 0 && calls == 1, "%d %d %d", pinned[0], pinned[32], calls);

    // Updates of the whole.
    cudaGraphExecUpdateResultInfo info;
    auto update = [&](cudaGraph_t from, cudaGraphExecUpdateResult expected, bool node) {
        info = {};
        cudaError_t error = cudaGraphExecUpdate(program, from, &info);
        cudaGetLastError();
        CHECK(error == (expected ? cudaErrorGraphExecUpdateFailure : cudaSuccess), "%s", cudaGetErrorName(error));
        CHECK(info.result == expected, "%d, not %d", info.result, expected);
        CHECK((info.errorNode != nullptr) == node, "an error node or none");
    };
    update(graph, cudaGraphExecUpdateSuccess, false);
    auto fresh = [&] {
        OK(cudaGraphDestroy(clone));
        OK(cudaGraphClone(&clone, graph));
    };
    OK(cudaGraphClone(&clone, graph));
    update(clone, cudaGraphExecUpdateSuccess, false);
    OK(cudaGraphNodeFindInClone(&found, nodes[3], clone));
    OK(cudaGraphDestroyNode(found));
    update(clone, cudaGraphExecUpdateErrorTopologyChanged, false);
    OK(cudaGraphAddEmptyNode(&found, clone, nullptr, 0));
    update(clone, cudaGraphExecUpdateErrorTopologyChanged, true);
    fresh();
    OK(cudaGraphAddEmptyNode(&found, clone, nullptr, 0));
    update(clone, cudaGraphExecUpdateErrorTopologyChanged, false);
    fresh();
    cudaGraphNode_t third;
    OK(cudaGraphNodeFindInClone(&found, nodes[3], clone));
    OK(cudaGraphNodeFindInClone(&third, nodes[2], clone));
    OK(cudaGraphDestroyNode(found));
    OK(cudaGraphAddEmptyNode(&found, clone, &third, 1));
    update(clone, cudaGraphExecUpdateErrorNodeTypeChanged, true);
    fresh();
    OK(cudaGraphNodeFindInClone(&found, nodes[1], clone));
    OK(cudaGraphNodeFindInClone(&third, nodes[2], clone));
    OK(cudaGraphRemoveDependencies(clone, &found, &third, nullptr, 1));
    FAILS(cudaGraphRemoveDependencies(clone, &found, &third, nullptr, 1), cudaErrorInvalidValue);
    update(clone, cudaGraphExecUpdateErrorTopologyChanged, true);
    FAILS(cudaGraphNodeFindInClone(&found, nodes[0], graph), cudaErrorInvalidValue);

    // One node at a time.
    fill.width = 20;
    OK(cudaGraphExecMemsetNodeSetParams(program, nodes[1], &fill));
    fill.elementSize = 3;
    FAILS(cudaGraphExecMemsetNodeSetParams(program, nodes[1], &fill), cudaErrorInvalidValue);
    FAILS(cudaGraphExecMemcpyNodeSetParams1D(program, nodes[3], p, pinned, 32, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
    OK(cudaGraphExecMemcpyNodeSetParams1D(program, nodes[3], pinned, p, 192, cudaMemcpyDeviceToHost));
    launch = kernel(p, ten);
    FAILS(cudaGraphExecKernelNodeSetParams(program, nodes[1], &launch), cudaErrorInvalidValue);
    OK(cudaGraphExecKernelNodeSetParams(program, nodes[0], &launch));
    host.userData = &ten;
    OK(cudaGraphExecHostNodeSetParams(program, nodes[2], &host));
    cudaGetLastError();
    run();
    CHECK(pinned[0] == 11 && pinned[47] == 7 && calls == 11, "%d %d %d", pinned[0], pinned[47], calls);

    // Nodes switched off.
    unsigned enabled = 9;
    OK(cudaGraphNodeGetEnabled(program, nodes[0], &enabled));
    CHECK(enabled == 1, "%u", enabled);
    OK(cudaGraphNodeSetEnabled(program, nodes[0], 0));
    FAILS(cudaGraphNodeSetEnabled(program, nodes[2], 0), cudaErrorInvalidValue);
    run();
    CHECK(pinned[0] == 11 && calls == 21, "%d %d", pinned[0], calls);
    update(graph, cudaGraphExecUpdateSuccess, false);
    OK(cudaGraphNodeGetEnabled(program, nodes[0], &enabled));
    CHECK(enabled == 0, "%u", enabled);
    OK(cudaGraphNodeSetEnabled(program, nodes[0], 1));
    run();
    CHECK(pinned[0] == 12 && calls == 22, "%d %d", pinned[0], calls);

    // What nodes tell.
    cudaKernelNodeParams told = {};
    OK(cudaGraphKernelNodeGetParams(nodes[0], &told));
    CHECK(told.func == reinterpret_cast<void *>(add) && *static_cast<int **>(told.kernelParams[0]) == p && *static_cast<int *>(told.kernelParams[1]) == 1, "parameters");
    FAILS(cudaGraphKernelNodeGetParams(nodes[1], &told), cudaErrorInvalidValue);
    cudaGraphNode_t room[8];
    size_t count = 1;
    OK(cudaGraphGetNodes(graph, room, &count));
    CHECK(count == 1 && room[0] == nodes[0], "%zu", count);
    count = 8;
    OK(cudaGraphGetNodes(graph, room, &count));
    CHECK(count == 4 && room[3] == nodes[3] && room[7] == nullptr, "%zu", count);
    OK(cudaGraphNodeGetDependencies(nodes[2], nullptr, nullptr, &count));
    CHECK(count == 1, "%zu", count);

    // Child graphs.
    cudaGraph_t outer, inside;
    cudaGraphNode_t child;
    cudaGraphExec_t nested;
    OK(cudaGraphCreate(&outer, 0));
    OK(cudaGraphAddChildGraphNode(&child, outer, nullptr, 0, graph));
    OK(cudaGraphChildGraphNodeGetGraph(child, &inside));
    FAILS(cudaGraphDestroy(inside), cudaErrorInvalidValue);
    OK(cudaGraphInstantiate(&nested, outer, 0));
    OK(cudaGraphLaunch(nested, stream));
    OK(cudaStreamSynchronize(stream));
    CHECK(pinned[0] == 13, "%d", pinned[0]);
    fresh();
    OK(cudaGraphNodeFindInClone(&found, nodes[0], clone));
    OK(cudaGraphKernelNodeSetParams(found, &launch));
    OK(cudaGraphExecChildGraphNodeSetParams(nested, child, clone));
    OK(cudaGraphLaunch(nested, stream));
    OK(cudaStreamSynchronize(stream));
    CHECK(pinned[0] == 23, "%d", pinned[0]);
    OK(cudaGraphExecDestroy(nested));

    // Refused.
    cudaGraphNode_t twice[] = {nodes[0], nodes[0]};
    FAILS(cudaGraphAddEmptyNode(&found, graph, twice, 2), cudaErrorInvalidValue);
    FAILS(cudaGraphAddEmptyNode(nullptr, graph, nullptr, 0), cudaErrorInvalidValue);
    FAILS(cudaGraphAddEmptyNode(&found, graph, nullptr, 1), cudaErrorInvalidValue);
    FAILS(cudaGraphAddDependencies(graph, nodes, nodes, nullptr, 1), cudaErrorInvalidValue);
    FAILS(cudaGraphAddDependencies(graph, nodes, nodes + 1, nullptr, 1), cudaErrorInvalidValue);
    FAILS(cudaGraphCreate(&inside, 1), cudaErrorInvalidValue);
    FAILS(cudaGraphInstantiate(&nested, graph, 99), cudaErrorInvalidValue);
    FAILS(cudaGraphLaunch(nullptr, stream), cudaErrorInvalidValue);
    launch.gridDim = 0;
    FAILS(cudaGraphAddKernelNode(&found, graph, nullptr, 0, &launch), cudaErrorInvalidValue);
    fill.elementSize = 4;
    fill.dst = nullptr;
    FAILS(cudaGraphAddMemsetNode(&found, graph, nullptr, 0, &fill), cudaErrorInvalidValue);
    host.fn = nullptr;
    FAILS(cudaGraphAddHostNode(&found, graph, nullptr, 0, &host), cudaErrorInvalidValue);
    FAILS(cudaGraphAddEventRecordNode(&found, graph, nullptr, 0, nullptr), cudaErrorInvalidValue);
    cudaGetLastError();

    // User objects.
    cudaUserObject_t object;
    FAILS(cudaUserObjectCreate(&object, &freed, end_object, 1, 0), cudaErrorInvalidValue);
    OK(cudaUserObjectCreate(&object, &freed, end_object, 1, cudaUserObjectNoDestructorSync));
    OK(cudaGraphRetainUserObject(graph, object, 1, cudaGraphUserObjectMove));
    OK(cudaGraphExecDestroy(program));
    OK(cudaGraphInstantiate(&program, graph, 0));
    run();
    for (auto g : {graph, clone, outer}) OK(cudaGraphDestroy(g));
    usleep(50000);
    CHECK(freed == 0, "the executable graph holds the object");
    OK(cudaGraphExecDestroy(program));
    for (int wait = 0; wait < 1000 && !freed; wait++) usleep(10000);
    CHECK(freed == 1, "%d", freed);
    cudaGetLastError();
    OK(cudaFreeHost(pinned));
    OK(cudaStreamDestroy(stream));
    printf("%d calls\n", calls);
    return check::pass();
}
