/* What a container may have: prints the device's memory and multiprocessors as this program sees them, then takes all of
 * it, a MiB at a time, and prints how many it got and what the next one was answered.
 *   memory [MiB to take at most [seconds to keep them]] */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define CALL(name, ...)                                                        \
    do {                                                                       \
        int (*function)() = (int (*)())dlsym(library, name);                   \
        int code = function ? function(__VA_ARGS__) : -1;                      \
        if (code) {                                                            \
            printf("%s: %d\n", name, code);                                    \
            return 1;                                                          \
        }                                                                      \
    } while (0)

int main(int argc, char **argv) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library) {
        printf("%s\n", dlerror());
        return 1;
    }
    long most = argc > 1 ? atol(argv[1]) : 1L << 20;
    int device, multiprocessors;
    void *context;
    size_t free_bytes, total;
    CALL("cuInit", 0);
    CALL("cuDeviceGet", &device, 0);
    CALL("cuDeviceGetAttribute", &multiprocessors, 16, device);
    CALL("cuCtxCreate_v2", &context, 0, device);
    CALL("cuMemGetInfo_v2", &free_bytes, &total);
    printf("%zu MiB, %d multiprocessors\n", total >> 20, multiprocessors);
    int (*take)(unsigned long long *, size_t) = (int (*)(unsigned long long *, size_t))dlsym(library, "cuMemAlloc_v2");
    long got = 0;
    int code = 0;
    while (got < most) {
        unsigned long long block;
        code = take(&block, 1 << 20);
        if (code)
            break;
        got++;
    }
    printf("took %ld MiB, then %d\n", got, code);
    fflush(stdout);
    if (argc > 2)
        sleep(atoi(argv[2]));
    return 0;
}
