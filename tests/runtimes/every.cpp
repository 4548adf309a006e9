// One program for CUDA runtimes of every release, compiled by the host's compiler against each one's
// headers: what nvcc's generated code does, registering an image of kernels, is done here by hand,
// since NVIDIA publishes old runtimes without their compilers.
//
// Checks its own results; the last line is PASS. `every reset` resets the device at the end.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include <cuda_runtime_api.h>

// As the code that nvcc generates declares them.
extern "C" {
void **__cudaRegisterFatBinary(void *wrapper);
void __cudaRegisterFatBinaryEnd(void **image);
void __cudaUnregisterFatBinary(void **image);
void __cudaRegisterFunction(void **image, const char *stub, char *name, const char *device_name, int threads, void *, void *, void *, void *, int *);
void __cudaRegisterVar(void **image, char *shadow, char *name, const char *device_name, int external, size_t bytes, int constant, int global);
extern const unsigned char image[];
}
asm(".section .nv_fatbin, \"a\"\n"
    ".balign 8\n"
    ".global image\n"
    "image: .incbin \"" IMAGE "\"\n"
    ".previous\n");

struct Wrapper {
    int magic, version;
    const void *image;
    void *rest;
};
__attribute__((section(".nvFatBinSegment"))) static Wrapper wrapper = {0x466243b1, 1, image, nullptr};

static char scale[4], calls[4];
static void axpy() {}
static void sum() {}

static void **handle;
__attribute__((constructor)) static void enroll() {
    handle = __cudaRegisterFatBinary(&wrapper);
    auto kernel = [](void (*stub)(), const char *name) {
        __cudaRegisterFunction(handle, (const char *)stub, (char *)name, name, -1, nullptr, nullptr, nullptr, nullptr, nullptr);
    };
    kernel(axpy, "axpy"), kernel(sum, "sum");
    __cudaRegisterVar(handle, scale, (char *)"scale", "scale", 0, sizeof(float), 1, 0);
    __cudaRegisterVar(handle, calls, (char *)"calls", "calls", 0, sizeof(unsigned), 0, 0);
    __cudaRegisterFatBinaryEnd(handle);
    atexit([] { __cudaUnregisterFatBinary(handle); });
}

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) printf("FAIL line %d: %s\n", __LINE__, #condition), exit(1);             \
    } while (0)

static void succeeds(cudaError_t error, const char *call, int line) {
    if (error != cudaSuccess) printf("FAIL line %d: %s: %s\n", line, call, cudaGetErrorName(error)), exit(1);
}
#define OK(call) succeeds((call), #call, __LINE__)

// Streams, events, symbols, copies of each kind, two kernels.
static void work() {
    const int count = 3000;
    std::vector<float> x(count), y(count), result(count);
    for (int i = 0; i < count; i++) x[i] = i, y[i] = 2 * i;
    float *on_x, *on_y, *total, *pinned, half = 0.5f, a = 3;
    OK(cudaSetDevice(0));
    OK(cudaMalloc((void **)&on_x, count * sizeof(float)));
    OK(cudaMalloc((void **)&on_y, count * sizeof(float)));
    OK(cudaMalloc((void **)&total, sizeof(float)));
    OK(cudaMallocHost((void **)&pinned, sizeof(float)));
    OK(cudaMemcpyToSymbol(scale, &half, sizeof half));

    cudaStream_t stream;
    cudaEvent_t begin, end;
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    OK(cudaEventCreate(&begin));
    OK(cudaEventCreate(&end));
    OK(cudaMemcpyAsync(on_x, x.data(), count * sizeof(float), cudaMemcpyHostToDevice, stream));
    OK(cudaMemcpyAsync(on_y, y.data(), count * sizeof(float), cudaMemcpyDefault, stream));
    OK(cudaMemsetAsync(total, 0xff, sizeof(float), stream));
    OK(cudaEventRecord(begin, stream));
    int size = count;
    void *first[] = {&on_x, &on_y, &a, &size};
    OK(cudaLaunchKernel((const void *)axpy, dim3(12), dim3(256), first, 0, stream));
    void *second[] = {&on_y, &total, &size};
    OK(cudaLaunchKernel((const void *)sum, dim3(1), dim3(128), second, 128 * sizeof(float), stream));
    OK(cudaEventRecord(end, stream));
    OK(cudaMemcpyAsync(pinned, total, sizeof(float), cudaMemcpyDeviceToHost, stream));
    OK(cudaStreamSynchronize(stream));
    OK(cudaEventQuery(end));
    float milliseconds = -1;
    OK(cudaEventElapsedTime(&milliseconds, begin, end));
    CHECK(milliseconds >= 0);
    OK(cudaMemcpy(result.data(), on_y, count * sizeof(float), cudaMemcpyDeviceToHost));
    float expected = 0;
    for (int i = 0; i < count; i++) {
        CHECK(result[i] == 0.5f * (3 * x[i] + y[i]));
        expected += result[i];
    }
    CHECK(std::abs(*pinned - expected) < 1e-4f * expected);
    OK(cudaEventDestroy(begin));
    OK(cudaEventDestroy(end));
    OK(cudaStreamDestroy(stream));
    OK(cudaFreeHost(pinned));
    for (float *array : {on_x, on_y, total}) OK(cudaFree(array));
}

static void facts() {
    int runtime, driver, count, threads, blocks;
    OK(cudaRuntimeGetVersion(&runtime));
    OK(cudaDriverGetVersion(&driver));
    OK(cudaGetDeviceCount(&count));
    CHECK(runtime / 10 == CUDART_VERSION / 10 || runtime > CUDART_VERSION);
    CHECK(driver > 0 && count > 0);
    cudaDeviceProp device;
    OK(cudaGetDeviceProperties(&device, 0));
    OK(cudaDeviceGetAttribute(&threads, cudaDevAttrMaxThreadsPerBlock, 0));
    CHECK(threads == device.maxThreadsPerBlock && device.name[0] && device.warpSize == 32);
    cudaFuncAttributes kernel;
    OK(cudaFuncGetAttributes(&kernel, (const void *)axpy));
    CHECK(kernel.maxThreadsPerBlock > 0 && kernel.sharedSizeBytes == 0);
    OK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, (const void *)axpy, 256, 0));
    CHECK(blocks > 0);
    CHECK(cudaSetDevice(1000) == cudaErrorInvalidDevice);
    CHECK(cudaLaunchKernel((const void *)axpy, dim3(1), dim3(5000), nullptr, 0, nullptr) != cudaSuccess);
    CHECK(cudaGetLastError() != cudaSuccess && cudaGetLastError() == cudaSuccess);
    void *nothing;
    CHECK(cudaMalloc(&nothing, size_t(1) << 50) == cudaErrorMemoryAllocation);
    CHECK(cudaGetLastError() == cudaErrorMemoryAllocation);
}

int main(int count, char **words) {
    unsigned before = 1, after = 0;
    // A launch's module is loaded by the first use of one of its symbols.
    OK(cudaMemcpyFromSymbol(&before, calls, sizeof before));
    CHECK(before == 0);
    facts();
    work();
    std::thread one(work), two(work);
    one.join(), two.join();
    OK(cudaMemcpyFromSymbol(&after, calls, sizeof after));
    CHECK(after == 3);
    OK(cudaDeviceSynchronize());
    if (count > 1 && !strcmp(words[1], "reset")) OK(cudaDeviceReset());
    printf("PASS\n");
    return 0;
}
