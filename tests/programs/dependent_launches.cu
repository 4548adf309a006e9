// needs: sm_90
// nvcc: -std=c++17 -gencode arch=compute_90,code=compute_90
// Kernels that may begin before the one before them has ended (programmatic dependent launches): what they read after their
// wait is there, with and without the other's trigger, in chains, in a captured graph, and with an event of the trigger.
#include "check.h"

// Waits for the kernel before it, then takes what that has left.
__global__ void link(const int *in, int *out, int count, bool trigger) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    // What does not depend on the other kernel.
    int own = i % 7;
    cudaGridDependencySynchronize();
    int value = in[(i + 1) % count];
    if (trigger) cudaTriggerProgrammaticLaunchCompletion();
    // Written after the trigger: seen by the next kernel all the same, since that waits for the end of this one.
    out[i] = value * 2 + own;
}

static void launch(const int *in, int *out, int count, bool trigger, cudaStream_t stream) {
    cudaLaunchConfig_t config = {};
    config.gridDim = count / 128;
    config.blockDim = 128;
    config.stream = stream;
    cudaLaunchAttribute attribute;
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    config.attrs = &attribute;
    config.numAttrs = 1;
    OK(cudaLaunchKernelEx(&config, link, in, out, count, trigger));
}

int main() {
    const int count = 2048, links = 50;
    cudaStream_t stream;
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    std::vector<int> start(count);
    for (int i = 0; i < count; i++) start[i] = i * i % 1009;
    Array<int> a(start), b(count);
    std::vector<int> model = start, next(count);
    for (int n = 0; n < links; n++) {
        for (int i = 0; i < count; i++) next[i] = int(unsigned(model[(i + 1) % count]) * 2 + i % 7);
        std::swap(model, next);
    }
    for (bool trigger : {false, true}) {
        a.set(start);
        for (int n = 0; n < links; n++) launch(n % 2 ? b : a, n % 2 ? a : b, count, trigger, stream);
        OK(cudaStreamSynchronize(stream));
        CHECK(a.host() == model, "a chain %s triggers", trigger ? "with" : "without");
    }
    printf("chains %016llx\n", (unsigned long long)check::hash(model));

    a.set(start);
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    for (int n = 0; n < links / 5; n++) launch(n % 2 ? b : a, n % 2 ? a : b, count, true, stream);
    OK(cudaStreamEndCapture(stream, &graph));
    OK(cudaGraphInstantiate(&exec, graph, 0));
    for (int n = 0; n < 5; n++) OK(cudaGraphLaunch(exec, stream));
    OK(cudaStreamSynchronize(stream));
    CHECK(a.host() == model, "a graph");
    printf("a graph\n");

    // An event of the trigger holds another stream until all blocks have triggered.
    cudaStream_t other;
    cudaEvent_t triggered;
    OK(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    OK(cudaEventCreateWithFlags(&triggered, cudaEventDisableTiming));
    cudaLaunchConfig_t config = {};
    config.gridDim = count / 128;
    config.blockDim = 128;
    config.stream = stream;
    cudaLaunchAttribute attribute;
    attribute.id = cudaLaunchAttributeProgrammaticEvent;
    attribute.val.programmaticEvent.event = triggered;
    attribute.val.programmaticEvent.flags = 0;
    attribute.val.programmaticEvent.triggerAtBlockStart = 0;
    config.attrs = &attribute;
    config.numAttrs = 1;
    a.set(start);
    cudaError_t error = cudaLaunchKernelEx(&config, link, (const int *)a, (int *)b, count, false);
    OK(error);
    OK(cudaStreamWaitEvent(other, triggered));
    OK(cudaStreamSynchronize(other));
    OK(cudaStreamSynchronize(stream));
    auto got = b.host();
    for (int i = 0; i < count; i++) CHECK(got[i] == start[(i + 1) % count] * 2 + i % 7, "%d: %d", i, got[i]);
    printf("an event\n");
    return check::pass();
}
