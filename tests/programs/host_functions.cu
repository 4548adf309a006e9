// needs: callbacks
// Host functions and stream callbacks: run in the order of the stream, in this process, between the
// work before and after; data reaches them; a blocked one holds only its own stream.
#include <atomic>
#include <unistd.h>

#include "check.h"

__global__ void add(int *p, int n) { *p += n; }

struct Note {
    int *seen, expected;
    std::atomic<int> *count;
};

void look(void *data) {
    Note *note = static_cast<Note *>(data);
    CHECK(*note->seen == note->expected, "the function sees %d, not %d", *note->seen, note->expected);
    note->count->fetch_add(1);
}

void called_back(cudaStream_t, cudaError_t status, void *data) {
    CHECK(status == cudaSuccess, "%s", cudaGetErrorName(status));
    look(data);
}

std::atomic<bool> open_gate{false};
void gate(void *) {
    while (!open_gate) usleep(100);
}

int main() {
    cudaStream_t stream, other;
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    OK(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    Array<int> value(2);
    value.clear();
    OK(cudaDeviceSynchronize());
    int *pinned;
    const int rounds = 20;
    OK(cudaMallocHost(&pinned, rounds * sizeof(int)));
    std::atomic<int> count{0};
    std::vector<Note> notes(rounds);
    for (int i = 0; i < rounds; i++) {
        add<<<1, 1, 0, stream>>>(value, i);
        OK(cudaMemcpyAsync(pinned + i, value, sizeof(int), cudaMemcpyDeviceToHost, stream));
        notes[i] = {pinned + i, i * (i + 1) / 2, &count};
        if (i % 2) OK(cudaLaunchHostFunc(stream, look, &notes[i]));
        else OK(cudaStreamAddCallback(stream, called_back, &notes[i], 0));
    }
    OK(cudaStreamSynchronize(stream));
    CHECK(count == rounds, "%d of %d ran", count.load(), rounds);

    OK(cudaLaunchHostFunc(stream, gate, nullptr));
    add<<<1, 1, 0, stream>>>(value, 1000);
    add<<<1, 1, 0, other>>>(value + 1, 7);
    OK(cudaMemcpyAsync(pinned, value + 1, sizeof(int), cudaMemcpyDeviceToHost, other));
    OK(cudaStreamSynchronize(other));
    CHECK(pinned[0] == 7, "%d", pinned[0]);
    CHECK(cudaStreamQuery(stream) == cudaErrorNotReady, "the stream did not wait for the function");
    open_gate = true;
    OK(cudaStreamSynchronize(stream));
    CHECK(value.host()[0] == rounds * (rounds - 1) / 2 + 1000, "%d", value.host()[0]);
    OK(cudaFreeHost(pinned));
    OK(cudaStreamDestroy(stream));
    OK(cudaStreamDestroy(other));
    printf("%d functions\n", rounds + 1);
    return check::pass();
}
