// needs: plain
// Twelve host threads at once, each with its own stream, memory and errors; then two threads that
// hand one stream back and forth, whose order must be that of the calls.
#include <atomic>
#include <thread>

#include "check.h"

__global__ void fill(int *out, int value, int count) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) out[i] = value + i;
}
__global__ void append(int *list, int value) { list[1 + list[0]++] = value; }

void work(int id) {
    const int count = 3000;
    cudaStream_t stream;
    OK(cudaStreamCreate(&stream));
    for (int round = 0; round < 10; round++) {
        int *data;
        OK(cudaMalloc(&data, count * sizeof(int)));
        fill<<<4, 128, 0, stream>>>(data, id * 1000 + round, count);
        OK(cudaGetLastError());
        std::vector<int> got(count);
        OK(cudaMemcpyAsync(got.data(), data, count * sizeof(int), cudaMemcpyDeviceToHost, stream));
        OK(cudaStreamSynchronize(stream));
        for (int i = 0; i < count; i++) CHECK(got[i] == id * 1000 + round + i, "thread %d, round %d, element %d: %d", id, round, i, got[i]);
        // Errors belong to the thread that made them.
        if (id % 2) {
            FAILS(cudaSetDevice(1000), cudaErrorInvalidDevice);
            FAILS(cudaGetLastError(), cudaErrorInvalidDevice);
        } else {
            OK(cudaPeekAtLastError());
        }
        OK(cudaFree(data));
    }
    OK(cudaStreamDestroy(stream));
}

int main() {
    std::vector<std::thread> threads;
    for (int id = 0; id < 12; id++) threads.emplace_back(work, id);
    for (auto &thread : threads) thread.join();

    const int turns = 200;
    Array<int> list(turns + 1);
    list.clear();
    cudaStream_t stream;
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    OK(cudaDeviceSynchronize());
    std::atomic<int> turn{0};
    auto hand_over = [&](int me) {
        for (int k = me; k < turns; k += 2) {
            while (turn.load() != k) std::this_thread::yield();
            append<<<1, 1, 0, stream>>>(list, k);
            OK(cudaGetLastError());
            turn.store(k + 1);
        }
    };
    std::thread one(hand_over, 0), two(hand_over, 1);
    one.join();
    two.join();
    OK(cudaStreamSynchronize(stream));
    auto got = list.host();
    CHECK(got[0] == turns, "%d of %d", got[0], turns);
    for (int k = 0; k < turns; k++) CHECK(got[k + 1] == k, "entry %d is %d", k, got[k + 1]);
    OK(cudaStreamDestroy(stream));
    printf("12 threads, %d turns\n", turns);
    return check::pass();
}
