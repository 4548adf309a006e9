// needs: graphs pools
// Captures that other streams join and that allocate: streams that end while the capture goes on, and graphs
// with memory of their own that are launched again and again.
#include "check.h"

__global__ void fill(int *p, int value, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) p[i] = value + i;
}
__global__ void add(const int *p, int *out, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) out[i] += p[i];
}

const int count = 5000, grid = 40;

// As a library does it: a stream of its own that joins, works, is joined again and ends.
void aside(cudaStream_t stream, int *p, int value) {
    cudaStream_t own;
    cudaEvent_t begin, end;
    OK(cudaStreamCreateWithFlags(&own, cudaStreamNonBlocking));
    OK(cudaEventCreateWithFlags(&begin, cudaEventDisableTiming));
    OK(cudaEventCreateWithFlags(&end, cudaEventDisableTiming));
    OK(cudaEventRecord(begin, stream));
    OK(cudaStreamWaitEvent(own, begin, 0));
    fill<<<grid, 128, 0, own>>>(p, value, count);
    OK(cudaEventRecord(end, own));
    OK(cudaStreamWaitEvent(stream, end, 0));
    OK(cudaEventDestroy(begin));
    OK(cudaStreamDestroy(own));
    OK(cudaEventDestroy(end));
}

int main() {
    cudaStream_t stream;
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    Array<int> out(count);
    out.clear();
    OK(cudaDeviceSynchronize());
    int *p = nullptr, *q = nullptr;
    cudaGraph_t graph;
    cudaGraphExec_t program;
    OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    OK(cudaMallocAsync(&p, count * sizeof(int), stream));
    aside(stream, p, 5);
    cudaStreamCaptureStatus status;
    OK(cudaStreamIsCapturing(stream, &status));
    CHECK(status == cudaStreamCaptureStatusActive, "status %d", status);
    add<<<grid, 128, 0, stream>>>(p, out, count);
    OK(cudaMallocAsync(&q, count * sizeof(int), stream));
    aside(stream, q, 7);
    add<<<grid, 128, 0, stream>>>(q, out, count);
    OK(cudaFreeAsync(q, stream));
    OK(cudaFreeAsync(p, stream));
    OK(cudaStreamEndCapture(stream, &graph));
    OK(cudaGraphInstantiate(&program, graph, 0));
    for (int k = 0; k < 4; k++) OK(cudaGraphLaunch(program, stream));
    OK(cudaStreamSynchronize(stream));
    auto got = out.host();
    for (int i = 0; i < count; i++) CHECK(got[i] == 4 * (12 + 2 * i), "element %d is %d", i, got[i]);
    OK(cudaGraphExecDestroy(program));
    OK(cudaGraphDestroy(graph));

    // A stream that ends before it is joined leaves its work unjoined; one that did nothing leaves nothing.
    for (int works = 0; works < 2; works++) {
        cudaStream_t lost;
        cudaEvent_t event;
        OK(cudaStreamCreateWithFlags(&lost, cudaStreamNonBlocking));
        OK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
        OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
        fill<<<grid, 128, 0, stream>>>(out, 1, count);
        OK(cudaEventRecord(event, stream));
        OK(cudaStreamWaitEvent(lost, event, 0));
        if (works) fill<<<grid, 128, 0, lost>>>(out, 1, count);
        OK(cudaStreamDestroy(lost));
        if (works) FAILS(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureUnjoined);
        else {
            OK(cudaStreamEndCapture(stream, &graph));
            OK(cudaGraphDestroy(graph));
        }
        cudaGetLastError();
        OK(cudaStreamIsCapturing(stream, &status));
        CHECK(status == cudaStreamCaptureStatusNone, "status %d", status);
        OK(cudaEventDestroy(event));
    }
    OK(cudaStreamDestroy(stream));
    printf("four replays, two captures\n");
    return check::pass();
}
