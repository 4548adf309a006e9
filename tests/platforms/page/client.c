/* A client for the page: `client work` launches kernels until it is killed, `client idle` stays, `client fault` writes where nothing is. */

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <signal.h>
#include <unistd.h>

static const char code[] =
    ".version 7.0\n.target sm_70\n.address_size 64\n"
    ".visible .entry spin(.param .u64 to, .param .u32 rounds) {\n"
    ".reg .u64 %a; .reg .u32 %n, %i; .reg .pred %p;\n"
    "ld.param.u64 %a, [to]; ld.param.u32 %n, [rounds]; mov.u32 %i, 0;\n"
    "again: add.u32 %i, %i, 1; setp.lt.u32 %p, %i, %n; @%p bra again;\n"
    "st.global.u32 [%a], %i; ret; }\n";

static void *library;

static int call(const char *name, void *a, void *b, void *c) {
    int (*function)(void *, void *, void *) = (int (*)(void *, void *, void *))dlsym(library, name);
    int came = function ? function(a, b, c) : -1;
    if (came != 0) fprintf(stderr, "%s: %d\n", name, came);
    return came;
}

int main(int count, char **words) {
    const char *mode = count > 1 ? words[1] : "idle";
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    int device = 0;
    void *context = 0, *module = 0, *spin = 0;
    unsigned long long memory = 0;
    int rounds = 20000;
    if (call("cuInit", 0, 0, 0) || call("cuDeviceGet", &device, 0, 0) || call("cuCtxCreate_v2", &context, 0, 0) ||
        call("cuMemAlloc_v2", &memory, (void *)(1ul << 20), 0) || call("cuModuleLoadData", &module, (void *)code, 0) ||
        call("cuModuleGetFunction", &spin, module, "spin"))
        return 1;
    int (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **) =
        (void *)dlsym(library, "cuLaunchKernel");
    if (!strcmp(mode, "fault")) memory = 8;
    void *parameters[] = {&memory, &rounds};
    do {
        if (!strcmp(mode, "idle")) {
            pause();
            continue;
        }
        if (launch(spin, 8, 1, 1, 64, 1, 1, 0, 0, parameters, 0) || call("cuCtxSynchronize", 0, 0, 0)) return 1;
    } while (1);
}
