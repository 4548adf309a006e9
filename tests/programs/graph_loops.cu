// needs: graphs pools
// nvcc: -std=c++17
// Graphs with loops in loops that kernels decide about, and memory of their own: an outer body that allocates, an inner one
// that counts down, a switch among bodies, all launched several times with other input; what each leaves is as a loop on
// the host would leave it.
#include "check.h"

__global__ void begin(const int *input, int *state) {
    state[0] = input[0];  // rounds to go
    state[1] = 1;         // the number so far
    state[2] = 0;         // all steps
}
__global__ void outer(int *state, cudaGraphConditionalHandle inner, cudaGraphConditionalHandle choice) {
    state[3] = state[0] % 4 + 1;
    cudaGraphSetConditional(inner, 1);
    cudaGraphSetConditional(choice, state[0] % 3);
}
__global__ void scratch_fill(int *scratch, const int *state) { scratch[threadIdx.x] = state[0] * 100 + int(threadIdx.x); }
__global__ void step(int *state, cudaGraphConditionalHandle inner) {
    state[1] = (state[1] * 3 + state[3]) % 100003;
    state[2]++;
    cudaGraphSetConditional(inner, --state[3] > 0);
}
__global__ void branch(int *state, int which) { state[1] = (state[1] * 7 + which) % 100003; }
__global__ void end(const int *scratch, int *state, cudaGraphConditionalHandle more) {
    int sum = 0;
    for (int i = 0; i < 64; i++) sum += scratch[i];
    state[1] = (state[1] + sum) % 100003;
    cudaGraphSetConditional(more, --state[0] > 0);
}

static cudaGraphNode_t add(cudaGraph_t graph, std::vector<cudaGraphNode_t> after, cudaGraphNodeParams &params) {
    cudaGraphNode_t node;
    OK(cudaGraphAddNode(&node, graph, after.data(), nullptr, after.size(), &params));
    return node;
}

template <typename... Args> cudaGraphNode_t kernel(cudaGraph_t graph, std::vector<cudaGraphNode_t> after, void *function, int threads, Args... args) {
    void *list[] = {&args...};
    cudaGraphNodeParams params = {};
    params.type = cudaGraphNodeTypeKernel;
    params.kernel.func = function;
    params.kernel.gridDim = 1;
    params.kernel.blockDim = threads;
    params.kernel.kernelParams = list;
    return add(graph, after, params);
}

static cudaGraphNode_t condition(cudaGraph_t graph, std::vector<cudaGraphNode_t> after, cudaGraphConditionalHandle handle, cudaGraphConditionalNodeType type, unsigned size,
                                 std::vector<cudaGraph_t> &bodies) {
    cudaGraphNodeParams params = {};
    params.type = cudaGraphNodeTypeConditional;
    params.conditional.handle = handle;
    params.conditional.type = type;
    params.conditional.size = size;
    cudaGraphNode_t node = add(graph, after, params);
    bodies.assign(params.conditional.phGraph_out, params.conditional.phGraph_out + size);
    return node;
}

int main() {
    Array<int> input(1), state(4);
    int *in = input, *st = state;
    cudaGraph_t graph;
    OK(cudaGraphCreate(&graph, 0));
    cudaGraphConditionalHandle more, inner, choice;
    OK(cudaGraphConditionalHandleCreate(&more, graph, 1, cudaGraphCondAssignDefault));
    auto first = kernel(graph, {}, (void *)begin, 1, (const int *)in, st);
    cudaGraphNodeParams memory = {};
    memory.type = cudaGraphNodeTypeMemAlloc;
    memory.alloc.poolProps.allocType = cudaMemAllocationTypePinned;
    memory.alloc.poolProps.location = {cudaMemLocationTypeDevice, 0};
    memory.alloc.bytesize = 64 * sizeof(int);
    auto allocated = add(graph, {first}, memory);
    int *scratch = (int *)memory.alloc.dptr;
    std::vector<cudaGraph_t> bodies;
    auto loop = condition(graph, {allocated}, more, cudaGraphCondTypeWhile, 1, bodies);
    cudaGraphNodeParams release = {};
    release.type = cudaGraphNodeTypeMemFree;
    release.free.dptr = scratch;
    add(graph, {loop}, release);

    cudaGraph_t body = bodies[0];
    OK(cudaGraphConditionalHandleCreate(&inner, body, 0, 0));
    OK(cudaGraphConditionalHandleCreate(&choice, body, 0, 0));
    auto o = kernel(body, {}, (void *)outer, 1, st, inner, choice);
    auto f = kernel(body, {o}, (void *)scratch_fill, 64, scratch, (const int *)st);
    std::vector<cudaGraph_t> inner_bodies, choices;
    auto i = condition(body, {o}, inner, cudaGraphCondTypeWhile, 1, inner_bodies);
    auto c = condition(body, {i, f}, choice, cudaGraphCondTypeSwitch, 2, choices);
    kernel(body, {c}, (void *)end, 1, (const int *)scratch, st, more);
    kernel(inner_bodies[0], {}, (void *)step, 1, st, inner);
    for (int which = 0; which < 2; which++) kernel(choices[which], {}, (void *)branch, 1, st, which + 1);

    cudaGraphExec_t exec;
    OK(cudaGraphInstantiate(&exec, graph, 0));
    for (int rounds : {1, 5, 12, 2, 30}) {
        input.set({rounds});
        OK(cudaGraphLaunch(exec, 0));
        OK(cudaDeviceSynchronize());
        int number = 1, steps = 0;
        for (int left = rounds; left > 0; left--) {
            for (int k = left % 4 + 1; k > 0; k--, steps++) number = (number * 3 + k) % 100003;
            if (left % 3 < 2) number = (number * 7 + left % 3 + 1) % 100003;
            number = (number + 64 * left * 100 + 2016) % 100003;
        }
        auto got = state.host();
        CHECK(got[0] == 0 && got[1] == number && got[2] == steps, "%d rounds: %d and %d, not %d and %d", rounds, got[1], got[2], number, steps);
        printf("%d rounds: %d in %d steps\n", rounds, number, steps);
    }
    OK(cudaGraphExecDestroy(exec));
    OK(cudaGraphDestroy(graph));
    return check::pass();
}
