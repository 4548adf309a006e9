// needs: plain
// All bytes of dynamic shared memory are within reach, whatever static variables lie before it and
// however it is aligned.
#include "check.h"

__global__ void small(int *out) {
    __shared__ bool flag;
    extern __shared__ float s[];
    if (threadIdx.x == 0) flag = true;
    s[threadIdx.x] = threadIdx.x;
    __syncthreads();
    out[threadIdx.x] = flag ? int(s[blockDim.x - 1 - threadIdx.x]) : -1;
}

__global__ void aligned(int *out) {
    __shared__ char before[18];
    extern __shared__ __align__(128) double wide[];
    if (threadIdx.x < 18) before[threadIdx.x] = 1;
    wide[threadIdx.x] = threadIdx.x;
    __syncthreads();
    out[threadIdx.x] = int(wide[blockDim.x - 1 - threadIdx.x]) + before[threadIdx.x % 18] - 1;
}

int main() {
    Array<int> out(128);
    small<<<1, 128, 128 * sizeof(float)>>>(out);
    RAN();
    auto got = out.host();
    for (int i = 0; i < 128; i++) CHECK(got[i] == 127 - i, "%d: %d", i, got[i]);
    aligned<<<1, 128, 128 * sizeof(double)>>>(out);
    RAN();
    got = out.host();
    for (int i = 0; i < 128; i++) CHECK(got[i] == 127 - i, "%d: %d", i, got[i]);
    printf("all bytes\n");
    return check::pass();
}
