// needs: graphs
// Two threads capture at once, each its own stream in the relaxed mode, while a third allocates and
// launches; the graphs hold just their own nodes.
#include <thread>

#include "check.h"

__global__ void add(int *p, int n) { atomicAdd(p, n); }

int main() {
    Array<int> values(3);
    values.clear();
    OK(cudaDeviceSynchronize());
    auto capture = [&](int me) {
        for (int round = 0; round < 10; round++) {
            cudaStream_t stream;
            OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
            OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
            for (int k = 0; k < 5 + me; k++) add<<<1, 1, 0, stream>>>(values + me, k + 1);
            void *p;
            OK(cudaMalloc(&p, 100)); // allowed in this mode
            cudaGraph_t graph;
            OK(cudaStreamEndCapture(stream, &graph));
            size_t nodes = 0;
            OK(cudaGraphGetNodes(graph, nullptr, &nodes));
            CHECK(nodes == size_t(5 + me), "%zu nodes", nodes);
            cudaGraphExec_t program;
            OK(cudaGraphInstantiate(&program, graph, 0));
            OK(cudaGraphLaunch(program, stream));
            OK(cudaGraphLaunch(program, stream));
            OK(cudaStreamSynchronize(stream));
            OK(cudaGraphExecDestroy(program));
            OK(cudaGraphDestroy(graph));
            OK(cudaFree(p));
            OK(cudaStreamDestroy(stream));
        }
    };
    std::thread one(capture, 0), two(capture, 1), three([&] {
        cudaStream_t stream;
        OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
        for (int k = 0; k < 50; k++) {
            void *p;
            OK(cudaMalloc(&p, 4096));
            add<<<1, 32, 0, stream>>>(values + 2, 1);
            OK(cudaStreamSynchronize(stream));
            OK(cudaFree(p));
        }
        OK(cudaStreamDestroy(stream));
    });
    one.join(), two.join(), three.join();
    auto got = values.host();
    CHECK(got[0] == 20 * 15 && got[1] == 20 * 21 && got[2] == 50 * 32, "%d, %d, %d", got[0], got[1], got[2]);
    printf("%d %d %d\n", got[0], got[1], got[2]);
    return check::pass();
}
