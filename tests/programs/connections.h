// How far streams overlap: the first kernel of the first stream waits, for a while, for kernels of all
// other streams, which are launched after a second kernel of the first stream.
#pragma once

#include "check.h"

__global__ void gather(volatile int *flags, int streams, int *seen, long long patience) {
    int count = 0;
    for (long long round = 0; round < patience && count < streams - 1; round++) {
        count = 0;
        for (int i = 1; i < streams; i++) count += flags[i] != 0;
        __nanosleep(1000);
    }
    *seen = count;
}
__global__ void raise(volatile int *flags, int stream) { flags[stream] = 1; }

// How many kernels of other streams ran while the first one did.
inline int overlapping(int streams) {
    Array<int> flags(64), seen(1);
    flags.clear(), seen.clear();
    std::vector<cudaStream_t> all(streams);
    for (auto &stream : all) OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    // Code that is loaded at its first launch may wait for kernels that run.
    for (auto &stream : all) raise<<<1, 1, 0, stream>>>(flags, 63);
    gather<<<1, 1>>>(flags, 1, seen, 1);
    OK(cudaDeviceSynchronize());
    gather<<<1, 1, 0, all[0]>>>(flags, streams, seen, 200000);
    raise<<<1, 1, 0, all[0]>>>(flags, 0);
    for (int i = 1; i < streams; i++) raise<<<1, 1, 0, all[i]>>>(flags, i);
    RAN();
    for (auto &stream : all) OK(cudaStreamDestroy(stream));
    return seen.host()[0];
}
