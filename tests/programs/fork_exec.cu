// needs: plain
// fork in a process that uses CUDA: the child gets an error from its calls and may exec; the parent
// goes on. A child forked before the parent's first call may use CUDA itself.
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

__global__ void add(int *p, int n) { *p += n; }

int work(int n) {
    Array<int> value(1);
    value.clear();
    add<<<1, 1>>>(value, n);
    RAN();
    return value.host()[0];
}

int wait_for(pid_t child) {
    int status = -1;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + status;
}

int main(int argc, char **argv) {
    if (argc > 1) _exit(work(atoi(argv[1])));
    pid_t early = fork();
    if (early == 0) _exit(work(5));
    CHECK(work(1) == 1, "the parent");
    int code = wait_for(early);
    CHECK(code == 5, "the early child ended with %d", code);

    pid_t late = fork();
    if (late == 0) {
        void *p;
        cudaError_t error = cudaMalloc(&p, 64);
        _exit(error == cudaErrorInitializationError ? 7 : 100 + error % 100);
    }
    code = wait_for(late);
    CHECK(code == 7, "the late child ended with %d", code);
    CHECK(work(2) == 2, "the parent after the fork");

    pid_t again = fork();
    if (again == 0) {
        execl("/proc/self/exe", argv[0], "9", nullptr);
        _exit(99);
    }
    code = wait_for(again);
    CHECK(code == 9, "the child that ran the program again ended with %d", code);
    CHECK(work(3) == 3, "the parent at the end");
    printf("three children\n");
    return check::pass();
}
