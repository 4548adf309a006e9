// needs: plain
// CUDA_MODULE_LOADING: what the driver says about it, and that kernels run either way. Each setting is
// seen by a program of its own, this one.
#include <sys/wait.h>
#include <unistd.h>

#include "driver.h"

__global__ void add(int *p, int n) { *p += n; }

int mode() {
    Array<int> value(1);
    value.clear();
    add<<<1, 1>>>(value, 3);
    RAN();
    CHECK(value.host()[0] == 3, "the kernel left %d", value.host()[0]);
    CUmoduleLoadingMode mode;
    CU(cuModuleGetLoadingMode, &mode);
    return int(mode);
}

int main(int argc, char **argv) {
    if (argc > 1) _exit(mode());
    for (const char *setting : {"", "LAZY", "EAGER"}) {
        pid_t child = fork();
        if (child == 0) {
            *setting ? setenv("CUDA_MODULE_LOADING", setting, 1) : unsetenv("CUDA_MODULE_LOADING");
            execl("/proc/self/exe", argv[0], "again", nullptr);
            _exit(99);
        }
        int status;
        waitpid(child, &status, 0);
        CHECK(WIFEXITED(status), "a run ended with %x", status);
        int seen = WEXITSTATUS(status);
        CHECK(seen == (strcmp(setting, "EAGER") ? CU_MODULE_LAZY_LOADING : CU_MODULE_EAGER_LOADING), "%s: mode %d", setting, seen);
        printf("%s: %d\n", *setting ? setting : "unset", seen);
    }
    return check::pass();
}
