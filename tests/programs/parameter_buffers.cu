// needs: plain
// A launch whose parameters come as one buffer (CU_LAUNCH_PARAM_BUFFER_POINTER): of the kernel's size, longer, and
// shorter, as NCCL gives its kernels the beginning of 4 KiB.
#include "driver.h"

struct Words {
    unsigned values[64];
};

extern "C" __global__ void sum(unsigned *to, unsigned count, Words words) {
    unsigned total = 1;
    for (unsigned i = 0; i < count; i++) total = total * 31 + words.values[i];
    *to = total;
}

int main() {
    Array<unsigned> out(1);
    cudaFunction_t function;
    OK(cudaGetFuncBySymbol(&function, (const void *)sum));
    struct {
        unsigned *to;
        unsigned count;
        Words words;
    } block = {out, 0, {}};
    for (unsigned i = 0; i < 64; i++) block.words.values[i] = (i + 1) * 2654435761u;
    for (size_t size : {0, 8, 12, 16, 96, 267, 268, 272, 300, 4096}) {
        static char bytes[4096];
        // What the buffer leaves out is not looked at.
        block.count = size < 268 ? unsigned(size > 12 ? size - 12 : 0) / 4 : 64;
        memcpy(bytes, &block, sizeof block);
        out.clear();
        size_t given = size;
        void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, bytes, CU_LAUNCH_PARAM_BUFFER_SIZE, &given, CU_LAUNCH_PARAM_END};
        int result = size < 12 ? -1 : int(DRIVER(cuLaunchKernel)((CUfunction)function, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, extra));
        RAN();
        printf("%zu bytes: %d, %08x\n", size, result, out.host()[0]);
    }
    return check::pass();
}
