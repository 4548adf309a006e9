// needs: jit
// PTX at run time by the driver API: modules and libraries, logs with errors, globals, the linker
// joining two pieces, launches with a packed parameter buffer.
#include <string>

#include "driver.h"

const char *head = ".version 7.0\n.target sm_75\n.address_size 64\n";
const std::string scale = std::string(head) + R"(
.visible .global .align 4 .u32 offset = 5;
.visible .entry scale(.param .u64 data, .param .u32 factor) {
    .reg .b64 %rd<4>;
    .reg .b32 %r<6>;
    ld.param.u64 %rd1, [data];
    ld.param.u32 %r1, [factor];
    mov.u32 %r2, %tid.x;
    mul.wide.u32 %rd2, %r2, 4;
    add.s64 %rd3, %rd1, %rd2;
    ld.global.u32 %r3, [%rd3];
    ld.global.u32 %r4, [offset];
    mad.lo.u32 %r5, %r3, %r1, %r4;
    st.global.u32 [%rd3], %r5;
    ret;
}
)";
const std::string caller = std::string(head) + R"(
.extern .func (.param .b32 result) twice (.param .b32 value);
.visible .entry apply(.param .u64 data) {
    .reg .b64 %rd<4>;
    .reg .b32 %r<4>;
    ld.param.u64 %rd1, [data];
    mov.u32 %r1, %tid.x;
    mul.wide.u32 %rd2, %r1, 4;
    add.s64 %rd3, %rd1, %rd2;
    ld.global.u32 %r2, [%rd3];
    {
        .param .b32 in;
        .param .b32 out;
        st.param.b32 [in], %r2;
        call.uni (out), twice, (in);
        ld.param.b32 %r3, [out];
    }
    st.global.u32 [%rd3], %r3;
    ret;
}
)";
const std::string callee = std::string(head) + R"(
.visible .func (.param .b32 result) twice (.param .b32 value) {
    .reg .b32 %r<3>;
    ld.param.b32 %r1, [value];
    add.u32 %r2, %r1, %r1;
    st.param.b32 [result], %r2;
    ret;
}
)";

int main() {
    std::vector<int> values(32);
    for (int i = 0; i < 32; i++) values[i] = i;
    Array<int> data(values);
    CUdeviceptr pointer = reinterpret_cast<CUdeviceptr>(static_cast<int *>(data));

    CUmodule module;
    CUfunction function;
    CU(cuModuleLoadData, &module, scale.c_str());
    CU(cuModuleGetFunction, &function, module, "scale");
    CUdeviceptr offset;
    size_t bytes;
    CU(cuModuleGetGlobal, &offset, &bytes, module, "offset");
    CHECK(bytes == 4, "%zu bytes", bytes);
    unsigned factor = 3;
    void *parameters[] = {&pointer, &factor};
    CU(cuLaunchKernel, function, 1, 1, 1, 32, 1, 1, 0, nullptr, parameters, nullptr);
    CU(cuMemsetD32, offset, 100, 1);
    struct {
        CUdeviceptr data;
        unsigned factor;
    } packed = {pointer, 2};
    size_t size = 12;
    void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &packed, CU_LAUNCH_PARAM_BUFFER_SIZE, &size, CU_LAUNCH_PARAM_END};
    CU(cuLaunchKernel, function, 1, 1, 1, 32, 1, 1, 0, nullptr, nullptr, extra);
    OK(cudaDeviceSynchronize());
    auto got = data.host();
    for (int i = 0; i < 32; i++) CHECK(got[i] == (i * 3 + 5) * 2 + 100, "element %d is %d", i, got[i]);
    CUfunction missing;
    CHECK(DRIVER(cuModuleGetFunction)(&missing, module, "absent") == CUDA_ERROR_NOT_FOUND, "a missing function was found");
    CU(cuModuleUnload, module);

    CUlibrary library;
    CUkernel kernel;
    CU(cuLibraryLoadData, &library, scale.c_str(), nullptr, nullptr, 0, nullptr, nullptr, 0);
    CU(cuLibraryGetKernel, &kernel, library, "scale");
    CU(cuLaunchKernel, reinterpret_cast<CUfunction>(kernel), 1, 1, 1, 32, 1, 1, 0, nullptr, parameters, nullptr);
    OK(cudaDeviceSynchronize());
    CHECK(data.host()[1] == 116 * 3 + 5, "%d", data.host()[1]);
    CU(cuLibraryUnload, library);

    char log[4096] = "", info[4096] = "";
    CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
    void *settings[] = {log, reinterpret_cast<void *>(sizeof log)};
    std::string wrong = scale;
    wrong.replace(wrong.find("mad.lo.u32"), 10, "mad.no.u32");
    CUresult result = DRIVER(cuModuleLoadDataEx)(&module, wrong.c_str(), 2, options, settings);
    CHECK(result == CUDA_ERROR_INVALID_PTX, "%d", int(result));
    CHECK(strlen(log) > 10, "the log is empty");

    CUlinkState link;
    CUjit_option link_options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES, CU_JIT_INFO_LOG_BUFFER, CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES};
    void *link_settings[] = {log, reinterpret_cast<void *>(sizeof log), info, reinterpret_cast<void *>(sizeof info)};
    CU(cuLinkCreate, 4, link_options, link_settings, &link);
    CU(cuLinkAddData, link, CU_JIT_INPUT_PTX, const_cast<char *>(caller.c_str()), caller.size() + 1, "caller.ptx", 0, nullptr, nullptr);
    CU(cuLinkAddData, link, CU_JIT_INPUT_PTX, const_cast<char *>(callee.c_str()), callee.size() + 1, "callee.ptx", 0, nullptr, nullptr);
    void *image;
    CU(cuLinkComplete, link, &image, &bytes);
    CU(cuModuleLoadData, &module, image);
    CU(cuLinkDestroy, link);
    CU(cuModuleGetFunction, &function, module, "apply");
    data.set(values);
    CU(cuLaunchKernel, function, 1, 1, 1, 32, 1, 1, 0, nullptr, parameters, nullptr);
    OK(cudaDeviceSynchronize());
    for (int i = 0; i < 32; i++) CHECK(data.host()[i] == 2 * i, "linked: element %d is %d", i, data.host()[i]);
    CU(cuModuleUnload, module);
    printf("three ways to load, one log\n");
    return check::pass();
}
