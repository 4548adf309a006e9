// needs: graphs
// What a capture allows and what breaks it, in each mode, by its own thread and by others; forks and
// joins that are not as they should be; what becomes of events.
#include <thread>

#include "check.h"

__global__ void add(int *p) { p[threadIdx.x]++; }

cudaStream_t own, other, blocking, blocking_too;
cudaEvent_t event, done;
int *device;
char host[64];

cudaStreamCaptureStatus status(cudaStream_t stream) {
    cudaStreamCaptureStatus status;
    OK(cudaStreamIsCapturing(stream, &status));
    return status;
}

cudaError_t end(cudaStream_t stream) {
    cudaGraph_t graph = nullptr;
    cudaError_t error = cudaStreamEndCapture(stream, &graph);
    CHECK((error == cudaSuccess) == (graph != nullptr), "%s and %s", cudaGetErrorName(error), graph ? "a graph" : "none");
    if (graph) OK(cudaGraphDestroy(graph));
    cudaGetLastError();
    return error;
}

int scenes = 0;

// In a capture of a stream, `what` gives an error, and breaks the capture if the error is not success.
template <class F>
void scene(int line, cudaStream_t stream, cudaStreamCaptureMode mode, cudaError_t expected, bool elsewhere, F what) {
    OK(cudaStreamBeginCapture(stream, mode));
    cudaError_t error = cudaSuccess;
    if (elsewhere) std::thread([&] { error = what(); }).join();
    else error = what();
    cudaGetLastError();
    CHECK(error == expected, "line %d, mode %d: %s, not %s", line, mode, cudaGetErrorName(error), cudaGetErrorName(expected));
    cudaStreamCaptureStatus wanted = expected == cudaSuccess ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusInvalidated;
    CHECK(status(stream) == wanted, "line %d, mode %d: status %d", line, mode, status(stream));
    cudaError_t ended = end(stream);
    CHECK(ended == (expected == cudaSuccess ? cudaSuccess : cudaErrorStreamCaptureInvalidated), "line %d, mode %d: %s", line, mode, cudaGetErrorName(ended));
    CHECK(status(stream) == cudaStreamCaptureStatusNone, "line %d: status %d", line, status(stream));
    scenes++;
}
#define HERE(stream, mode, expected, ...) scene(__LINE__, stream, mode, expected, false, [] { return __VA_ARGS__; })
#define ELSEWHERE(stream, mode, expected, ...) scene(__LINE__, stream, mode, expected, true, [] { return __VA_ARGS__; })

cudaError_t allocate() {
    void *p = nullptr;
    cudaError_t error = cudaMalloc(&p, 100);
    if (p) {
        cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
        OK(cudaThreadExchangeStreamCaptureMode(&mode));
        OK(cudaFree(p));
        OK(cudaThreadExchangeStreamCaptureMode(&mode));
    }
    return error;
}
cudaError_t allocate_as(cudaStreamCaptureMode mode) {
    OK(cudaThreadExchangeStreamCaptureMode(&mode));
    cudaError_t error = allocate();
    OK(cudaThreadExchangeStreamCaptureMode(&mode));
    return error;
}
cudaError_t launch(cudaStream_t stream) {
    cudaGetLastError();
    add<<<1, 32, 0, stream>>>(device);
    return cudaGetLastError();
}
cudaError_t handles() {
    cudaEvent_t e;
    cudaStream_t s;
    OK(cudaEventCreate(&e));
    OK(cudaEventDestroy(e));
    OK(cudaStreamCreate(&s));
    OK(cudaStreamDestroy(s));
    size_t free, all;
    OK(cudaMemGetInfo(&free, &all));
    return cudaSuccess;
}
void nothing(void *) {}
void called(cudaStream_t, cudaError_t, void *) {}

int main() {
    OK(cudaStreamCreateWithFlags(&own, cudaStreamNonBlocking));
    OK(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    OK(cudaStreamCreate(&blocking));
    OK(cudaStreamCreate(&blocking_too));
    OK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    OK(cudaEventCreate(&done));
    OK(cudaMalloc(&device, 4096));
    OK(cudaMemset(device, 0, 4096));
    OK(cudaEventRecord(done, other));
    OK(launch(own));
    OK(cudaDeviceSynchronize());
    const auto global = cudaStreamCaptureModeGlobal, local = cudaStreamCaptureModeThreadLocal, relaxed = cudaStreamCaptureModeRelaxed;
    const auto fine = cudaSuccess, refused = cudaErrorStreamCaptureUnsupported, implicit = cudaErrorStreamCaptureImplicit;

    FAILS(cudaStreamBeginCapture(nullptr, global), refused);
    FAILS(cudaStreamBeginCapture(cudaStreamLegacy, relaxed), refused);
    FAILS(cudaStreamBeginCapture(own, cudaStreamCaptureMode(7)), cudaErrorInvalidValue);
    FAILS(end(own), cudaErrorIllegalState);
    FAILS(cudaEventRecordWithFlags(done, other, cudaEventRecordExternal), cudaErrorIllegalState);
    FAILS(cudaStreamWaitEvent(other, done, cudaEventWaitExternal), cudaErrorIllegalState);
    OK(cudaStreamBeginCapture(cudaStreamPerThread, global));
    OK(end(cudaStreamPerThread));

    for (auto mode : {global, local, relaxed}) {
        // What asks about a captured stream, or waits for it, and what waits for everything.
        HERE(own, mode, refused, cudaStreamSynchronize(own));
        HERE(own, mode, refused, cudaStreamQuery(own));
        HERE(own, mode, refused, cudaDeviceSynchronize());
        ELSEWHERE(own, mode, refused, cudaDeviceSynchronize());
        HERE(own, mode, refused, cudaStreamAddCallback(own, called, nullptr, 0));
        // The legacy stream beside a captured one that it would wait for.
        HERE(blocking, mode, implicit, launch(nullptr));
        ELSEWHERE(blocking, mode, implicit, launch(nullptr));
        HERE(blocking, mode, implicit, cudaMemcpy(device, host, 16, cudaMemcpyHostToDevice));
        HERE(blocking, mode, implicit, cudaStreamSynchronize(nullptr));
        HERE(blocking, mode, implicit, cudaStreamQuery(nullptr));
        HERE(blocking, mode, implicit, cudaEventRecord(event, nullptr));
        HERE(own, mode, implicit, cudaEventRecord(event, own) ? cudaErrorUnknown : cudaStreamWaitEvent(nullptr, event, 0));
        HERE(blocking, mode, fine, launch(blocking_too));
        HERE(own, mode, fine, launch(nullptr));
        HERE(own, mode, fine, cudaMemcpy(device, host, 16, cudaMemcpyHostToDevice));
        HERE(own, mode, fine, cudaMemset(device, 0, 16));
        // Others' business.
        ELSEWHERE(own, mode, fine, launch(other));
        ELSEWHERE(own, mode, fine, cudaEventRecord(done, other));
        HERE(own, mode, fine, handles());
        HERE(own, mode, fine, cudaLaunchHostFunc(own, nothing, nullptr));
        ELSEWHERE(own, mode, fine, allocate_as(cudaStreamCaptureModeRelaxed));
        ELSEWHERE(own, mode, fine, allocate_as(cudaStreamCaptureModeThreadLocal));
    }
    // What modes are for.
    for (auto mode : {global, local, relaxed}) {
        cudaError_t here = mode == relaxed ? fine : refused, elsewhere = mode == global ? refused : fine;
        HERE(own, mode, here, allocate());
        ELSEWHERE(own, mode, elsewhere, allocate());
        HERE(own, mode, here, cudaStreamSynchronize(other));
        ELSEWHERE(own, mode, elsewhere, cudaStreamSynchronize(other));
        HERE(own, mode, here, cudaStreamQuery(other));
        ELSEWHERE(own, mode, elsewhere, cudaStreamQuery(other));
        OK(cudaEventSynchronize(done));
        HERE(own, mode, here, cudaEventQuery(done));
        ELSEWHERE(own, mode, elsewhere, cudaEventQuery(done));
        HERE(own, mode, here, cudaEventSynchronize(done));
        ELSEWHERE(own, mode, elsewhere, cudaEventSynchronize(done));
    }
    // Events.
    HERE(own, relaxed, cudaErrorStreamCaptureIsolation, cudaStreamWaitEvent(own, done, 0));
    HERE(own, relaxed, fine, cudaStreamWaitEvent(own, done, cudaEventWaitExternal));
    HERE(own, relaxed, fine, cudaEventRecordWithFlags(done, own, cudaEventRecordExternal));
    HERE(own, relaxed, cudaErrorCapturedEvent, cudaEventRecord(event, own) ? cudaErrorUnknown : cudaEventQuery(event));
    HERE(own, relaxed, cudaErrorCapturedEvent, cudaEventRecord(event, own) ? cudaErrorUnknown : cudaEventSynchronize(event));
    FAILS(cudaEventQuery(event), cudaErrorInvalidValue);
    FAILS(cudaStreamWaitEvent(other, event, 0), cudaErrorInvalidValue);
    OK(cudaEventRecord(event, other));
    OK(cudaEventSynchronize(event));
    // Forks and joins.
    OK(cudaStreamBeginCapture(own, relaxed));
    FAILS(cudaStreamBeginCapture(own, relaxed), cudaErrorIllegalState);
    OK(cudaEventRecord(event, own));
    OK(cudaStreamWaitEvent(other, event, 0));
    CHECK(status(other) == cudaStreamCaptureStatusActive, "%d", status(other));
    FAILS(cudaStreamBeginCapture(other, relaxed), cudaErrorIllegalState);
    OK(launch(other));
    FAILS(end(own), cudaErrorStreamCaptureUnjoined);
    CHECK(status(own) == 0 && status(other) == 0, "%d, %d", status(own), status(other));
    OK(cudaStreamBeginCapture(own, relaxed));
    OK(cudaEventRecord(event, own));
    OK(cudaStreamWaitEvent(other, event, 0));
    FAILS(end(other), cudaErrorStreamCaptureUnmatched);
    FAILS(end(own), cudaErrorStreamCaptureInvalidated);
    OK(cudaStreamBeginCapture(own, relaxed));
    OK(cudaStreamBeginCapture(other, relaxed));
    OK(launch(other));
    OK(cudaEventRecord(event, other));
    FAILS(cudaStreamWaitEvent(own, event, 0), cudaErrorStreamCaptureMerge);
    FAILS(end(other), cudaErrorStreamCaptureInvalidated);
    FAILS(end(own), cudaErrorStreamCaptureInvalidated);
    for (auto mode : {global, local}) {
        OK(cudaStreamBeginCapture(own, mode));
        std::thread([] { FAILS(end(own), cudaErrorStreamCaptureWrongThread); }).join();
        FAILS(end(own), cudaErrorIllegalState);
    }
    OK(cudaStreamBeginCapture(own, relaxed));
    std::thread([] { OK(end(own)); }).join();
    // After it broke, everything in the stream says so.
    OK(cudaStreamBeginCapture(own, relaxed));
    FAILS(cudaStreamSynchronize(own), refused);
    FAILS(launch(own), cudaErrorStreamCaptureInvalidated);
    FAILS(cudaEventRecord(event, own), cudaErrorStreamCaptureInvalidated);
    FAILS(cudaMemsetAsync(device, 0, 4, own), cudaErrorStreamCaptureInvalidated);
    FAILS(cudaLaunchHostFunc(own, nothing, nullptr), cudaErrorStreamCaptureInvalidated);
    FAILS(cudaStreamBeginCapture(own, relaxed), cudaErrorIllegalState);
    FAILS(end(own), cudaErrorStreamCaptureInvalidated);
    // Into a graph that is there.
    cudaGraph_t graph, same = nullptr;
    cudaGraphNode_t node;
    OK(cudaGraphCreate(&graph, 0));
    OK(cudaGraphAddEmptyNode(&node, graph, nullptr, 0));
    OK(cudaStreamBeginCaptureToGraph(own, graph, &node, nullptr, 1, relaxed));
    OK(launch(own));
    OK(cudaStreamEndCapture(own, &same));
    size_t nodes = 0, edges = 0;
    OK(cudaGraphGetNodes(graph, nullptr, &nodes));
    OK(cudaGraphGetEdges(graph, nullptr, nullptr, nullptr, &edges));
    CHECK(same == graph && nodes == 2 && edges == 1, "%zu nodes, %zu edges", nodes, edges);
    // A launch of a graph is no node.
    cudaGraphExec_t program;
    OK(cudaGraphInstantiate(&program, graph, 0));
    static cudaGraphExec_t launched;
    launched = program;
    HERE(own, relaxed, refused, cudaGraphLaunch(launched, own));
    HERE(own, relaxed, refused, cudaGraphUpload(launched, own));
    HERE(blocking, relaxed, implicit, cudaGraphLaunch(launched, nullptr));
    // All is well afterwards.
    OK(cudaMemset(device, 0, 4096));
    OK(cudaDeviceSynchronize());
    OK(cudaGraphLaunch(program, own));
    OK(cudaStreamSynchronize(own));
    int value = 0;
    OK(cudaMemcpy(&value, device, sizeof value, cudaMemcpyDeviceToHost));
    CHECK(value == 1, "%d", value);
    OK(cudaGraphExecDestroy(program));
    OK(cudaGraphDestroy(graph));
    printf("%d scenes\n", scenes);
    return check::pass();
}
