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
    void *pointer = NULL, **table = NULL;
    static const unsigned char interface[16] = { 0x6b, 0xd5, 0xfb, 0x6c, 0x5b, 0xf4, 0xe7, 0x4a,
                                                 0x89, 0x87, 0xd9, 0x39, 0x12, 0xfd, 0x9d, 0xf9 };
    static const unsigned char integrity[16] = { 0xd4, 0x08, 0x20, 0x55, 0xbd, 0xe6, 0x70, 0x4b,
                                                 0x8d, 0x34, 0xba, 0x12, 0x3c, 0x66, 0xe1, 0xf2 };
    unsigned char digest[16];
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
    FUNCTION(cuMulticastCreate, void *, const void *);
    FUNCTION(cuGetExportTable, void ***, const void *);
    FUNCTION(cuStreamSynchronize_ptsz, void *);

    CHECK(cuDriverGetVersion(&version) == 0 && version == 13000);
    CHECK(cuDriverGetVersion(NULL) == 1);
    CHECK(cuDeviceGetCount(&devices) == 3 && devices == -7);
    CHECK(cuMemAlloc_v2(&pointer, 16) == 3);
    CHECK(cuStreamSynchronize_ptsz(NULL) == 3);
    CHECK(cuMulticastCreate(NULL, NULL) == 801);
    CHECK(cuGetErrorName(805, &text) == 0 && !strcmp(text, "CUDA_ERROR_MPS_CONNECTION_FAILED"));
    CHECK(cuGetErrorString(805, &text) == 0 && text && *text);
    CHECK(cuGetErrorName(12345, &text) == 1 && text == NULL);
    CHECK(cuGetExportTable(&table, interface) == 0 && table[0] == (void *)(13 * 8));
    CHECK(((int (*)(void **, int))table[2])(&pointer, 0) == 3);
    CHECK(cuGetExportTable(&table, integrity) == 0);
    CHECK(((int (*)(unsigned, unsigned long, void *))table[1])(13000, 0, digest) == 3);
    CHECK(cuGetExportTable(&table, "no table has it") == 1 && table == NULL);
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
