/* What a program sees that has no daemon, in this order: before cuInit, of cuInit, after it, and in a
 * forked child. Argument: the library. The environment says where there is no daemon. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static int failures;

#define CHECK(what)                                             \
    do {                                                        \
        if (!(what)) {                                          \
            printf("line %d: %s\n", __LINE__, #what);           \
            failures++;                                         \
        }                                                       \
    } while (0)

int main(int count, char **arguments)
{
    void *library = count == 2 ? dlopen(arguments[1], RTLD_NOW) : NULL;
    int version = 0, devices = -7, status;
    const char *text = NULL;
    void *pointer = NULL;
    pid_t child;
    if (!library) {
        printf("%s\n", dlerror());
        return 2;
    }
#define FUNCTION(name, ...) int (*name)(__VA_ARGS__) = (int (*)(__VA_ARGS__))dlsym(library, #name)
    FUNCTION(cuInit, unsigned);
    FUNCTION(cuDriverGetVersion, int *);
    FUNCTION(cuDeviceGetCount, int *);
    FUNCTION(cuGetErrorName, int, const char **);
    FUNCTION(cuGetErrorString, int, const char **);
    FUNCTION(cuMemAlloc_v2, void **, size_t);
    FUNCTION(cuLinkDestroy, void *);
    FUNCTION(cuStreamSynchronize_ptsz, void *);

    CHECK(cuDriverGetVersion(&version) == 0 && version == 13000);
    CHECK(cuDriverGetVersion(NULL) == 1);
    CHECK(cuDeviceGetCount(&devices) == 3 && devices == -7);
    CHECK(cuMemAlloc_v2(&pointer, 16) == 3);
    CHECK(cuStreamSynchronize_ptsz(NULL) == 3);
    CHECK(cuLinkDestroy(NULL) == 801);
    CHECK(cuGetErrorName(805, &text) == 0 && !strcmp(text, "CUDA_ERROR_MPS_CONNECTION_FAILED"));
    CHECK(cuGetErrorString(805, &text) == 0 && text && *text);
    CHECK(cuGetErrorName(12345, &text) == 1 && text == NULL);
    CHECK(cuInit(1) == 1);
    CHECK(cuInit(0) == 805);
    CHECK(cuInit(0) == 805);
    CHECK(cuDeviceGetCount(&devices) == 3 && devices == -7);
    child = fork();
    if (child == 0)
        /* Not 3: nobody in this family has ever been a client. */
        _exit(cuInit(0) == 805 ? 0 : 1);
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    return failures ? 1 : 0;
}
