// needs: plain
// A misaligned load: cudaErrorMisalignedAddress.
#include "check.h"

__global__ void load(const char *p, long long *out) { *out = *reinterpret_cast<const long long *>(p); }

int main() {
    char *data;
    OK(cudaMalloc(&data, 4096));
    OK(cudaMemset(data, 0, 4096));
    load<<<1, 1>>>(data + 8, reinterpret_cast<long long *>(data));
    RAN();
    load<<<1, 1>>>(data + 3, reinterpret_cast<long long *>(data));
    OK(cudaGetLastError());
    FAILS(cudaDeviceSynchronize(), cudaErrorMisalignedAddress);
    printf("misaligned address\n");
    return check::pass();
}
