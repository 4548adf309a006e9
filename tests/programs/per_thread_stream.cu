// needs: ptds
// nvcc: -default-stream per-thread
// Built for per-thread default streams: two threads' kernels without a stream run side by side, and
// the legacy stream still waits for both.
#include <thread>

#include "check.h"

__global__ void play(volatile int *ball, int me, int rounds) {
    for (int round = 0; round < rounds; round++) {
        while (*ball != 2 * round + me) {}
        __threadfence();
        *ball = 2 * round + me + 1;
    }
}
__global__ void add(int *p, int n) { *p += n; }

int main() {
    Array<int> ball(2);
    ball.clear();
    OK(cudaDeviceSynchronize());
    auto player = [&](int me) {
        play<<<1, 1>>>(ball, me, 30);
        OK(cudaGetLastError());
        OK(cudaStreamSynchronize(cudaStreamPerThread));
    };
    std::thread one(player, 0), two(player, 1);
    one.join();
    two.join();
    int hits;
    OK(cudaMemcpy(&hits, ball, sizeof hits, cudaMemcpyDeviceToHost));
    CHECK(hits == 60, "%d hits", hits);
    add<<<1, 1>>>(ball + 1, 5);
    add<<<1, 1, 0, cudaStreamLegacy>>>(ball + 1, 7);
    add<<<1, 1>>>(ball + 1, 9);
    OK(cudaDeviceSynchronize());
    CHECK(ball.host()[1] == 21, "%d", ball.host()[1]);
    printf("%d hits\n", hits);
    return check::pass();
}
