// How a server can learn that a short copy back is done, and what each way costs when several threads copy in
// one context, each in a stream of its own, with and without a kernel before the copy.
//
//   nvcc -O2 -std=c++17 -gencode arch=compute_75,code=compute_75 -o fetches fetches.cu -lcuda
//   CUDA_DEVICE_MAX_CONNECTIONS=32 ./fetches
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
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
    st.release.sys.global.u32 [%rd1], %r1;
    ret;
}
.visible .entry carry(.param .u64 to, .param .u64 from, .param .u32 words, .param .u64 word, .param .u32 value) {
    .reg .b64 %rd<6>; .reg .b32 %r<5>; .reg .pred %p<3>;
    ld.param.u64 %rd1, [to];
    ld.param.u64 %rd2, [from];
    ld.param.u32 %r1, [words];
    ld.param.u64 %rd3, [word];
    ld.param.u32 %r2, [value];
    mov.u32 %r3, %tid.x;
    setp.ge.u32 %p1, %r3, %r1;
    mul.wide.u32 %rd4, %r3, 4;
    add.u64 %rd1, %rd1, %rd4;
    add.u64 %rd2, %rd2, %rd4;
    @!%p1 ld.global.u32 %r4, [%rd2];
    @!%p1 st.global.u32 [%rd1], %r4;
    bar.sync 0;
    setp.ne.u32 %p2, %r3, 0;
    @%p2 ret;
    fence.acq_rel.sys;
    st.release.sys.global.u32 [%rd3], %r2;
    ret;
}
)";

using Clock = std::chrono::steady_clock;
static CUcontext context;
static CUfunction none, mark, carry;

enum Way { SYNCHRONIZE, WRITE_VALUE, EVENT, DATA, FILL, MARK, COPY, GRAPH, KERNEL, WAYS };
static const char *ways[] = {"copy, cuStreamSynchronize", "copy, WriteValue", "copy, event record, event queried", "copy, the data tells", "copy, fill of the word", "copy, launch of the mark", "copy, copy of the word", "graph of copy and mark", "kernel that copies and writes the word"};

// What data never has here.
static const unsigned BLANK = 0x9e3779b9;
// A word counts up to this and begins again.
static const unsigned NUMBERS = 1024;

// What a thread works with.
struct Lane {
    CUstream stream;
    CUevent event;
    // Data on the device and where it goes; the numbers from 0 on; the word.
    CUdeviceptr from, numbers, to_on_device, word_on_device;
    volatile unsigned *to, *word;
    unsigned value = 0;
    // The graph of the copy, with a kernel before it or not.
    CUgraphExec exec;
    CUgraphNode first, copy, last;

    Lane(size_t bytes, bool kernel) {
        void *host;
        std::vector<unsigned> count(NUMBERS);
        for (unsigned i = 0; i < NUMBERS; i++) count[i] = i;
        CU(cuCtxSetCurrent(context));
        CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
        CU(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
        CU(cuMemAlloc(&from, bytes));
        CU(cuMemsetD32(from, 7, bytes / 4));
        CU(cuMemAlloc(&numbers, NUMBERS * 4));
        CU(cuMemcpyHtoD(numbers, count.data(), NUMBERS * 4));
        CU(cuMemHostAlloc(&host, bytes + 256, CU_MEMHOSTALLOC_DEVICEMAP));
        CU(cuMemHostGetDevicePointer(&word_on_device, host, 0));
        word = (volatile unsigned *)host, *word = 0;
        to = word + 64, to_on_device = word_on_device + 256;
        CUgraph graph;
        CUDA_KERNEL_NODE_PARAMS start = kernel_node(none, nullptr);
        void *arguments[] = {&word_on_device, &value};
        CUDA_KERNEL_NODE_PARAMS end = kernel_node(mark, arguments);
        CUDA_MEMCPY3D run = copy_node(bytes);
        CU(cuGraphCreate(&graph, 0));
        if (kernel) CU(cuGraphAddKernelNode(&first, graph, nullptr, 0, &start));
        CU(cuGraphAddMemcpyNode(&copy, graph, kernel ? &first : nullptr, kernel, &run, context));
        CU(cuGraphAddKernelNode(&last, graph, &copy, 1, &end));
        CU(cuGraphInstantiate(&exec, graph, 0));
    }

    static CUDA_KERNEL_NODE_PARAMS kernel_node(CUfunction function, void **arguments) {
        CUDA_KERNEL_NODE_PARAMS params{};
        params.func = function, params.kernelParams = arguments;
        params.gridDimX = params.gridDimY = params.gridDimZ = params.blockDimX = params.blockDimY = params.blockDimZ = 1;
        return params;
    }

    CUDA_MEMCPY3D copy_node(size_t bytes) const {
        CUDA_MEMCPY3D run{};
        run.srcMemoryType = CU_MEMORYTYPE_DEVICE, run.srcDevice = from;
        run.dstMemoryType = CU_MEMORYTYPE_HOST, run.dstHost = (void *)to;
        run.WidthInBytes = bytes, run.Height = run.Depth = 1;
        return run;
    }

    void launch(CUfunction function, unsigned threads, void **arguments) { CU(cuLaunchKernel(function, 1, 1, 1, threads, 1, 1, 0, stream, arguments, nullptr)); }

    // Brings the data once, and knows it.
    void fetch(size_t bytes, bool kernel, Way way) {
        value = (value + 1) % NUMBERS;
        unsigned count = bytes / 4;
        void *arguments[] = {&word_on_device, &value}, *all[] = {&to_on_device, &from, &count, &word_on_device, &value};
        if (way == DATA)
            for (unsigned i = 0; i < count; i++) to[i] = BLANK;
        if (way == GRAPH) {
            CUDA_KERNEL_NODE_PARAMS start = kernel_node(none, nullptr), end = kernel_node(mark, arguments);
            CUDA_MEMCPY3D run = copy_node(bytes);
            if (kernel) CU(cuGraphExecKernelNodeSetParams(exec, first, &start));
            CU(cuGraphExecMemcpyNodeSetParams(exec, copy, &run, context));
            CU(cuGraphExecKernelNodeSetParams(exec, last, &end));
            CU(cuGraphLaunch(exec, stream));
        } else {
            if (kernel) launch(none, 1, nullptr);
            if (way == KERNEL) launch(carry, count, all);
            else CU(cuMemcpyDtoHAsync((void *)to, from, bytes, stream));
        }
        CUresult state = CUDA_SUCCESS;
        switch (way) {
        case SYNCHRONIZE: state = cuStreamSynchronize(stream); break;
        case WRITE_VALUE: state = cuStreamWriteValue32(stream, word_on_device, value, 0); break;
        case EVENT: state = cuEventRecord(event, stream); break;
        case FILL: state = cuMemsetD32Async(word_on_device, value, 1, stream); break;
        case MARK: launch(mark, 1, arguments); break;
        case COPY: state = cuMemcpyDtoHAsync((void *)word, numbers + 4 * value, 4, stream); break;
        default: break;
        }
        CU(state);
        if (way == EVENT) {
            while ((state = cuEventQuery(event)) == CUDA_ERROR_NOT_READY) {}
            CU(state);
        } else if (way == DATA) {
            for (unsigned i = 0; i < count; i++)
                while (to[i] == BLANK) {}
        } else if (way != SYNCHRONIZE) {
            while (*word != value) {}
        }
    }
};

// Threads that fetch again and again for 0.4 s: the median and the 99th percentile of all their times.
static void measure(int threads, size_t bytes, bool kernel, Way way) {
    std::atomic<bool> stop{false}, go{false};
    std::atomic<int> ready{0};
    std::vector<std::vector<double>> times(threads);
    std::vector<std::thread> all;
    for (int t = 0; t < threads; t++)
        all.emplace_back([&, t] {
            Lane lane(bytes, kernel);
            lane.fetch(bytes, kernel, way);
            CU(cuStreamSynchronize(lane.stream));
            ready++;
            while (!go) std::this_thread::yield();
            while (!stop) {
                auto begin = Clock::now();
                lane.fetch(bytes, kernel, way);
                times[t].push_back(std::chrono::duration<double, std::micro>(Clock::now() - begin).count());
            }
            CU(cuStreamSynchronize(lane.stream));
        });
    while (ready < threads) usleep(1000);
    go = true;
    usleep(400000);
    stop = true;
    for (auto &thread : all) thread.join();
    std::vector<double> merged;
    for (auto &one : times) merged.insert(merged.end(), one.begin(), one.end());
    std::sort(merged.begin(), merged.end());
    printf("%s%4zu B, %-40s %2d threads: median %7.2f us, p99 %7.2f us\n", kernel ? "kernel, " : "        ", bytes, ways[way], threads, merged[merged.size() / 2], merged[merged.size() * 99 / 100]);
    fflush(stdout);
}

int main() {
    CUdevice device;
    CUmodule module;
    CU(cuInit(0));
    CU(cuDeviceGet(&device, 0));
    CU(cuDevicePrimaryCtxRetain(&context, device));
    CU(cuCtxSetCurrent(context));
    CU(cuModuleLoadData(&module, text));
    CU(cuModuleGetFunction(&none, module, "none"));
    CU(cuModuleGetFunction(&mark, module, "mark"));
    CU(cuModuleGetFunction(&carry, module, "carry"));
    for (int threads : {1, 8})
        for (size_t bytes : {4, 4096})
            for (bool kernel : {false, true})
                for (int way = 0; way < WAYS; way++) measure(threads, bytes, kernel, Way(way));
    return 0;
}
