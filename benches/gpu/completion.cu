// How a server can learn that a kernel is done, and what each way costs when several threads launch in one
// context, each in a stream of its own: the question behind launch + synchronise with many clients.
//
//   nvcc -std=c++17 -gencode arch=compute_75,code=compute_75 -o completion completion.cu -lcuda
//   CUDA_DEVICE_MAX_CONNECTIONS=32 ./completion
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <string>
#include <thread>
#include <unistd.h>
#include <vector>

#include <cuda.h>

#define CU(call)                                                                                   \
    do {                                                                                           \
        CUresult result = (call);                                                                  \
        if (result != CUDA_SUCCESS) printf("    %s: %d\n", #call, int(result)), exit(1);           \
    } while (0)

static const char *text = R"(.version 7.0
.target sm_75
.address_size 64
.visible .entry none() { ret; }
.visible .entry mark(.param .u64 word, .param .u32 value) {
    .reg .b64 %rd<2>; .reg .b32 %r<2>;
    ld.param.u64 %rd1, [word];
    ld.param.u32 %r1, [value];
    st.volatile.global.u32 [%rd1], %r1;
    ret;
}
)";

using Clock = std::chrono::steady_clock;
static CUcontext context;
static CUfunction none, mark;
static volatile unsigned *words;
static CUdeviceptr words_on_device;

struct Way {
    const char *name;
    int kind;
};
static const Way ways[] = {
    {"launch, WriteValue, word polled", 0},
    {"launch, event record, event queried", 1},
    {"launch, stream queried", 2},
    {"launch, cuStreamSynchronize", 3},
    {"kernel writes the word itself", 4},
    {"launch, event record, stream queried", 5},
    {"graph of one kernel, WriteValue, word polled", 6},
    {"launch, host-memory fill of 4 bytes, word polled", 7},
    {"launch with a completion event attribute, event queried", 8},
};

// Rounds a second and the median of all threads' times.
static void measure(const Way &way, int threads) {
    std::atomic<bool> stop{false}, go{false};
    std::vector<std::vector<double>> times(threads);
    std::vector<std::thread> all;
    for (int t = 0; t < threads; t++)
        all.emplace_back([&, t] {
            CU(cuCtxSetCurrent(context));
            CUstream stream;
            CUevent event;
            CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
            CU(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
            volatile unsigned *word = words + t * 64;
            CUdeviceptr address = words_on_device + t * 256;
            unsigned value = *word;
            CUgraph graph;
            CUgraphNode node;
            CUgraphExec exec;
            CUDA_KERNEL_NODE_PARAMS params{};
            params.func = none, params.gridDimX = params.gridDimY = params.gridDimZ = params.blockDimX = params.blockDimY = params.blockDimZ = 1;
            CU(cuGraphCreate(&graph, 0));
            CU(cuGraphAddKernelNode(&node, graph, nullptr, 0, &params));
            CU(cuGraphInstantiate(&exec, graph, 0));
            CUlaunchAttribute attribute{};
            attribute.id = CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT;
            attribute.value.launchCompletionEvent.event = event;
            CUlaunchConfig config{};
            config.gridDimX = config.gridDimY = config.gridDimZ = config.blockDimX = config.blockDimY = config.blockDimZ = 1;
            config.hStream = stream, config.attrs = &attribute, config.numAttrs = 1;
            while (!go) std::this_thread::yield();
            while (!stop) {
                auto begin = Clock::now();
                value++;
                void *arguments[] = {&address, &value};
                switch (way.kind) {
                case 4: CU(cuLaunchKernel(mark, 1, 1, 1, 1, 1, 1, 0, stream, arguments, nullptr)); break;
                case 6: CU(cuGraphLaunch(exec, stream)); break;
                case 8: CU(cuLaunchKernelEx(&config, none, nullptr, nullptr)); break;
                default: CU(cuLaunchKernel(none, 1, 1, 1, 1, 1, 1, 0, stream, nullptr, nullptr));
                }
                CUresult state;
                switch (way.kind) {
                case 0:
                case 6:
                    CU(cuStreamWriteValue32(stream, address, value, 0));
                    while (*word != value) {}
                    break;
                case 1:
                    CU(cuEventRecord(event, stream));
                    while ((state = cuEventQuery(event)) == CUDA_ERROR_NOT_READY) {}
                    CU(state);
                    break;
                case 2:
                    while ((state = cuStreamQuery(stream)) == CUDA_ERROR_NOT_READY) {}
                    CU(state);
                    break;
                case 3: CU(cuStreamSynchronize(stream)); break;
                case 4:
                    while (*word != value) {}
                    break;
                case 5:
                    CU(cuEventRecord(event, stream));
                    while ((state = cuStreamQuery(stream)) == CUDA_ERROR_NOT_READY) {}
                    CU(state);
                    break;
                case 7:
                    CU(cuMemsetD32Async(address, value, 1, stream));
                    while (*word != value) {}
                    break;
                case 8:
                    while ((state = cuEventQuery(event)) == CUDA_ERROR_NOT_READY) {}
                    CU(state);
                    break;
                }
                times[t].push_back(std::chrono::duration<double, std::micro>(Clock::now() - begin).count());
            }
            CU(cuStreamSynchronize(stream));
        });
    usleep(100000);
    go = true;
    auto begin = Clock::now();
    usleep(400000);
    stop = true;
    for (auto &thread : all) thread.join();
    double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    std::vector<double> merged;
    for (auto &one : times) merged.insert(merged.end(), one.begin(), one.end());
    std::sort(merged.begin(), merged.end());
    printf("%-56s %2d threads: median %7.2f us, p99 %7.2f us, %9.0f a second\n", way.name, threads, merged[merged.size() / 2], merged[merged.size() * 99 / 100], merged.size() / seconds);
    fflush(stdout);
}

// Launches a second with a signal after every so many.
static void rate(int threads, int every, int kind) {
    std::atomic<bool> stop{false}, go{false};
    std::vector<long> counts(threads);
    std::vector<std::thread> all;
    for (int t = 0; t < threads; t++)
        all.emplace_back([&, t] {
            CU(cuCtxSetCurrent(context));
            CUstream stream;
            CUevent event;
            CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
            CU(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
            volatile unsigned *word = words + t * 64;
            CUdeviceptr address = words_on_device + t * 256;
            unsigned value = *word;
            while (!go) std::this_thread::yield();
            while (!stop) {
                for (int i = 0; i < 256; i++) {
                    CU(cuLaunchKernel(none, 1, 1, 1, 1, 1, 1, 0, stream, nullptr, nullptr));
                    if (i % every == every - 1) {
                        if (kind == 0) CU(cuStreamWriteValue32(stream, address, ++value, 0));
                        else CU(cuEventRecord(event, stream));
                    }
                }
                CU(cuStreamSynchronize(stream));
                counts[t] += 256;
            }
        });
    usleep(50000);
    go = true;
    auto begin = Clock::now();
    usleep(400000);
    stop = true;
    for (auto &thread : all) thread.join();
    double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    long sum = 0;
    for (long count : counts) sum += count;
    printf("empty kernels, %s after every %3d: %2d threads %9.0f a second\n", kind ? "event record" : "WriteValue  ", every, threads, sum / seconds);
    fflush(stdout);
}

int main() {
    CUdevice device;
    CUmodule module;
    void *host;
    CU(cuInit(0));
    CU(cuDeviceGet(&device, 0));
    CU(cuDevicePrimaryCtxRetain(&context, device));
    CU(cuCtxSetCurrent(context));
    CU(cuMemHostAlloc(&host, 1 << 16, CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_PORTABLE));
    words = (volatile unsigned *)host;
    CU(cuMemHostGetDevicePointer(&words_on_device, host, 0));
    CU(cuModuleLoadData(&module, text));
    CU(cuModuleGetFunction(&none, module, "none"));
    CU(cuModuleGetFunction(&mark, module, "mark"));
    for (int threads : {1, 8, 16})
        for (auto &way : ways) measure(way, threads);
    for (int threads : {1, 8, 16})
        for (int every : {1, 8, 32, 256})
            for (int kind : {0, 1}) rate(threads, every, kind);
    return 0;
}
