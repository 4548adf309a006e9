// needs: callbacks
// Host functions take their time while far more is posted behind them than anybody wants to keep:
// eight streams with 900 copies of 16 KiB each.
#include <thread>

#include "check.h"

const int STREAMS = 8, COPIES = 900, BYTES = 16 << 10;

int main() {
    std::vector<Array<unsigned char> *> to;
    std::vector<cudaStream_t> streams(STREAMS);
    std::vector<unsigned char> from(BYTES);
    for (auto &stream : streams) {
        OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
        to.push_back(new Array<unsigned char>(BYTES));
    }
    for (auto stream : streams)
        OK(cudaLaunchHostFunc(
            stream, [](void *) { std::this_thread::sleep_for(std::chrono::seconds(3)); }, nullptr));
    for (int i = 0; i < STREAMS; i++)
        for (int n = 0; n < COPIES; n++) {
            from[n] = (unsigned char)(i + n);
            OK(cudaMemcpyAsync(*to[i], from.data(), BYTES, cudaMemcpyHostToDevice, streams[i]));
        }
    OK(cudaDeviceSynchronize());
    for (int i = 0; i < STREAMS; i++) {
        auto host = to[i]->host();
        CHECK(host[COPIES - 1] == (unsigned char)(i + COPIES - 1), "%d", host[COPIES - 1]);
        delete to[i];
    }
    printf("%d copies behind %d host functions\n", STREAMS * COPIES, STREAMS);
    return check::pass();
}
