// needs: plain
// What the legacy default stream orders: it waits for blocking streams and they for it; non-blocking
// streams wait for neither; priorities and flags read back.
#include "check.h"

__global__ void spin(volatile int *flag) {
    while (*flag == 0) {}
}
__global__ void append(int *list, int value) { list[1 + list[0]++] = value; }

int main() {
    int least, greatest;
    OK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    CHECK(least == 0 && greatest <= 0, "priorities from %d to %d", least, greatest);
    cudaStream_t blocking, other, high;
    OK(cudaStreamCreate(&blocking));
    OK(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    OK(cudaStreamCreateWithPriority(&high, cudaStreamNonBlocking, greatest));
    int priority;
    unsigned flags;
    OK(cudaStreamGetPriority(high, &priority));
    OK(cudaStreamGetFlags(high, &flags));
    CHECK(priority == greatest && flags == cudaStreamNonBlocking, "priority %d, flags %u", priority, flags);
    OK(cudaStreamGetFlags(blocking, &flags));
    CHECK(flags == cudaStreamDefault, "flags %u", flags);

    Array<int> list(10), flag(1);
    flag.clear();
    append<<<1, 1>>>(list, 0); // loads the kernel: that may wait for kernels that run
    list.clear();
    OK(cudaDeviceSynchronize());
    spin<<<1, 1, 0, blocking>>>(flag);
    append<<<1, 1>>>(list, 1);              // waits for the blocking stream
    append<<<1, 1, 0, blocking>>>(list, 2); // waits for the default stream
    OK(cudaGetLastError());
    append<<<1, 1, 0, other>>>(list, 0); // waits for nobody
    OK(cudaStreamSynchronize(other));
    CHECK(cudaStreamQuery(0) == cudaErrorNotReady, "the default stream did not wait");
    CHECK(cudaStreamQuery(blocking) == cudaErrorNotReady, "the blocking stream did not wait");
    OK(cudaMemsetAsync(flag, 1, sizeof(int), high));
    OK(cudaStreamSynchronize(blocking));
    append<<<1, 1, 0, cudaStreamLegacy>>>(list, 3);
    append<<<1, 1, 0, blocking>>>(list, 4);
    OK(cudaDeviceSynchronize());
    auto got = list.host();
    CHECK(got[0] == 5, "%d entries", got[0]);
    for (int i = 0; i < 5; i++) CHECK(got[i + 1] == i, "entry %d is %d", i, got[i + 1]);
    for (auto stream : {blocking, other, high}) OK(cudaStreamDestroy(stream));
    printf("five in order\n");
    return check::pass();
}
