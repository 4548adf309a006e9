// needs: plain
// Driver contexts beside the runtime's: a stack for each thread, two contexts whose modules have
// globals of their own, memory by the driver calls.
#include <thread>

#include "driver.h"

const char *text = R"(.version 7.0
.target sm_75
.address_size 64
.visible .global .align 4 .u32 counter = 0;
.visible .entry add(.param .u32 n) {
    .reg .b32 %r<3>;
    ld.param.u32 %r1, [n];
    atom.global.add.u32 %r2, [counter], %r1;
    ret;
}
)";

struct Loaded {
    CUmodule module;
    CUfunction function;
    CUdeviceptr counter;
    Loaded() {
        size_t bytes;
        CU(cuModuleLoadData, &module, text);
        CU(cuModuleGetFunction, &function, module, "add");
        CU(cuModuleGetGlobal, &counter, &bytes, module, "counter");
    }
    void add(unsigned n) {
        void *parameters[] = {&n};
        CU(cuLaunchKernel, function, 2, 1, 1, 32, 1, 1, 0, nullptr, parameters, nullptr);
    }
    unsigned value() {
        unsigned value;
        CU(cuMemcpyDtoH, &value, counter, sizeof value);
        return value;
    }
};

int main() {
    OK(cudaFree(nullptr));
    CUcontext primary, second, top;
    CU(cuCtxGetCurrent, &primary);
    Loaded here;
    CU(cuCtxCreate, &second, nullptr, 0, 0);
    CU(cuCtxGetCurrent, &top);
    CHECK(top == second && second != primary, "the new context is not current");
    Loaded there;
    there.add(2);
    CU(cuCtxPopCurrent, &top);
    CHECK(top == second, "another context was popped");
    here.add(1);
    CHECK(here.value() == 64, "%u", here.value());
    std::thread([&] {
        CUcontext none = primary;
        CU(cuCtxGetCurrent, &none);
        CHECK(none == nullptr, "a new thread has a context");
        CU(cuCtxPushCurrent, second);
        there.add(3);
        CHECK(there.value() == 64 * 5, "%u", there.value());
        CU(cuCtxPopCurrent, &none);
    }).join();
    CU(cuCtxPushCurrent, second);
    CHECK(there.value() == 320, "%u", there.value());
    CU(cuModuleUnload, there.module);
    CU(cuCtxDestroy, second);
    CU(cuCtxGetCurrent, &top);
    CHECK(top == primary, "the primary context is not back");
    CHECK(here.value() == 64, "%u", here.value());
    printf("two contexts\n");
    return check::pass();
}
