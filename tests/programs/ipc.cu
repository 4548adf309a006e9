// needs: ipc
// Two processes, one piece of device memory: handles of memory and of an event through a pipe, work
// on both sides in turn.
#include <sys/prctl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

__global__ void add(int *p, int n, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) p[i] += n * i;
}

const int count = 5000;

struct Offer {
    cudaIpcMemHandle_t memory;
    cudaIpcEventHandle_t event;
};

template <class T> void send(int pipe, const T &value) { CHECK(write(pipe, &value, sizeof value) == sizeof value, "pipe"); }
template <class T> T receive(int pipe) {
    T value;
    CHECK(read(pipe, &value, sizeof value) == sizeof value, "the other process is gone");
    return value;
}

int child(int in, int out) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    Offer offer = receive<Offer>(in);
    int *p;
    cudaEvent_t event;
    OK(cudaIpcOpenMemHandle(reinterpret_cast<void **>(&p), offer.memory, cudaIpcMemLazyEnablePeerAccess));
    OK(cudaIpcOpenEventHandle(&event, offer.event));
    cudaStream_t stream;
    OK(cudaStreamCreate(&stream));
    for (int round = 0; round < 5; round++) {
        receive<int>(in);
        OK(cudaStreamWaitEvent(stream, event, 0));
        add<<<blocks(count, 256), 256, 0, stream>>>(p, 10, count);
        OK(cudaGetLastError());
        OK(cudaStreamSynchronize(stream));
        send(out, round);
    }
    receive<int>(in);
    OK(cudaIpcCloseMemHandle(p));
    OK(cudaEventDestroy(event));
    send(out, 1);
    return 0;
}

int main(int argc, char **argv) {
    if (argc > 2) return child(atoi(argv[1]), atoi(argv[2]));
    int to[2], from[2];
    CHECK(!pipe(to) && !pipe(from), "pipe");
    pid_t pid = fork();
    if (pid == 0) {
        close(to[1]);
        close(from[0]);
        char a[16], b[16];
        snprintf(a, sizeof a, "%d", to[0]);
        snprintf(b, sizeof b, "%d", from[1]);
        execl("/proc/self/exe", argv[0], a, b, nullptr);
        _exit(99);
    }
    close(to[0]);
    close(from[1]);
    Offer offer;
    int *p;
    cudaEvent_t event;
    OK(cudaMalloc(&p, count * sizeof(int)));
    OK(cudaMemset(p, 0, count * sizeof(int)));
    OK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming | cudaEventInterprocess));
    OK(cudaIpcGetMemHandle(&offer.memory, p));
    OK(cudaIpcGetEventHandle(&offer.event, event));
    send(to[1], offer);
    for (int round = 0; round < 5; round++) {
        add<<<blocks(count, 256), 256>>>(p, 1, count);
        OK(cudaEventRecord(event, 0));
        send(to[1], round);
        CHECK(receive<int>(from[0]) == round, "another round");
    }
    std::vector<int> got(count);
    OK(cudaMemcpy(got.data(), p, count * sizeof(int), cudaMemcpyDeviceToHost));
    for (int i = 0; i < count; i++) CHECK(got[i] == 55 * i, "element %d is %d", i, got[i]);
    send(to[1], 0);
    receive<int>(from[0]);
    int status;
    waitpid(pid, &status, 0);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the other process ended with %x", status);
    OK(cudaFree(p));
    OK(cudaEventDestroy(event));
    printf("five turns each\n");
    return check::pass();
}
