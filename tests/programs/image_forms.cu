// needs: jit
// Device code in the forms in which it can come: the wrapper and the fatbin of this very program, its
// fatbin in a file, text with and without its NUL; files that are damaged; what is asked of a module.
#include <string>

#include <elf.h>
#include <unistd.h>

#include "driver.h"

__device__ int amount = 3;
__constant__ int factor = 2;
extern "C" __global__ void grow(int *data) { data[threadIdx.x] = data[threadIdx.x] * factor + amount; }

// A section of this program, which is linked at fixed addresses or moved as a whole.
std::vector<char> section(const char *name, char **loaded) {
    FILE *file = fopen("/proc/self/exe", "rb");
    std::vector<char> all;
    char buffer[65536];
    for (size_t got; (got = fread(buffer, 1, sizeof buffer, file)) > 0;) all.insert(all.end(), buffer, buffer + got);
    fclose(file);
    auto header = reinterpret_cast<const Elf64_Ehdr *>(all.data());
    auto sections = reinterpret_cast<const Elf64_Shdr *>(all.data() + header->e_shoff);
    const char *names = all.data() + sections[header->e_shstrndx].sh_offset;
    for (int i = 0; i < header->e_shnum; i++)
        if (!strcmp(names + sections[i].sh_name, name)) {
            extern char __executable_start;
            char *base = header->e_type == ET_DYN ? &__executable_start : nullptr;
            *loaded = base + sections[i].sh_addr;
            return {all.data() + sections[i].sh_offset, all.data() + sections[i].sh_offset + sections[i].sh_size};
        }
    CHECK(false, "no section %s", name);
    return {};
}

void works_in_place(CUmodule module, const char *form) {
    CUfunction function;
    CU(cuModuleGetFunction, &function, module, "grow");
    std::vector<int> values(32, 5);
    Array<int> data(values);
    CUdeviceptr pointer = reinterpret_cast<CUdeviceptr>(static_cast<int *>(data));
    void *parameters[] = {&pointer};
    CUdeviceptr variable;
    size_t bytes;
    CU(cuModuleGetGlobal, &variable, &bytes, module, "amount");
    CU(cuMemsetD32, variable, 100, 1);
    CU(cuModuleGetGlobal, &variable, &bytes, module, "factor");
    int ten = 10;
    CU(cuMemcpyHtoD, variable, &ten, 4);
    CU(cuLaunchKernel, function, 1, 1, 1, 32, 1, 1, 0, nullptr, parameters, nullptr);
    OK(cudaDeviceSynchronize());
    CHECK(data.host()[7] == 150, "%s: %d", form, data.host()[7]);
}

void works(CUmodule module, const char *form) {
    works_in_place(module, form);
    CU(cuModuleUnload, module);
}

struct File {
    std::string path = "/tmp/openmps-image-" + std::to_string(getpid());
    File(const void *content, size_t bytes) {
        FILE *file = fopen(path.c_str(), "wb");
        CHECK(file && fwrite(content, 1, bytes, file) == bytes, "the file cannot be written");
        fclose(file);
    }
    ~File() { remove(path.c_str()); }
};

int main() {
    OK(cudaFree(nullptr));
    char *wrapper, *fatbin = nullptr;
    auto wrappers = section(".nvFatBinSegment", &wrapper);
    size_t size = 0;
    // There may be an empty one, of what was linked.
    for (char *end = wrapper + wrappers.size(); wrapper + 24 <= end; wrapper += 24) {
        memcpy(&fatbin, wrapper + 8, 8);
        memcpy(&size, fatbin + 8, 8);
        if (size > 64) break;
    }
    std::vector<char> bytes(fatbin, fatbin + 16 + size);
    CUmodule module;
    CUlibrary wrapped;
    CU(cuLibraryLoadData, &wrapped, wrapper, nullptr, nullptr, 0, nullptr, nullptr, 0);
    CU(cuLibraryGetModule, &module, wrapped);
    works_in_place(module, "the wrapper");
    CU(cuLibraryUnload, wrapped);
    CU(cuModuleLoadData, &module, fatbin);
    works(module, "the fatbin");
    {
        File file(bytes.data(), bytes.size());
        CU(cuModuleLoad, &module, file.path.c_str());
        works(module, "the fatbin in a file");
        CUlibrary library;
        CU(cuLibraryLoadFromFile, &library, file.path.c_str(), nullptr, nullptr, 0, nullptr, nullptr, 0);
        CUkernel kernel;
        CU(cuLibraryGetKernel, &kernel, library, "grow");
        CUlibrary owner;
        CU(cuKernelGetLibrary, &owner, kernel);
        CHECK(owner == library, "another library");
        unsigned count = 0;
        CU(cuLibraryGetKernelCount, &count, library);
        CUkernel list[2] = {};
        CU(cuLibraryEnumerateKernels, list, 2, library);
        CHECK(count == 1 && list[0] == kernel && !list[1], "%u kernels", count);
        void *unified;
        CHECK(DRIVER(cuLibraryGetUnifiedFunction)(&unified, library, "grow") == CUDA_ERROR_INVALID_VALUE, "a unified function");
        // One attribute on the kernel, another on the function that it is here.
        CU(cuKernelSetAttribute, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 4096, kernel, 0);
        int value = 0;
        CU(cuKernelGetAttribute, &value, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, kernel, 0);
        CHECK(value == 4096, "%d", value);
        CUfunction function;
        CU(cuKernelGetFunction, &function, kernel);
        size_t offset = 9, size = 0;
        CU(cuFuncGetParamInfo, function, 0, &offset, &size);
        CHECK(offset == 0 && size == 8, "parameter at %zu of %zu", offset, size);
        CHECK(DRIVER(cuFuncGetParamInfo)(function, 1, &offset, &size) == CUDA_ERROR_INVALID_VALUE, "a second parameter");
        CU(cuLibraryUnload, library);
    }
    // Cut off and damaged files: some error, and the program goes on.
    for (size_t part = 1; part < 16; part++) {
        File file(bytes.data(), bytes.size() * part / 16);
        CHECK(DRIVER(cuModuleLoad)(&module, file.path.c_str()) != CUDA_SUCCESS, "%zu sixteenths of a fatbin", part);
    }
    {
        File file("this is no device code", 22);
        CHECK(DRIVER(cuModuleLoad)(&module, file.path.c_str()) != CUDA_SUCCESS, "a file of words");
    }
    CHECK(DRIVER(cuModuleLoad)(&module, "/nowhere/at.all") == CUDA_ERROR_FILE_NOT_FOUND, "a file that is not there");
    CHECK(DRIVER(cuModuleLoadData)(&module, nullptr) == CUDA_ERROR_INVALID_VALUE, "no image");

    const std::string text = ".version 7.0\n.target sm_75\n.address_size 64\n.visible .global .u32 amount;\n.visible .global .u32 factor;\n"
                             ".visible .entry grow(.param .u64 data) {\n.reg .b64 %rd<4>;\n.reg .b32 %r<6>;\nld.param.u64 %rd1, [data];\nmov.u32 %r1, %tid.x;\n"
                             "mul.wide.u32 %rd2, %r1, 4;\nadd.s64 %rd3, %rd1, %rd2;\nld.global.u32 %r2, [%rd3];\nld.global.u32 %r3, [factor];\n"
                             "ld.global.u32 %r4, [amount];\nmad.lo.u32 %r5, %r2, %r3, %r4;\nst.global.u32 [%rd3], %r5;\nret;\n}\n";
    CU(cuModuleLoadData, &module, text.c_str());
    works(module, "text");
    {
        File file(text.data(), text.size());
        CU(cuModuleLoad, &module, file.path.c_str());
        works(module, "text in a file, without its NUL");
    }
    // Each module has variables of its own; names that are not there.
    CUmodule other;
    CU(cuModuleLoadData, &module, text.c_str());
    CU(cuModuleLoadData, &other, text.c_str());
    CUdeviceptr one, two;
    CU(cuModuleGetGlobal, &one, nullptr, module, "amount");
    CU(cuModuleGetGlobal, &two, nullptr, other, "amount");
    CHECK(one != two, "two modules share a variable");
    CHECK(DRIVER(cuModuleGetGlobal)(&one, nullptr, module, "absent") == CUDA_ERROR_NOT_FOUND, "a variable that is not there");
    unsigned functions = 0;
    CU(cuModuleGetFunctionCount, &functions, module);
    CUfunction listed = nullptr;
    CU(cuModuleEnumerateFunctions, &listed, 1, module);
    const char *name = nullptr;
    CU(cuFuncGetName, &name, listed);
    CHECK(functions == 1 && !strcmp(name, "grow"), "%u functions, %s", functions, name);
    CU(cuFuncLoad, listed);
    CUfunctionLoadingState state = CU_FUNCTION_LOADING_STATE_MAX;
    CU(cuFuncIsLoaded, &state, listed);
    CHECK(state == CU_FUNCTION_LOADING_STATE_LOADED, "%d", state);
    CU(cuModuleUnload, module);
    CU(cuModuleUnload, other);
    printf("seven forms\n");
    return check::pass();
}
