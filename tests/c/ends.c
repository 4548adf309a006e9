/* How programs load the driver library, and end: what no language's runtime does on its own.
 * `ends reload`: closes the library and opens it again. `ends handler`: ends by exit() from a signal's
 * handler, in the midst of whatever it does. `ends handler own`: the same in the thread's own stream. */
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>

typedef int (*Call)();

static Call find(void *library, const char *name) {
    Call call = (Call)dlsym(library, name);
    if (!call) {
        printf("no %s\n", name);
        exit(2);
    }
    return call;
}

static void *load(void) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        printf("%s\n", dlerror());
        exit(2);
    }
    return library;
}

static int check(const char *what, int code) {
    if (code) {
        printf("%s: error %d\n", what, code);
        exit(1);
    }
    return 0;
}

static void leave(int signal) {
    (void)signal;
    exit(0);
}

static unsigned long long begin(void *library) {
    void *context;
    unsigned long long address;
    check("cuInit", find(library, "cuInit")(0u));
    check("cuDevicePrimaryCtxRetain", find(library, "cuDevicePrimaryCtxRetain")(&context, 0));
    check("cuCtxSetCurrent", find(library, "cuCtxSetCurrent")(context));
    check("cuMemAlloc", find(library, "cuMemAlloc_v2")(&address, (size_t)1 << 20));
    return address;
}

int main(int count, char **arguments) {
    void *library = load();
    if (count > 1 && !strcmp(arguments[1], "reload")) {
        for (int i = 0; i < 3; i++) {
            begin(library);
            dlclose(library);
            library = load();
        }
        printf("ok\n");
        return 0;
    }
    static char bytes[16000];
    unsigned long long to = begin(library);
    size_t own = count > 2 ? 2 : 1;
    Call copy = find(library, "cuMemcpyHtoDAsync_v2");
    /* Once, so that all is there. */
    check("cuMemcpyHtoDAsync", copy(to, bytes, sizeof bytes, (void *)own));
    check("cuCtxSynchronize", find(library, "cuCtxSynchronize")());
    struct itimerval soon = {{0, 0}, {0, 1000 + (count > 3 ? atoi(arguments[3]) : 0)}};
    signal(SIGALRM, leave);
    setitimer(ITIMER_REAL, &soon, NULL);
    for (;;) check("cuMemcpyHtoDAsync", copy(to, bytes, sizeof bytes, (void *)own));
}
