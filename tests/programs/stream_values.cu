// needs: plain
// Streams that write values to memory and wait for values in memory: written by another stream, by a
// kernel, by the processor; every comparison, both widths, lists; a wait holds only its own stream.
#include "driver.h"

__global__ void put(unsigned *p, unsigned value) { atomicExch(p, value); }

int main() {
    cudaStream_t one, two;
    OK(cudaStreamCreateWithFlags(&one, cudaStreamNonBlocking));
    OK(cudaStreamCreateWithFlags(&two, cudaStreamNonBlocking));
    Array<unsigned long long> flags(8), out(8);
    flags.clear(), out.clear();
    OK(cudaDeviceSynchronize());
    CUdeviceptr flag = CUdeviceptr((unsigned long long *)flags), result = CUdeviceptr((unsigned long long *)out);
    unsigned *word = reinterpret_cast<unsigned *>((unsigned long long *)flags);
    volatile unsigned *pinned;
    OK(cudaHostAlloc((void **)&pinned, 64, cudaHostAllocMapped));
    pinned[0] = 0;
    auto value = [&](int at) {
        unsigned long long v;
        OK(cudaMemcpyAsync(&v, out + at, sizeof v, cudaMemcpyDeviceToHost, two));
        OK(cudaStreamSynchronize(two));
        return v;
    };

    // Code that is loaded at its first launch may wait for what is in the way of its stream.
    put<<<1, 1, 0, two>>>(word + 14, 1);
    OK(cudaStreamSynchronize(two));

    // A wait holds its stream and no other; another stream's write lets it go.
    CU(cuStreamWaitValue32, one, flag, 5, CU_STREAM_WAIT_VALUE_EQ);
    CU(cuStreamWriteValue64, one, result, 11, 0);
    CU(cuStreamWriteValue32, two, flag, 4, 0);
    OK(cudaStreamSynchronize(two));
    CHECK(cudaStreamQuery(one) == cudaErrorNotReady, "the stream did not wait");
    CHECK(value(0) == 0, "%llu", value(0));
    CU(cuStreamWriteValue32, two, flag, 5, 0);
    OK(cudaStreamSynchronize(one));
    CHECK(value(0) == 11, "%llu", value(0));

    // A kernel's write, and the processor's.
    CU(cuStreamWaitValue32, one, flag, 100, CU_STREAM_WAIT_VALUE_GEQ);
    CU(cuStreamWriteValue64, one, result + 8, 22, 0);
    put<<<1, 1, 0, two>>>(word, 101);
    OK(cudaStreamSynchronize(one));
    CHECK(value(1) == 22, "%llu", value(1));
    CUdeviceptr mapped;
    CU(cuMemHostGetDevicePointer, &mapped, (void *)pinned, 0);
    CU(cuStreamWaitValue32, one, mapped, 6, CU_STREAM_WAIT_VALUE_AND);
    CU(cuStreamWriteValue64, one, result + 16, 33, 0);
    pinned[0] = 1;
    CHECK(cudaStreamQuery(one) == cudaErrorNotReady, "no bit of 6 is set in 1");
    pinned[0] = 3;
    OK(cudaStreamSynchronize(one));
    CHECK(value(2) == 33, "%llu", value(2));

    // 64 bits, and a list.
    CU(cuStreamWaitValue64, one, flag + 8, 1ull << 40, CU_STREAM_WAIT_VALUE_GEQ);
    CU(cuStreamWriteValue64, one, result + 24, 44, 0);
    CUstreamBatchMemOpParams list[3] = {};
    list[0].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_64;
    list[0].writeValue.address = flag + 8;
    list[0].writeValue.value64 = (1ull << 40) + 1;
    list[1].waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
    list[1].waitValue.address = flag;
    list[1].waitValue.value = 101;
    list[1].waitValue.flags = CU_STREAM_WAIT_VALUE_EQ;
    list[2].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
    list[2].writeValue.address = result + 32;
    list[2].writeValue.value = 55;
    CU(cuStreamBatchMemOp, two, 3, list, 0);
    OK(cudaStreamSynchronize(one));
    CHECK(value(3) == 44 && value(4) == 55, "%llu, %llu", value(3), value(4));

    // What holds already is not waited for; numbers go around.
    CU(cuStreamWriteValue32, one, flag, 0xfffffffe, 0);
    CU(cuStreamWaitValue32, one, flag, 1, CU_STREAM_WAIT_VALUE_NOR);
    CU(cuStreamWriteValue32, one, flag, 3, 0);
    CU(cuStreamWaitValue32, one, flag, 0xfffffff0, CU_STREAM_WAIT_VALUE_GEQ);
    CU(cuStreamWriteValue64, one, result + 40, 66, 0);
    // Neither 0xfffffffe nor 1 has all bits, but together they do: NOR never comes true.
    CHECK(cudaStreamQuery(one) == cudaErrorNotReady, "no bit is clear in both");
    CU(cuStreamWriteValue32, two, flag, 0xffff0000, 0);
    OK(cudaStreamSynchronize(one));
    CHECK(value(5) == 66, "%llu", value(5));

    CHECK(DRIVER(cuStreamWaitValue32)(one, flag + 2, 0, 0) == CUDA_ERROR_INVALID_VALUE, "not aligned");
    CHECK(DRIVER(cuStreamWriteValue64)(one, flag + 4, 0, 0) == CUDA_ERROR_INVALID_VALUE, "not aligned");
    CHECK(DRIVER(cuStreamWaitValue32)(one, flag, 0, 9) == CUDA_ERROR_INVALID_VALUE, "no such comparison");
    OK(cudaFreeHost((void *)pinned));
    OK(cudaStreamDestroy(one));
    OK(cudaStreamDestroy(two));
    printf("six waits\n");
    return check::pass();
}
