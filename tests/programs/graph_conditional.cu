// needs: graphs
// Graphs that decide while they run: bodies that are run or not, one or the other, one of several, again and
// again; conditions inside of conditions; values that launches begin with; updates; what is refused.
#include "check.h"

__global__ void set(cudaGraphConditionalHandle handle, unsigned value) { cudaGraphSetConditional(handle, value); }
__global__ void add(int *p, int value) { atomicAdd(p, value); }
// Collatz: one step, on as long as there is one to do.
__global__ void step(cudaGraphConditionalHandle again, long long *n, int *steps) {
    *n = *n % 2 ? 3 * *n + 1 : *n / 2;
    ++*steps;
    cudaGraphSetConditional(again, *n != 1);
}
// Of many threads one sets the value.
__global__ void any(cudaGraphConditionalHandle handle, const int *p, int count, int wanted) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count && p[i] == wanted) cudaGraphSetConditional(handle, 1);
}
__global__ void odd(cudaGraphConditionalHandle handle, const int *round) { cudaGraphSetConditional(handle, *round % 2); }
__global__ void count_down(cudaGraphConditionalHandle again, int *round) { cudaGraphSetConditional(again, --*round > 0); }

cudaStream_t stream;
int *device;

struct Node {
    cudaGraphNode_t node;
    std::vector<cudaGraph_t> bodies;
};

template <class... A> cudaGraphNode_t kernel(cudaGraph_t graph, std::vector<cudaGraphNode_t> after, void (*function)(A...), A... arguments) {
    void *pointers[] = {&arguments...};
    cudaKernelNodeParams params = {};
    params.func = (void *)function;
    params.gridDim = params.blockDim = dim3(1);
    params.kernelParams = pointers;
    cudaGraphNode_t node;
    OK(cudaGraphAddKernelNode(&node, graph, after.data(), after.size(), &params));
    return node;
}
cudaError_t try_node(Node &made, cudaGraph_t graph, cudaGraphConditionalHandle handle, cudaGraphConditionalNodeType type, unsigned size, std::vector<cudaGraphNode_t> after = {}) {
    cudaGraphNodeParams params = {};
    params.type = cudaGraphNodeTypeConditional;
    params.conditional.handle = handle;
    params.conditional.type = type;
    params.conditional.size = size;
    cudaError_t error = cudaGraphAddNode(&made.node, graph, after.data(), nullptr, after.size(), &params);
    if (!error) made.bodies.assign(params.conditional.phGraph_out, params.conditional.phGraph_out + size);
    cudaGetLastError();
    return error;
}
Node node(cudaGraph_t graph, cudaGraphConditionalHandle handle, cudaGraphConditionalNodeType type, unsigned size, std::vector<cudaGraphNode_t> after = {}) {
    Node made;
    OK(try_node(made, graph, handle, type, size, after));
    return made;
}
cudaGraph_t new_graph() {
    cudaGraph_t graph;
    OK(cudaGraphCreate(&graph, 0));
    return graph;
}
cudaGraphConditionalHandle new_handle(cudaGraph_t graph, unsigned value = 0, unsigned flags = 0) {
    cudaGraphConditionalHandle handle;
    OK(cudaGraphConditionalHandleCreate(&handle, graph, value, flags));
    return handle;
}
cudaGraphExec_t program(cudaGraph_t graph) {
    cudaGraphExec_t made;
    OK(cudaGraphInstantiate(&made, graph, 0));
    return made;
}
// What a launch makes of some numbers in device memory.
std::vector<int> run(cudaGraphExec_t program, std::vector<int> numbers) {
    OK(cudaMemcpyAsync(device, numbers.data(), numbers.size() * 4, cudaMemcpyHostToDevice, stream));
    OK(cudaGraphLaunch(program, stream));
    // What is behind the launch in its stream comes behind everything that it decides to do.
    OK(cudaMemcpyAsync(numbers.data(), device, numbers.size() * 4, cudaMemcpyDeviceToHost, stream));
    OK(cudaStreamSynchronize(stream));
    return numbers;
}

void one_of(cudaGraphConditionalNodeType type, unsigned size, std::vector<int> expected) {
    // For the values 0, 1, 2 and so on: which body ran.
    for (size_t value = 0; value < expected.size(); value++) {
        auto graph = new_graph();
        auto handle = new_handle(graph);
        auto first = kernel(graph, {}, set, handle, unsigned(value));
        auto made = node(graph, handle, type, size, {first});
        for (unsigned i = 0; i < size; i++) kernel(made.bodies[i], {}, add, device, 1 << i);
        kernel(graph, {made.node}, add, device + 1, 5);
        auto exec = program(graph);
        for (int k = 0; k < 2; k++) {
            auto got = run(exec, {0, 0});
            CHECK(got[0] == expected[value] && got[1] == 5, "type %d, value %zu: %d, %d", type, value, got[0], got[1]);
        }
        cudaGraphNodeType kind;
        OK(cudaGraphNodeGetType(made.node, &kind));
        CHECK(kind == cudaGraphNodeTypeConditional, "%d", kind);
        OK(cudaGraphExecDestroy(exec));
        OK(cudaGraphDestroy(graph));
    }
}

void loops() {
    auto graph = new_graph();
    auto again = new_handle(graph, 1, cudaGraphCondAssignDefault);
    auto loop = node(graph, again, cudaGraphCondTypeWhile, 1);
    kernel(loop.bodies[0], {}, step, again, (long long *)device, device + 2);
    auto exec = program(graph);
    for (int start : {27, 6, 97}) {
        auto got = run(exec, {start, 0, 0});
        int steps = 0;
        for (long long n = start; n != 1; steps++) n = n % 2 ? 3 * n + 1 : n / 2;
        CHECK(got[0] == 1 && got[2] == steps, "from %d: %d steps, not %d", start, got[2], steps);
    }
    OK(cudaGraphExecDestroy(exec));
    OK(cudaGraphDestroy(graph));
}

void nested() {
    auto graph = new_graph();
    auto again = new_handle(graph, 1, cudaGraphCondAssignDefault);
    auto loop = node(graph, again, cudaGraphCondTypeWhile, 1);
    auto body = loop.bodies[0];
    auto is_odd = new_handle(body);
    auto look = kernel(body, {}, odd, is_odd, (const int *)device);
    auto inner = node(body, is_odd, cudaGraphCondTypeIf, 2, {look});
    kernel(inner.bodies[0], {}, add, device + 1, 1);
    kernel(inner.bodies[1], {}, add, device + 2, 1);
    kernel(body, {inner.node}, count_down, again, device);
    auto exec = program(graph);
    auto got = run(exec, {9, 0, 0});
    CHECK(got[0] == 0 && got[1] == 5 && got[2] == 4, "%d, %d, %d", got[0], got[1], got[2]);
    OK(cudaGraphExecDestroy(exec));
    OK(cudaGraphDestroy(graph));
}

void captured() {
    // A body that is captured, behind a kernel of many threads that was captured as well.
    const int count = 1000;
    std::vector<int> numbers(count);
    for (int i = 0; i < count; i++) numbers[i] = i * 7;
    Array<int> data(numbers);
    for (int wanted : {7 * 500, 3}) {
        cudaGraph_t graph;
        OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
        cudaStreamCaptureStatus status;
        const cudaGraphNode_t *last;
        size_t lasts;
        OK(cudaStreamGetCaptureInfo(stream, &status, nullptr, &graph, &last, nullptr, &lasts));
        auto handle = new_handle(graph, 0, cudaGraphCondAssignDefault);
        any<<<8, 128, 0, stream>>>(handle, data, count, wanted);
        OK(cudaStreamGetCaptureInfo(stream, &status, nullptr, &graph, &last, nullptr, &lasts));
        auto made = node(graph, handle, cudaGraphCondTypeIf, 1, std::vector<cudaGraphNode_t>(last, last + lasts));
        OK(cudaStreamUpdateCaptureDependencies(stream, &made.node, nullptr, 1, cudaStreamSetCaptureDependencies));
        cudaStream_t side;
        OK(cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking));
        OK(cudaStreamBeginCaptureToGraph(side, made.bodies[0], nullptr, nullptr, 0, cudaStreamCaptureModeGlobal));
        add<<<1, 32, 0, side>>>(device, 2);
        OK(cudaMemsetAsync(device + 1, 0, 4, side));
        cudaGraph_t same;
        OK(cudaStreamEndCapture(side, &same));
        CHECK(same == made.bodies[0], "another graph");
        OK(cudaStreamDestroy(side));
        OK(cudaStreamEndCapture(stream, &graph));
        auto exec = program(graph);
        auto got = run(exec, {0, 9});
        bool found = wanted != 3;
        CHECK(got[0] == (found ? 64 : 0) && got[1] == (found ? 0 : 9), "%d: %d, %d", wanted, got[0], got[1]);
        OK(cudaGraphExecDestroy(exec));
        OK(cudaGraphDestroy(graph));
    }
}

void refused() {
    auto graph = new_graph();
    auto handle = new_handle(graph);
    Node made;
    FAILS(try_node(made, graph, handle, cudaGraphCondTypeIf, 0), cudaErrorInvalidValue);
    FAILS(try_node(made, graph, handle, cudaGraphCondTypeWhile, 2), cudaErrorInvalidValue);
    OK(try_node(made, graph, handle, cudaGraphCondTypeIf, 1));
    FAILS(try_node(made, graph, handle, cudaGraphCondTypeIf, 1), cudaErrorInvalidValue);
    cudaGraph_t copy;
    FAILS(cudaGraphClone(&copy, graph), cudaErrorNotSupported);
    OK(cudaGraphDestroy(graph));
}

int main() {
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    OK(cudaMalloc(&device, 4096));
    one_of(cudaGraphCondTypeIf, 1, {0, 1, 1});
    one_of(cudaGraphCondTypeIf, 2, {2, 1, 1});
    one_of(cudaGraphCondTypeSwitch, 3, {1, 2, 4, 0, 0});
    loops();
    nested();
    captured();
    refused();
    printf("if, switch, while, nested, captured\n");
    return check::pass();
}
