// needs: mapped
// Launch attributes that must not be dropped: events that a launch records, values that are taken, and
// values that no launch can have.
#include "check.h"

__global__ void wait_for(volatile int *flag) {
    while (!*flag) {}
}
__global__ void store(int *p, int value) { p[threadIdx.x] = value; }

int main() {
    int *flag, *flag_there;
    OK(cudaHostAlloc(&flag, sizeof *flag, cudaHostAllocMapped));
    OK(cudaHostGetDevicePointer(&flag_there, flag, 0));
    Array<int> p(32);
    cudaStream_t stream;
    cudaEvent_t event;
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    OK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    cudaLaunchAttribute attribute = {};
    cudaLaunchConfig_t config = {};
    config.gridDim = 1;
    config.blockDim = 32;
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = 1;
    // Code is loaded before anything waits.
    *flag = 1;
    wait_for<<<1, 1, 0, stream>>>(flag_there);
    store<<<1, 32, 0, stream>>>(p, 0);
    OK(cudaStreamSynchronize(stream));
    for (int kind = 0; kind < 2; kind++) {
        attribute = {};
        if (kind == 0) {
            attribute.id = cudaLaunchAttributeLaunchCompletionEvent;
            attribute.val.launchCompletionEvent.event = event;
        } else {
            attribute.id = cudaLaunchAttributeProgrammaticEvent;
            attribute.val.programmaticEvent.event = event;
        }
        *(volatile int *)flag = 0;
        wait_for<<<1, 1, 0, stream>>>(flag_there);
        OK(cudaLaunchKernelEx(&config, store, (int *)p, 5 + kind));
        cudaError_t early = cudaEventQuery(event);
        CHECK(early == cudaErrorNotReady, "event %d before its kernel: %s", kind, cudaGetErrorName(early));
        *(volatile int *)flag = 1;
        OK(cudaEventSynchronize(event));
        OK(cudaStreamSynchronize(stream));
        OK(cudaEventQuery(event));
        CHECK(p.host()[31] == 5 + kind, "%d", p.host()[31]);
    }
    printf("two events\n");

    int taken = 0, refused = 0;
    auto launch = [&](auto &&set, bool fine) {
        attribute = {};
        set(attribute);
        cudaError_t error = cudaLaunchKernelEx(&config, store, (int *)p, 9);
        CHECK(error == (fine ? cudaSuccess : cudaErrorInvalidValue), "attribute %d: %s", int(attribute.id), cudaGetErrorName(error));
        cudaGetLastError();
        OK(cudaStreamSynchronize(stream));
        ++(fine ? taken : refused);
    };
    launch([](auto &a) { a.id = cudaLaunchAttributeIgnore; }, true);
    launch([](auto &a) { a.id = cudaLaunchAttributeClusterDimension, a.val.clusterDim = {1, 1, 1}; }, true);
    launch([](auto &a) { a.id = cudaLaunchAttributePriority, a.val.priority = -1; }, true);
    launch([](auto &a) { a.id = cudaLaunchAttributePreferredSharedMemoryCarveout, a.val.sharedMemCarveout = 50; }, true);
    launch([](auto &a) { a.id = cudaLaunchAttributePreferredSharedMemoryCarveout, a.val.sharedMemCarveout = 101; }, false);
    launch([](auto &a) { a.id = cudaLaunchAttributeMemSyncDomain, a.val.memSyncDomain = cudaLaunchMemSyncDomainRemote; }, true);
    launch([](auto &a) { a.id = cudaLaunchAttributeMemSyncDomain, a.val.memSyncDomain = cudaLaunchMemSyncDomain(2); }, false);
    launch([](auto &a) { a.id = cudaLaunchAttributeSynchronizationPolicy, a.val.syncPolicy = cudaSyncPolicyYield; }, false);
    CHECK(p.host()[0] == 9, "%d", p.host()[0]);
    printf("%d taken, %d refused\n", taken, refused);
    OK(cudaEventDestroy(event));
    OK(cudaStreamDestroy(stream));
    OK(cudaFreeHost(flag));
    return check::pass();
}
