// On how many multiprocessors the kernel of one graph runs, launch after launch: one for each line of standard
// input. `benches/gpu.sh limits` changes what this client has in between.
//
//   nvcc -O2 -std=c++20 -gencode arch=compute_75,code=compute_75 -o resized resized.cu -lcuda
#include <cstdio>
#include <cstdlib>

#include <cuda.h>

#define CU(call)                                                                                   \
    do {                                                                                           \
        CUresult result = (call);                                                                  \
        if (result != CUDA_SUCCESS) printf("%s: %d\n", #call, int(result)), exit(1);               \
    } while (0)

// Each block stays for 10 µs, so that the blocks are on all multiprocessors that they may be on.
static const char *text = R"(.version 7.0
.target sm_75
.address_size 64
.visible .entry where(.param .u64 seen) {
    .reg .b64 %rd<6>; .reg .b32 %r<4>; .reg .pred %p<2>;
    ld.param.u64 %rd1, [seen];
    mov.u32 %r1, %smid;
    mul.wide.u32 %rd2, %r1, 4;
    add.u64 %rd1, %rd1, %rd2;
    mov.u32 %r2, 1;
    st.global.u32 [%rd1], %r2;
    mov.u64 %rd3, %globaltimer;
again:
    mov.u64 %rd4, %globaltimer;
    sub.u64 %rd5, %rd4, %rd3;
    setp.lt.u64 %p1, %rd5, 10000;
    @%p1 bra again;
    ret;
})";

int main() {
    CUdevice device;
    CUcontext context;
    CUmodule module;
    CUfunction where;
    CUdeviceptr words;
    CUstream stream;
    CU(cuInit(0));
    CU(cuDeviceGet(&device, 0));
    CU(cuDevicePrimaryCtxRetain(&context, device));
    CU(cuCtxSetCurrent(context));
    CU(cuModuleLoadData(&module, text));
    CU(cuModuleGetFunction(&where, module, "where"));
    CU(cuMemAlloc(&words, 4096));
    CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CUgraph graph;
    CUgraphNode node;
    CUgraphExec exec;
    void *arguments[] = {&words};
    CUDA_KERNEL_NODE_PARAMS params{};
    params.func = where, params.kernelParams = arguments;
    params.gridDimX = 2048, params.blockDimX = 1024;
    params.gridDimY = params.gridDimZ = params.blockDimY = params.blockDimZ = 1;
    CU(cuGraphCreate(&graph, 0));
    CU(cuGraphAddKernelNode(&node, graph, nullptr, 0, &params));
    CU(cuGraphInstantiate(&exec, graph, 0));
    while (getchar() != EOF) {
        unsigned seen[1024];
        int count = 0;
        CU(cuMemsetD32(words, 0, 1024));
        CU(cuGraphLaunch(exec, stream));
        CU(cuStreamSynchronize(stream));
        CU(cuMemcpyDtoH(seen, words, sizeof seen));
        for (unsigned one : seen) count += one != 0;
        printf("%d\n", count);
        fflush(stdout);
    }
}
