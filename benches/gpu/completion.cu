// How a server can learn that a kernel is done, and what each way costs when several threads launch in one
// context, each in a stream of its own: the question behind launch + synchronise with many clients.
//
//   nvcc -O2 -std=c++17 -gencode arch=compute_75,code=compute_75 -o completion completion.cu -lcuda
//   CUDA_DEVICE_MAX_CONNECTIONS=32 ./completion
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

// What a thread works with: a stream and an event of its own, and a word of host memory that the device
// reaches too.
struct Lane {
    CUstream stream;
    CUevent event;
    volatile unsigned *word;
    CUdeviceptr address;
    unsigned value;

    explicit Lane(int thread) : word(words + thread * 64), address(words_on_device + thread * 256), value(*word) {
        CU(cuCtxSetCurrent(context));
        CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
        CU(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    }
};

// Has threads prepare and then work round after round for 0.4 s; the seconds that it took. `prepare` makes
// of a lane and a thread's number what does one round.
template <typename Prepare> static double together(int threads, Prepare prepare) {
    std::atomic<bool> stop{false}, go{false};
    std::vector<std::thread> all;
    for (int t = 0; t < threads; t++)
        all.emplace_back([&, t] {
            Lane lane(t);
            auto round = prepare(lane, t);
            while (!go) std::this_thread::yield();
            while (!stop) round();
            CU(cuStreamSynchronize(lane.stream));
        });
    usleep(100000);
    go = true;
    auto begin = Clock::now();
    usleep(400000);
    stop = true;
    for (auto &thread : all) thread.join();
    return std::chrono::duration<double>(Clock::now() - begin).count();
}

// A graph of one kernel.
static CUgraphExec graph_of_one() {
    CUgraph graph;
    CUgraphNode node;
    CUgraphExec exec;
    CUDA_KERNEL_NODE_PARAMS params{};
    params.func = none, params.gridDimX = params.gridDimY = params.gridDimZ = params.blockDimX = params.blockDimY = params.blockDimZ = 1;
    CU(cuGraphCreate(&graph, 0));
    CU(cuGraphAddKernelNode(&node, graph, nullptr, 0, &params));
    CU(cuGraphInstantiate(&exec, graph, 0));
    return exec;
}

static void launch(CUfunction kernel, CUstream stream, void **arguments = nullptr) {
    CU(cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, stream, arguments, nullptr));
}

// Rounds a second and the median of all threads' times.
static void measure(const Way &way, int threads) {
    std::vector<std::vector<double>> times(threads);
    double seconds = together(threads, [&](Lane &lane, int t) {
        CUgraphExec exec = graph_of_one();
        return [&lane, &way, &mine = times[t], exec] {
            CUlaunchAttribute attribute{};
            attribute.id = CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT;
            attribute.value.launchCompletionEvent.event = lane.event;
            CUlaunchConfig config{};
            config.gridDimX = config.gridDimY = config.gridDimZ = config.blockDimX = config.blockDimY = config.blockDimZ = 1;
            config.hStream = lane.stream, config.attrs = &attribute, config.numAttrs = 1;
            auto begin = Clock::now();
            unsigned value = ++lane.value;
            void *arguments[] = {&lane.address, &value};
            switch (way.kind) {
            case 4: launch(mark, lane.stream, arguments); break;
            case 6: CU(cuGraphLaunch(exec, lane.stream)); break;
            case 8: CU(cuLaunchKernelEx(&config, none, nullptr, nullptr)); break;
            default: launch(none, lane.stream);
            }
            switch (way.kind) {
            case 0:
            case 6: CU(cuStreamWriteValue32(lane.stream, lane.address, value, 0)); break;
            case 1:
            case 5: CU(cuEventRecord(lane.event, lane.stream)); break;
            case 7: CU(cuMemsetD32Async(lane.address, value, 1, lane.stream)); break;
            }
            CUresult state = CUDA_SUCCESS;
            switch (way.kind) {
            case 0:
            case 4:
            case 6:
            case 7:
                while (*lane.word != value) {}
                break;
            case 1:
            case 8:
                while ((state = cuEventQuery(lane.event)) == CUDA_ERROR_NOT_READY) {}
                break;
            case 2:
            case 5:
                while ((state = cuStreamQuery(lane.stream)) == CUDA_ERROR_NOT_READY) {}
                break;
            case 3: state = cuStreamSynchronize(lane.stream); break;
            }
            CU(state);
            mine.push_back(std::chrono::duration<double, std::micro>(Clock::now() - begin).count());
        };
    });
    std::vector<double> merged;
    for (auto &one : times) merged.insert(merged.end(), one.begin(), one.end());
    std::sort(merged.begin(), merged.end());
    printf("%-56s %2d threads: median %7.2f us, p99 %7.2f us, %9.0f a second\n", way.name, threads, merged[merged.size() / 2], merged[merged.size() * 99 / 100], merged.size() / seconds);
    fflush(stdout);
}

// Launches a second with a signal after every so many.
static void rate(int threads, int every, int kind) {
    std::vector<long> counts(threads);
    double seconds = together(threads, [&](Lane &lane, int t) {
        return [&lane, &count = counts[t], every, kind] {
            for (int i = 0; i < 256; i++) {
                launch(none, lane.stream);
                if (i % every == every - 1) {
                    if (kind == 0) CU(cuStreamWriteValue32(lane.stream, lane.address, ++lane.value, 0));
                    else CU(cuEventRecord(lane.event, lane.stream));
                }
            }
            CU(cuStreamSynchronize(lane.stream));
            count += 256;
        };
    });
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
