// needs: plain
// Two kernels in two streams, each spinning until the other has moved: both must run at once. A copy
// in a third stream then releases a fourth kernel.
#include "check.h"

__global__ void play(volatile int *ball, int me, int rounds) {
    for (int round = 0; round < rounds; round++) {
        while (*ball != 2 * round + me) {}
        __threadfence();
        *ball = 2 * round + me + 1;
    }
}

__global__ void wait_for(volatile int *flag, volatile int *out) {
    while (*flag == 0) {}
    *out = *flag + 1;
}

int main() {
    cudaStream_t streams[4];
    for (auto &stream : streams) OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    Array<int> ball(1), flag(2);
    ball.clear();
    flag.clear();
    OK(cudaDeviceSynchronize());
    play<<<1, 1, 0, streams[0]>>>(ball, 1, 50);
    play<<<1, 1, 0, streams[1]>>>(ball, 0, 50);
    OK(cudaGetLastError());
    OK(cudaStreamSynchronize(streams[1]));
    OK(cudaStreamSynchronize(streams[0]));
    CHECK(ball.host()[0] == 100, "the ball was hit %d times", ball.host()[0]);

    int *pinned;
    OK(cudaMallocHost(&pinned, sizeof(int)));
    *pinned = 41;
    wait_for<<<1, 1, 0, streams[2]>>>(flag, flag + 1);
    OK(cudaGetLastError());
    CHECK(cudaStreamQuery(streams[2]) == cudaErrorNotReady, "the kernel did not wait");
    OK(cudaMemcpyAsync(flag, pinned, sizeof(int), cudaMemcpyHostToDevice, streams[3]));
    OK(cudaStreamSynchronize(streams[2]));
    CHECK(flag.host()[1] == 42, "%d", flag.host()[1]);
    OK(cudaFreeHost(pinned));
    for (auto &stream : streams) OK(cudaStreamDestroy(stream));
    printf("100 hits, 1 release\n");
    return check::pass();
}
