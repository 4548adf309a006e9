// needs: plain
// nvcc: -gencode arch=compute_75,code=compute_75 -gencode arch=compute_121,code=compute_121
// PTX for a newer architecture that the device cannot run, or that has an instruction which the software
// GPU does not have, does not hide the older one beside it.
#include "check.h"

__global__ void kernel(int *out) {
#if __CUDA_ARCH__ >= 1200
    asm volatile("multimem.red.relaxed.sys.global.add.u32 [%0], 1;" ::"l"(out + threadIdx.x));
#else
    out[threadIdx.x] = threadIdx.x + 1;
#endif
}

int main() {
    Array<int> out(32);
    kernel<<<1, 32>>>(out);
    RAN();
    auto got = out.host();
    for (int i = 0; i < 32; i++) CHECK(got[i] == i + 1, "%d: %d", i, got[i]);
    printf("the older one\n");
    return check::pass();
}
