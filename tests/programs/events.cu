// needs: plain
// Events: order and sanity of elapsed times, queries before, during and after, waits across
// streams, and the errors of events without timing or never recorded.
#include "check.h"

__global__ void spin(volatile int *flag, int *out) {
    while (*flag == 0) {}
    *out = 1;
}
__global__ void work(int *out, int rounds) {
    int v = threadIdx.x;
    for (int i = 0; i < rounds; i++) v = v * 1664525 + 1013904223;
    out[blockIdx.x * blockDim.x + threadIdx.x] = v;
}

int main() {
    cudaEvent_t start, middle, stop, plain;
    OK(cudaEventCreate(&start));
    OK(cudaEventCreate(&middle));
    OK(cudaEventCreateWithFlags(&stop, cudaEventBlockingSync));
    OK(cudaEventCreateWithFlags(&plain, cudaEventDisableTiming));
    OK(cudaEventQuery(start)); // never recorded: complete
    OK(cudaEventSynchronize(start));

    cudaStream_t a, b;
    OK(cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking));
    OK(cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking));
    float ms = -1;
    FAILS(cudaEventElapsedTime(&ms, start, stop), cudaErrorInvalidResourceHandle);
    FAILS(cudaGetLastError(), cudaErrorInvalidResourceHandle);

    Array<int> out(32 * 128), flag(2);
    work<<<4, 128, 0, a>>>(out, 1); // loads the kernel
    OK(cudaStreamSynchronize(a));
    OK(cudaEventRecord(start, a));
    work<<<4, 128, 0, a>>>(out, 2000);
    OK(cudaEventRecord(middle, a));
    work<<<4, 128, 0, a>>>(out, 60000);
    OK(cudaEventRecord(stop, a));
    OK(cudaEventSynchronize(stop));
    float first, second, whole;
    OK(cudaEventElapsedTime(&first, start, middle));
    OK(cudaEventElapsedTime(&second, middle, stop));
    OK(cudaEventElapsedTime(&whole, start, stop));
    CHECK(first >= 0 && second > 0 && whole >= second && std::fabs(whole - first - second) < 0.05 + whole * 0.01,
          "%g + %g ms, %g in all", first, second, whole);
    CHECK(whole < 30000, "%g ms", whole);

    flag.clear();
    OK(cudaDeviceSynchronize());
    spin<<<1, 1, 0, a>>>(flag, flag + 1);
    OK(cudaEventRecord(plain, a));
    OK(cudaEventRecord(start, a));
    CHECK(cudaEventQuery(plain) == cudaErrorNotReady, "the event is complete before the kernel");
    FAILS(cudaEventElapsedTime(&ms, start, start), cudaErrorNotReady);
    OK(cudaStreamWaitEvent(b, plain, 0));
    work<<<1, 32, 0, b>>>(out, 10);
    OK(cudaGetLastError());
    CHECK(cudaStreamQuery(b) == cudaErrorNotReady, "the stream did not wait for the event");
    cudaStream_t c;
    OK(cudaStreamCreateWithFlags(&c, cudaStreamNonBlocking));
    OK(cudaMemsetAsync(flag, 1, sizeof(int), c));
    OK(cudaStreamSynchronize(b));
    OK(cudaEventQuery(plain));
    FAILS(cudaEventElapsedTime(&ms, plain, start), cudaErrorInvalidResourceHandle);
    CHECK(flag.host()[1] == 1, "the kernel did not end");
    for (auto event : {start, middle, stop, plain}) OK(cudaEventDestroy(event));
    for (auto stream : {a, b, c}) OK(cudaStreamDestroy(stream));
    printf("four events\n");
    return check::pass();
}
