// Driver API calls from runtime programs, found at run time as libraries find them: nothing needs to
// be linked with libcuda.
#pragma once

#include <cuda.h>

#include "check.h"

// The driver's function of this name, as of CUDA 13.0.
#define DRIVER(name) reinterpret_cast<decltype(&name)>(driver::entry(#name))
// Ends the program unless a driver call succeeds.
#define CU(name, ...)                                                                              \
    driver::succeeds(reinterpret_cast<decltype(&name)>(driver::entry(#name))(__VA_ARGS__), #name, __LINE__)

namespace driver {

inline void *entry(const char *name) {
    void *function = nullptr;
    cudaDriverEntryPointQueryResult found;
    OK(cudaGetDriverEntryPointByVersion(name, &function, 13000, cudaEnableDefault, &found));
    CHECK(found == cudaDriverEntryPointSuccess && function, "no %s: %d", name, int(found));
    return function;
}

inline void succeeds(CUresult result, const char *what, int line) {
    if (result == CUDA_SUCCESS) return;
    const char *name = "?";
    DRIVER(cuGetErrorName)(result, &name);
    check::wrong(line, what, "%d (%s)", int(result), name);
}

} // namespace driver
