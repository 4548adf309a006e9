// needs: jit
// The linker: what it is given (text, files, fatbins, what it gave itself), what it refuses, and what
// its logs say.
#include <string>

#include <unistd.h>

#include "driver.h"

const std::string head = ".version 7.0\n.target sm_75\n.address_size 64\n";
const std::string kernel = head + R"(
.extern .global .align 4 .u32 shared_counter;
.extern .func (.param .b32 result) thrice (.param .b32 value);
.visible .entry work(.param .u64 out) {
    .reg .b64 %rd<3>;
    .reg .b32 %r<4>;
    ld.param.u64 %rd1, [out];
    ld.global.u32 %r1, [shared_counter];
    {
        .param .b32 in;
        .param .b32 back;
        st.param.b32 [in], %r1;
        call.uni (back), thrice, (in);
        ld.param.b32 %r2, [back];
    }
    st.global.u32 [%rd1], %r2;
    ret;
}
)";
const std::string function = head + R"(
.visible .global .align 4 .u32 shared_counter = 14;
.visible .func (.param .b32 result) thrice (.param .b32 value) {
    .reg .b32 %r<3>;
    ld.param.b32 %r1, [value];
    mul.lo.u32 %r2, %r1, 3;
    st.param.b32 [result], %r2;
    ret;
}
)";
const std::string weak = head + R"(
.weak .func (.param .b32 result) thrice (.param .b32 value) {
    .reg .b32 %r<3>;
    mov.u32 %r2, 0;
    st.param.b32 [result], %r2;
    ret;
}
)";

struct Link {
    char errors[8192] = "", infos[8192] = "";
    CUjit_option options[5] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES, CU_JIT_INFO_LOG_BUFFER, CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES, CU_JIT_LOG_VERBOSE};
    void *values[5] = {errors, reinterpret_cast<void *>(sizeof errors), infos, reinterpret_cast<void *>(sizeof infos), reinterpret_cast<void *>(1)};
    CUlinkState state;
    Link() { CU(cuLinkCreate, 5, options, values, &state); }
    ~Link() { CU(cuLinkDestroy, state); }
    CUresult add(const std::string &text, const char *name) { return DRIVER(cuLinkAddData)(state, CU_JIT_INPUT_PTX, const_cast<char *>(text.c_str()), text.size() + 1, name, 0, nullptr, nullptr); }
    bool says(const char *what) const { return strstr(errors, what) != nullptr; }
};

int run(const void *image) {
    CUmodule module;
    CUfunction work;
    CU(cuModuleLoadData, &module, image);
    CU(cuModuleGetFunction, &work, module, "work");
    Array<int> out(1);
    CUdeviceptr pointer = reinterpret_cast<CUdeviceptr>(static_cast<int *>(out));
    void *parameters[] = {&pointer};
    CU(cuLaunchKernel, work, 1, 1, 1, 1, 1, 1, 0, nullptr, parameters, nullptr);
    OK(cudaDeviceSynchronize());
    CUdeviceptr counter;
    size_t bytes;
    CU(cuModuleGetGlobal, &counter, &bytes, module, "shared_counter");
    CHECK(bytes == 4, "%zu bytes", bytes);
    int result = out.host()[0];
    CU(cuModuleUnload, module);
    return result;
}

int main() {
    OK(cudaFree(nullptr));
    void *image;
    size_t bytes;
    {
        Link link;
        CHECK(link.add(kernel, "kernel.ptx") == CUDA_SUCCESS && link.add(weak, "weak.ptx") == CUDA_SUCCESS && link.add(function, "function.ptx") == CUDA_SUCCESS, "%s", link.errors);
        CU(cuLinkComplete, link.state, &image, &bytes);
        CHECK(bytes > 0, "no bytes");
        printf("linked: %d\n", run(image));
        // The image in a file.
        std::string path = "/tmp/openmps-link-" + std::to_string(getpid());
        FILE *file = fopen(path.c_str(), "wb");
        CHECK(file && fwrite(image, 1, bytes, file) == bytes, "the file cannot be written");
        fclose(file);
        CUmodule module;
        CU(cuModuleLoad, &module, path.c_str());
        CU(cuModuleUnload, module);
        remove(path.c_str());
    }
    {
        Link link;
        CHECK(link.add(kernel, "kernel.ptx") == CUDA_SUCCESS, "%s", link.errors);
        CUresult result = DRIVER(cuLinkComplete)(link.state, &image, &bytes);
        CHECK(result != CUDA_SUCCESS, "a link without its variable succeeded");
        CHECK(link.says("shared_counter"), "the log does not name the variable: %s", link.errors);
        printf("undefined: %d\n", int(result));
    }
    {
        Link link;
        CHECK(link.add(kernel, "kernel.ptx") == CUDA_SUCCESS && link.add(function, "one.ptx") == CUDA_SUCCESS, "%s", link.errors);
        CUresult result = link.add(function, "two.ptx");
        if (result == CUDA_SUCCESS) result = DRIVER(cuLinkComplete)(link.state, &image, &bytes);
        CHECK(result != CUDA_SUCCESS, "a link with a second definition succeeded");
        CHECK(link.says("thrice"), "the log does not name the function: %s", link.errors);
        printf("twice: %d\n", int(result));
    }
    {
        Link link;
        CHECK(link.add(function, "function.ptx") == CUDA_SUCCESS, "%s", link.errors);
        std::string wrong = kernel;
        wrong.replace(wrong.find("ld.global.u32"), 13, "ld.globle.u32");
        CUresult result = link.add(wrong, "wrong.ptx");
        if (result == CUDA_SUCCESS) result = DRIVER(cuLinkComplete)(link.state, &image, &bytes);
        CHECK(strlen(link.errors) > 10 && reinterpret_cast<size_t>(link.values[1]) > 10, "the log is empty");
        printf("wrong: %d\n", int(result));
        CHECK(DRIVER(cuLinkAddFile)(link.state, CU_JIT_INPUT_PTX, "/nowhere/at.ptx", 0, nullptr, nullptr) == CUDA_ERROR_FILE_NOT_FOUND, "a file that is not there");
        CHECK(DRIVER(cuLinkAddData)(link.state, CUjitInputType(77), const_cast<char *>(kernel.c_str()), kernel.size() + 1, "", 0, nullptr, nullptr) == CUDA_ERROR_INVALID_VALUE, "a kind that is none");
    }
    return check::pass();
}
