// needs: plain
// env: CUDA_VISIBLE_DEVICES=0,9,1
// CUDA_VISIBLE_DEVICES ends at the first number that is no device; an empty one hides all, which a
// second run of this program sees.
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

int main(int argc, char **argv) {
    int devices = -1;
    cudaError_t error = cudaGetDeviceCount(&devices);
    if (argc > 1) _exit(error == cudaErrorNoDevice ? 3 : 4);
    OK(error);
    CHECK(devices == 1, "%d devices", devices);
    pid_t child = fork();
    if (child == 0) {
        setenv("CUDA_VISIBLE_DEVICES", "", 1);
        execl("/proc/self/exe", argv[0], "again", nullptr);
        _exit(99);
    }
    int status;
    waitpid(child, &status, 0);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 3, "the second run ended with %x", status);
    printf("one device, then none\n");
    return check::pass();
}
