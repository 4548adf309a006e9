// needs: plain
// Launches as they were before CUDA 4, prepared call by call; events of whole contexts; attributes of
// pointers without a context.
#include "driver.h"

#include <thread>

extern "C" __global__ void note(unsigned *out, unsigned value, float fraction) {
    extern __shared__ unsigned dynamic[];
    if (threadIdx.x == blockDim.x - 1 && blockIdx.x == gridDim.x - 1 && blockIdx.y == gridDim.y - 1) {
        dynamic[24] = value;
        out[0] = dynamic[24];
        out[1] = __float_as_uint(fraction);
        out[2] = blockDim.x * 100 + blockDim.y;
        out[3] = gridDim.x * 100 + gridDim.y;
    }
}

__global__ void spin(volatile unsigned *flag, unsigned *out) {
    while (!*flag) {}
    *out = 7;
}

int main() {
    unsigned *out, got[4];
    OK(cudaMalloc((void **)&out, 64));
    cudaFunction_t found;
    OK(cudaGetFuncBySymbol(&found, (const void *)note));
    CUfunction function = (CUfunction)found;
    auto expect = [&](unsigned value, float fraction, unsigned block, unsigned grid) {
        OK(cudaDeviceSynchronize());
        OK(cudaMemcpy(got, out, sizeof got, cudaMemcpyDeviceToHost));
        unsigned bits;
        memcpy(&bits, &fraction, 4);
        CHECK(got[0] == value && got[1] == bits && got[2] == block && got[3] == grid, "%u %x %u %u", got[0], got[1], got[2],
              got[3]);
    };
    CU(cuFuncSetBlockShape, function, 32, 1, 1);
    CU(cuFuncSetSharedSize, function, 100);
    CU(cuParamSetv, function, 0, &out, sizeof out);
    CU(cuParamSeti, function, 8, 42);
    CU(cuParamSetf, function, 12, 1.5f);
    CU(cuParamSetSize, function, 16);
    CU(cuLaunch, function);
    expect(42, 1.5f, 3201, 101);
    CU(cuParamSeti, function, 8, 43);
    CU(cuLaunchGrid, function, 2, 3);
    expect(43, 1.5f, 3201, 203);
    cudaStream_t stream;
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CU(cuFuncSetBlockShape, function, 16, 1, 1);
    CU(cuLaunchGridAsync, function, 4, 1, stream);
    expect(43, 1.5f, 1601, 401);
    CHECK(DRIVER(cuFuncSetBlockShape)(function, 0, 1, 1) == CUDA_ERROR_INVALID_VALUE, "no thread");
    CHECK(DRIVER(cuFuncSetBlockShape)(nullptr, 1, 1, 1) != CUDA_SUCCESS, "no function");
    CHECK(DRIVER(cuLaunchGrid)(function, 0, 1) == CUDA_ERROR_INVALID_VALUE, "no block");

    // An event of a context comes after its work in all streams; its later work waits, in new streams too.
    CUcontext context;
    CU(cuCtxGetCurrent, &context);
    volatile unsigned *flag;
    OK(cudaHostAlloc((void **)&flag, 64, cudaHostAllocMapped));
    *flag = 1;
    spin<<<1, 1, 0, stream>>>(flag, out); // loads it
    OK(cudaStreamSynchronize(stream));
    *flag = 0;
    OK(cudaMemset(out, 0, 64));
    OK(cudaDeviceSynchronize());
    cudaEvent_t event;
    OK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    spin<<<1, 1, 0, stream>>>(flag, out);
    CU(cuCtxRecordEvent, context, event);
    CHECK(cudaEventQuery(event) == cudaErrorNotReady, "before the context's work");
    CU(cuCtxWaitEvent, context, event);
    cudaStream_t later;
    OK(cudaStreamCreateWithFlags(&later, cudaStreamNonBlocking));
    unsigned *copied;
    OK(cudaHostAlloc((void **)&copied, 64, 0));
    *copied = 99;
    OK(cudaMemcpyAsync(copied, out, 4, cudaMemcpyDeviceToHost, later));
    CHECK(cudaStreamQuery(later) == cudaErrorNotReady, "a later stream does not wait");
    *flag = 1;
    OK(cudaStreamSynchronize(later));
    CHECK(*copied == 7 && cudaEventQuery(event) == cudaSuccess, "%u", *copied);

    // A thread without a context may ask what an address is.
    std::thread([&] {
        CUpointer_attribute wanted[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
                                        CU_POINTER_ATTRIBUTE_SYNC_MEMOPS};
        unsigned kind = 77, sync = 0, on = 1;
        CUdeviceptr there = 77;
        void *room[] = {&kind, &there, &sync};
        CUdeviceptr address = (CUdeviceptr)out;
        auto attributes = DRIVER(cuPointerGetAttributes);
        auto set = DRIVER(cuPointerSetAttribute);
        CHECK(attributes(3, wanted, room, address) == CUDA_SUCCESS, "of memory");
        CHECK(kind == CU_MEMORYTYPE_DEVICE && there == address && (sync & 0xff) == 0, "%u %u", kind, sync);
        CHECK(set(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, address) == CUDA_SUCCESS, "set");
        CHECK(attributes(3, wanted, room, address) == CUDA_SUCCESS && (sync & 0xff) == 1, "%u", sync);
        CHECK(set(&on, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address) == CUDA_ERROR_INVALID_VALUE, "no such setting");
    }).join();
    OK(cudaMemset(out, 5, 64));
    CHECK(cudaStreamQuery(nullptr) == cudaSuccess, "a synchronous operation came back early");
    printf("done\n");
    return check::pass();
}
