// needs: plain
// A pipeline over chunks: copies from pinned memory, a kernel and copies back in three streams, and
// the same with pageable memory, whose source may be reused when the call returns.
#include "check.h"

__global__ void square(const int *in, int *out, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) out[i] = in[i] * in[i];
}

int main() {
    const int chunks = 12, count = 20000, lanes = 3;
    int *in, *out;
    OK(cudaMallocHost(&in, chunks * count * sizeof(int)));
    OK(cudaHostAlloc(&out, chunks * count * sizeof(int), cudaHostAllocDefault));
    for (int i = 0; i < chunks * count; i++) in[i] = i % 40000;
    cudaStream_t streams[lanes];
    int *din[lanes], *dout[lanes];
    for (int s = 0; s < lanes; s++) {
        OK(cudaStreamCreateWithFlags(&streams[s], cudaStreamNonBlocking));
        OK(cudaMalloc(&din[s], count * sizeof(int)));
        OK(cudaMalloc(&dout[s], count * sizeof(int)));
    }
    for (int c = 0; c < chunks; c++) {
        int s = c % lanes;
        OK(cudaMemcpyAsync(din[s], in + c * count, count * sizeof(int), cudaMemcpyHostToDevice, streams[s]));
        square<<<blocks(count, 256), 256, 0, streams[s]>>>(din[s], dout[s], count);
        OK(cudaMemcpyAsync(out + c * count, dout[s], count * sizeof(int), cudaMemcpyDeviceToHost, streams[s]));
    }
    for (auto stream : streams) OK(cudaStreamSynchronize(stream));
    for (int i = 0; i < chunks * count; i++) CHECK(out[i] == in[i] * in[i], "pinned: element %d is %d", i, out[i]);

    std::vector<int> scratch(count);
    for (int c = 0; c < chunks; c++) {
        int s = c % lanes;
        OK(cudaStreamSynchronize(streams[s]));
        for (int i = 0; i < count; i++) scratch[i] = c + i % 100;
        OK(cudaMemcpyAsync(din[s], scratch.data(), count * sizeof(int), cudaMemcpyHostToDevice, streams[s]));
        for (int i = 0; i < count; i++) scratch[i] = -1;
        square<<<blocks(count, 256), 256, 0, streams[s]>>>(din[s], dout[s], count);
        OK(cudaMemcpyAsync(out + c * count, dout[s], count * sizeof(int), cudaMemcpyDeviceToHost, streams[s]));
    }
    for (auto stream : streams) OK(cudaStreamSynchronize(stream));
    for (int c = 0; c < chunks; c++)
        for (int i = 0; i < count; i++)
            CHECK(out[c * count + i] == (c + i % 100) * (c + i % 100), "pageable: chunk %d, element %d is %d", c, i, out[c * count + i]);
    for (int s = 0; s < lanes; s++) {
        OK(cudaStreamDestroy(streams[s]));
        OK(cudaFree(din[s]));
        OK(cudaFree(dout[s]));
    }
    OK(cudaFreeHost(in));
    OK(cudaFreeHost(out));
    printf("%d chunks of %d\n", chunks, count);
    return check::pass();
}
