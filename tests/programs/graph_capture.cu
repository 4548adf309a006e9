// needs: graphs
// Stream capture: fork and join through events, copies, memsets and host functions as nodes, many
// replays, capture modes, and calls that capture forbids.
#include <thread>

#include "check.h"

__global__ void add(int *p, int n, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) p[i] += n;
}
__global__ void combine(const int *a, const int *b, int *out, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) out[i] += a[i] * b[i];
}
void count_call(void *data) { ++*static_cast<int *>(data); }

int main() {
    const int count = 2000, grid = blocks(count, 128);
    cudaStream_t main_stream, side;
    cudaEvent_t fork, join;
    OK(cudaStreamCreateWithFlags(&main_stream, cudaStreamNonBlocking));
    OK(cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking));
    OK(cudaEventCreateWithFlags(&fork, cudaEventDisableTiming));
    OK(cudaEventCreateWithFlags(&join, cudaEventDisableTiming));
    Array<int> a(count), b(count), out(count);
    a.clear(), b.clear(), out.clear();
    int calls = 0, *pinned;
    OK(cudaMallocHost(&pinned, count * sizeof(int)));
    OK(cudaDeviceSynchronize());

    OK(cudaStreamBeginCapture(main_stream, cudaStreamCaptureModeThreadLocal));
    OK(cudaEventRecord(fork, main_stream));
    OK(cudaStreamWaitEvent(side, fork, 0));
    add<<<grid, 128, 0, main_stream>>>(a, 1, count);
    OK(cudaMemsetAsync(b, 0, b.bytes(), side));
    add<<<grid, 128, 0, side>>>(b, 3, count);
    OK(cudaEventRecord(join, side));
    OK(cudaStreamWaitEvent(main_stream, join, 0));
    combine<<<grid, 128, 0, main_stream>>>(a, b, out, count);
    OK(cudaMemcpyAsync(pinned, out, out.bytes(), cudaMemcpyDeviceToHost, main_stream));
    OK(cudaLaunchHostFunc(main_stream, count_call, &calls));
    cudaStreamCaptureStatus status;
    OK(cudaStreamIsCapturing(side, &status));
    CHECK(status == cudaStreamCaptureStatusActive, "the side stream is not captured: %d", status);
    // Another thread may allocate meanwhile.
    std::thread([] {
        void *p;
        OK(cudaMalloc(&p, 1000));
        OK(cudaFree(p));
    }).join();
    cudaGraph_t graph;
    OK(cudaStreamEndCapture(main_stream, &graph));
    size_t nodes = 0;
    OK(cudaGraphGetNodes(graph, nullptr, &nodes));
    CHECK(nodes == 6, "%zu nodes", nodes);
    CHECK(calls == 0, "capturing ran the host function");
    cudaGraphExec_t program;
    OK(cudaGraphInstantiate(&program, graph, 0));
    const int replays = 50;
    for (int k = 0; k < replays; k++) OK(cudaGraphLaunch(program, main_stream));
    OK(cudaStreamSynchronize(main_stream));
    CHECK(calls == replays, "%d calls", calls);
    int expected = 3 * replays * (replays + 1) / 2;
    for (int i = 0; i < count; i++) CHECK(pinned[i] == expected, "element %d is %d, not %d", i, pinned[i], expected);

    OK(cudaStreamBeginCapture(main_stream, cudaStreamCaptureModeGlobal));
    add<<<grid, 128, 0, main_stream>>>(a, 1, count);
    FAILS(cudaStreamSynchronize(main_stream), cudaErrorStreamCaptureUnsupported);
    cudaGraph_t broken = nullptr;
    FAILS(cudaStreamEndCapture(main_stream, &broken), cudaErrorStreamCaptureInvalidated);
    CHECK(broken == nullptr, "a broken capture gave a graph");
    cudaGetLastError();
    add<<<grid, 128, 0, main_stream>>>(a, 1, count);
    OK(cudaStreamSynchronize(main_stream));
    CHECK(a.host()[0] == replays + 1, "%d", a.host()[0]);
    OK(cudaGraphExecDestroy(program));
    OK(cudaGraphDestroy(graph));
    OK(cudaFreeHost(pinned));
    printf("%zu nodes, %d replays, %d\n", nodes, replays, expected);
    return check::pass();
}
