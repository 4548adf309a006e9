// Whether runs of launches issued as one graph get past the context's lock: the question behind many small
// kernels a second. Threads of one process launch in one context, each in a stream of its own; a batch is N
// launches, then an event record.
//
//   nvcc -O2 -std=c++20 -gencode arch=compute_75,code=compute_75 -o batches batches.cu -lcuda
//   CUDA_DEVICE_MAX_CONNECTIONS=32 ./batches
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
.visible .entry none(.param .u64 word, .param .u32 value) { ret; }
.visible .entry mark(.param .u64 word, .param .u32 value) {
    .reg .b64 %rd<2>; .reg .b32 %r<2>;
    ld.param.u64 %rd1, [word];
    ld.param.u32 %r1, [value];
    st.release.sys.global.u32 [%rd1], %r1;
    ret;
}
.visible .entry where(.param .u64 seen, .param .u32 value) {
    .reg .b64 %rd<4>; .reg .b32 %r<4>;
    ld.param.u64 %rd1, [seen];
    mov.u32 %r1, %smid;
    mul.wide.u32 %rd2, %r1, 4;
    add.u64 %rd1, %rd1, %rd2;
    mov.u32 %r2, 1;
    st.global.u32 [%rd1], %r2;
    ret;
}
.visible .entry crowd(.param .u64 word, .param .u32 value) {
    .reg .b64 %rd<4>; .reg .pred %p<2>; .reg .b32 %r<4>;
    ld.param.u32 %r1, [value];
    mov.u32 %r2, %ctaid.x;
    mul.lo.u32 %r2, %r2, 2654435761;
    mul.hi.u32 %r2, %r2, %r1;
    add.u32 %r1, %r1, %r2;
    cvt.u64.u32 %rd3, %r1;
    mov.u64 %rd1, %globaltimer;
again:
    nanosleep.u32 1000;
    mov.u64 %rd2, %globaltimer;
    sub.u64 %rd2, %rd2, %rd1;
    setp.lt.u64 %p1, %rd2, %rd3;
    @%p1 bra again;
    ret;
}
.visible .entry busy(.param .u64 word, .param .u32 value) {
    .reg .b64 %rd<4>; .reg .pred %p<2>; .reg .b32 %r<2>;
    ld.param.u32 %r1, [value];
    cvt.u64.u32 %rd3, %r1;
    mov.u64 %rd1, %globaltimer;
again:
    mov.u64 %rd2, %globaltimer;
    sub.u64 %rd2, %rd2, %rd1;
    setp.lt.u64 %p1, %rd2, %rd3;
    @%p1 bra again;
    ret;
}
)";

using Clock = std::chrono::steady_clock;
static CUcontext context;
static CUfunction none, crowd, busy, mark, where;
static volatile unsigned *words;
static CUdeviceptr words_on_device;

static double seconds_since(Clock::time_point begin) {
    return std::chrono::duration<double>(Clock::now() - begin).count();
}

// A chain of kernels as one graph, and what comes after them.
struct Chain {
    CUgraph graph;
    CUgraphExec exec;
    std::vector<CUgraphNode> nodes;
    CUgraphNode last;

    enum After { NOTHING, WRITE, FILL, MARK };

    Chain(int count, CUfunction kernel, After after, CUdeviceptr word) : nodes(count) {
        CU(cuGraphCreate(&graph, 0));
        CUdeviceptr pointer = 0;
        unsigned value = 13000;
        void *arguments[] = {&pointer, &value};
        CUDA_KERNEL_NODE_PARAMS params = of(kernel, arguments);
        for (int i = 0; i < count; i++) CU(cuGraphAddKernelNode(&nodes[i], graph, i ? &nodes[i - 1] : nullptr, i ? 1 : 0, &params));
        if (after == WRITE) {
            CUstreamBatchMemOpParams op{};
            op.writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
            op.writeValue.address = word, op.writeValue.value = 1;
            CUDA_BATCH_MEM_OP_NODE_PARAMS ops{};
            ops.ctx = context, ops.count = 1, ops.paramArray = &op;
            CU(cuGraphAddBatchMemOpNode(&last, graph, &nodes.back(), 1, &ops));
        } else if (after == FILL) {
            CUDA_MEMSET_NODE_PARAMS fill{};
            fill.dst = word, fill.value = 1, fill.elementSize = 4, fill.width = 1, fill.height = 1;
            CU(cuGraphAddMemsetNode(&last, graph, &nodes.back(), 1, &fill, context));
        }
        if (after == MARK) {
            void *both[] = {&word, &value};
            params = of(mark, both);
            CU(cuGraphAddKernelNode(&last, graph, &nodes.back(), 1, &params));
        }
        CU(cuGraphInstantiate(&exec, graph, 0));
    }

    void sign(CUdeviceptr word, unsigned value) {
        void *arguments[] = {&word, &value};
        CUDA_KERNEL_NODE_PARAMS params = of(mark, arguments);
        CU(cuGraphExecKernelNodeSetParams(exec, last, &params));
    }

    // Another kernel in every other node, each time others.
    void shuffle(unsigned round) {
        CUdeviceptr pointer = round;
        unsigned value = 0;
        void *arguments[] = {&pointer, &value};
        for (auto node : nodes) {
            CUDA_KERNEL_NODE_PARAMS params = of(round++ & 1 ? none : busy, arguments);
            CU(cuGraphExecKernelNodeSetParams(exec, node, &params));
        }
    }

    static CUDA_KERNEL_NODE_PARAMS of(CUfunction kernel, void **arguments) {
        CUDA_KERNEL_NODE_PARAMS params{};
        params.func = kernel, params.kernelParams = arguments;
        params.gridDimX = params.gridDimY = params.gridDimZ = params.blockDimX = params.blockDimY = params.blockDimZ = 1;
        return params;
    }

    void update(CUfunction kernel, unsigned value) {
        CUdeviceptr pointer = value;
        void *arguments[] = {&pointer, &value};
        CUDA_KERNEL_NODE_PARAMS params = of(kernel, arguments);
        for (auto node : nodes) CU(cuGraphExecKernelNodeSetParams(exec, node, &params));
    }
};

// Has threads prepare and then work round after round for 0.25 s; the seconds that it took.
template <typename Prepare> static double together(int threads, Prepare prepare) {
    std::atomic<int> ready{0};
    std::atomic<bool> stop{false}, go{false};
    std::vector<std::thread> all;
    for (int t = 0; t < threads; t++)
        all.emplace_back([&, t] {
            CU(cuCtxSetCurrent(context));
            CUstream stream;
            CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
            auto round = prepare(stream, t);
            ready++;
            while (!go) std::this_thread::yield();
            while (!stop) round();
            CU(cuStreamSynchronize(stream));
        });
    while (ready < threads) usleep(1000);
    auto begin = Clock::now();
    go = true;
    usleep(250000);
    stop = true;
    for (auto &thread : all) thread.join();
    return seconds_since(begin);
}

enum Kind { PLAIN, KEPT, UPDATED, UPDATED_WRITE, UPDATED_MARK, OTHERS_MARK };
static const char *kinds[] = {"launches", "graph, parameters kept", "graph, parameters updated", "graph, updated, WriteValue in it", "graph, updated, mark in it", "graph, other kernels, mark in it"};

static void rate(int threads, int size, Kind kind, CUfunction kernel, const char *name, unsigned value) {
    std::vector<long> counts(threads);
    std::vector<double> updating(threads), launching(threads);
    double seconds = together(threads, [&](CUstream stream, int t) {
        CUevent event;
        CU(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
        std::vector<Chain> chains;
        if (kind != PLAIN)
            for (int i = 0; i < 4; i++) chains.emplace_back(size, kernel, kind == UPDATED_WRITE ? Chain::WRITE : kind >= UPDATED_MARK ? Chain::MARK : Chain::NOTHING, words_on_device + t * 256);
        for (auto &chain : chains) {
            chain.update(kernel, value);
            CU(cuGraphLaunch(chain.exec, stream));
        }
        return [=, &count = counts[t], &update = updating[t], &launch = launching[t], turn = 0u, ticket = 0u]() mutable {
            CUdeviceptr pointer = 0;
            void *arguments[] = {&pointer, &value};
            for (int i = 0; i < 256; i += size) {
                if (kind == PLAIN) {
                    for (int n = 0; n < size; n++) CU(cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, stream, arguments, nullptr));
                } else {
                    auto &chain = chains[i / size % 4];
                    auto begin = Clock::now();
                    if (kind == OTHERS_MARK) chain.shuffle(++turn);
                    else if (kind != KEPT) chain.update(kernel, value);
                    if (kind >= UPDATED_MARK) chain.sign(words_on_device + t * 256, ++ticket);
                    auto middle = Clock::now();
                    CU(cuGraphLaunch(chain.exec, stream));
                    update += std::chrono::duration<double>(middle - begin).count();
                    launch += seconds_since(middle);
                }
                if (kind < UPDATED_WRITE) CU(cuEventRecord(event, stream));
            }
            CU(cuStreamSynchronize(stream));
            count += 256;
        };
    });
    long sum = 0;
    double update = 0, launch = 0;
    for (int t = 0; t < threads; t++) sum += counts[t], update += updating[t], launch += launching[t];
    printf("%-6s | %-32s | %2d a batch | %2d threads | %9.0f a second | update %6.2f us a kernel, launch %6.2f us a kernel\n", name, kinds[kind], size, threads, sum / seconds, update * 1e6 / sum,
           launch * 1e6 / sum);
    fflush(stdout);
}

enum Way { WRITE_VALUE, MEM_OP, FILL_WORD, GRAPH_WRITE, GRAPH_FILL, GRAPH_UPDATED_WRITE, GRAPH_UPDATED_FILL, GRAPH_MARK, LAUNCH_MARK };
static const char *ways[] = {"launch, WriteValue", "launch, BatchMemOp", "launch, fill of 4 bytes", "graph of kernel and WriteValue", "graph of kernel and fill", "graph of kernel (updated) and WriteValue", "graph of kernel (updated) and fill", "graph of kernel (updated) and mark", "launch, launch of mark"};

static void wait(int threads, Way way) {
    std::vector<std::vector<double>> times(threads);
    double seconds = together(threads, [&](CUstream stream, int t) {
        CUdeviceptr address = words_on_device + t * 256;
        volatile unsigned *word = words + t * 64;
        Chain chain(1, none, way == GRAPH_WRITE || way == GRAPH_UPDATED_WRITE ? Chain::WRITE : way == GRAPH_MARK ? Chain::MARK : Chain::FILL, address);
        return [=, &mine = times[t]]() mutable {
            *word = 0;
            CUdeviceptr pointer = 0;
            unsigned value = 0;
            void *arguments[] = {&pointer, &value};
            auto begin = Clock::now();
            CUstreamBatchMemOpParams op{};
            unsigned one = 1;
            void *both[] = {&address, &one};
            if (way < GRAPH_WRITE || way == LAUNCH_MARK) CU(cuLaunchKernel(none, 1, 1, 1, 1, 1, 1, 0, stream, arguments, nullptr));
            switch (way) {
            case WRITE_VALUE: CU(cuStreamWriteValue32(stream, address, 1, 0)); break;
            case MEM_OP:
                op.writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32, op.writeValue.address = address, op.writeValue.value = 1;
                CU(cuStreamBatchMemOp(stream, 1, &op, 0));
                break;
            case FILL_WORD: CU(cuMemsetD32Async(address, 1, 1, stream)); break;
            case LAUNCH_MARK: CU(cuLaunchKernel(mark, 1, 1, 1, 1, 1, 1, 0, stream, both, nullptr)); break;
            case GRAPH_MARK: chain.sign(address, 1);
            case GRAPH_UPDATED_WRITE:
            case GRAPH_UPDATED_FILL: chain.update(none, 1);
            default: CU(cuGraphLaunch(chain.exec, stream));
            }
            while (*word != 1) {}
            mine.push_back(seconds_since(begin) * 1e6);
        };
    });
    std::vector<double> merged;
    for (auto &one : times) merged.insert(merged.end(), one.begin(), one.end());
    std::sort(merged.begin(), merged.end());
    printf("%-44s | %2d threads | median %7.2f us, p99 %7.2f us, %9.0f a second\n", ways[way], threads, merged[merged.size() / 2], merged[merged.size() * 99 / 100], merged.size() / seconds);
    fflush(stdout);
}


// Eight threads wait for kernels of so many microseconds; how much later than that they know, and the processor's time.
static double processor() {
    timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return now.tv_sec + now.tv_nsec * 1e-9;
}
static void blocked(int threads, unsigned micros, int way) {
    static const char *names[] = {"word, polled after sleeps of 50 us", "blocking event", "host function", "word, spun for"};
    std::vector<std::vector<double>> times(threads);
    double before = processor();
    double seconds = together(threads, [&](CUstream stream, int t) {
        CUevent event;
        CU(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING | CU_EVENT_BLOCKING_SYNC));
        CUdeviceptr address = words_on_device + t * 256;
        volatile unsigned *word = words + t * 64;
        return [=, &mine = times[t]]() mutable {
            *word = 0;
            CUdeviceptr pointer = 0;
            unsigned value = micros * 1000;
            void *arguments[] = {&pointer, &value};
            std::atomic<int> told{0};
            auto begin = Clock::now();
            CU(cuLaunchKernel(busy, 1, 1, 1, 1, 1, 1, 0, stream, arguments, nullptr));
            if (way == 0 || way == 3) CU(cuStreamWriteValue32(stream, address, 1, 0));
            if (way == 1) CU(cuEventRecord(event, stream));
            if (way == 2) CU(cuLaunchHostFunc(stream, [](void *told) { *(std::atomic<int> *)told = 1; ((std::atomic<int> *)told)->notify_one(); }, &told));
            if (way == 0) while (*word != 1) usleep(50);
            if (way == 3) while (*word != 1) {}
            if (way == 1) CU(cuEventSynchronize(event));
            if (way == 2) told.wait(0);
            mine.push_back(seconds_since(begin) * 1e6 - micros);
        };
    });
    std::vector<double> merged;
    for (auto &one : times) merged.insert(merged.end(), one.begin(), one.end());
    std::sort(merged.begin(), merged.end());
    printf("kernels of %5u us, %-36s | %2d threads | late by median %7.2f us, p99 %7.2f us, processor %5.1f %%\n", micros, names[way], threads, merged[merged.size() / 2], merged[merged.size() * 99 / 100], (processor() - before) / seconds * 100);
    fflush(stdout);
}

// On how many multiprocessors a graph's kernels run in a stream of a green context, by the context in which the
// graph was made.
static void green(CUdevice device) {
    CUdevResource all, part;
    unsigned groups = 1;
    CUdevResourceDesc description;
    CUgreenCtx green;
    CUcontext inside;
    CUstream stream;
    CUdeviceptr seen;
    unsigned host[256];
    CU(cuDeviceGetDevResource(device, &all, CU_DEV_RESOURCE_TYPE_SM));
    CU(cuDevSmResourceSplitByCount(&part, &groups, &all, nullptr, 0, 16));
    CU(cuDevResourceGenerateDesc(&description, &part, 1));
    CU(cuGreenCtxCreate(&green, description, device, CU_GREEN_CTX_DEFAULT_STREAM));
    CU(cuCtxFromGreenCtx(&inside, green));
    CU(cuGreenCtxStreamCreate(&stream, green, CU_STREAM_NON_BLOCKING, 0));
    CU(cuMemAlloc(&seen, 1024));
    for (int way = 0; way < 6; way++) {
        CU(cuMemsetD32(seen, 0, 256));
        CU(cuCtxSynchronize());
        CU(cuCtxSetCurrent(way == 1 ? inside : context));
        unsigned value = 0;
        void *arguments[] = {&seen, &value};
        CUDA_KERNEL_NODE_PARAMS params = Chain::of(where, arguments);
        params.gridDimX = 4096;
        if (way == 2 || way == 5) params.ctx = inside;
        if (way == 4) CU(cuCtxSetCurrent(inside));
        CUgraph graph;
        CUgraphNode node;
        CUgraphExec exec;
        CU(cuGraphCreate(&graph, 0));
        CUresult added = cuGraphAddKernelNode(&node, graph, nullptr, 0, &params);
        CUresult made = cuGraphInstantiate(&exec, graph, 0);
        CUresult launched = CUDA_SUCCESS, updated = CUDA_SUCCESS;
        if (way == 3) CU(cuLaunchKernel(where, 4096, 1, 1, 1, 1, 1, 0, stream, arguments, nullptr));
        else {
            CU(cuCtxSetCurrent(context));
            if (way >= 4) updated = cuGraphExecKernelNodeSetParams(exec, node, &params);
            launched = cuGraphLaunch(exec, stream);
        }
        CU(cuStreamSynchronize(stream));
        CU(cuCtxSetCurrent(context));
        CU(cuMemcpyDtoH(host, seen, 1024));
        int count = 0;
        for (unsigned one : host) count += one;
        static const char *names[] = {"made in the primary context", "made with the green one current", "node of the green one", "(a launch)", "made with the green one current, updated with the primary one", "node of the green one, updated with it"};
        printf("green context of %u: %s: %d %d %d %d: %d multiprocessors\n", part.sm.smCount, names[way], added, made, updated, launched, count);
    }
}

// Launches of several streams as branches of one graph.
static void branches(int threads, int count) {
    std::vector<std::vector<double>> times(threads);
    double seconds = together(threads, [&](CUstream stream, int t) {
        CUgraph graph;
        CUgraphExec exec;
        std::vector<CUgraphNode> nodes(count), marks(count);
        CU(cuGraphCreate(&graph, 0));
        CUdeviceptr address = words_on_device + t * 256;
        unsigned value = 1;
        void *arguments[] = {&address, &value};
        CUDA_KERNEL_NODE_PARAMS kernel = Chain::of(none, arguments), last = Chain::of(mark, arguments);
        for (int i = 0; i < count; i++) {
            CU(cuGraphAddKernelNode(&nodes[i], graph, nullptr, 0, &kernel));
            CU(cuGraphAddKernelNode(&marks[i], graph, &nodes[i], 1, &last));
        }
        CU(cuGraphInstantiate(&exec, graph, 0));
        return [=, &mine = times[t]]() mutable {
            volatile unsigned *word = words + t * 64;
            for (int i = 0; i < count; i++) word[i] = 0;
            auto begin = Clock::now();
            for (int i = 0; i < count; i++) {
                CUdeviceptr mine = address + i * 4;
                void *arguments[] = {&mine, &value};
                CUDA_KERNEL_NODE_PARAMS kernel = Chain::of(none, arguments), last = Chain::of(mark, arguments);
                CU(cuGraphExecKernelNodeSetParams(exec, nodes[i], &kernel));
                CU(cuGraphExecKernelNodeSetParams(exec, marks[i], &last));
            }
            CU(cuGraphLaunch(exec, stream));
            for (int i = 0; i < count; i++)
                while (word[i] != 1) {}
            mine.push_back(seconds_since(begin) * 1e6);
        };
    });
    std::vector<double> merged;
    for (auto &one : times) merged.insert(merged.end(), one.begin(), one.end());
    std::sort(merged.begin(), merged.end());
    printf("graph of %2d branches of kernel and mark, updated | %2d threads | median %7.2f us, p99 %7.2f us, %9.0f kernels a second\n", count, threads, merged[merged.size() / 2], merged[merged.size() * 99 / 100],
           merged.size() / seconds * count);
    fflush(stdout);
}

// Whether each launch of a graph keeps its parameters when they are changed while it waits.
static void kept() {
    CUstream stream;
    CUdeviceptr list;
    std::vector<unsigned> host(4096);
    CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CU(cuMemAlloc(&list, 4096 * 4));
    Chain chain(16, mark, Chain::NOTHING, 0);
    unsigned pause = 5000000;
    CUdeviceptr pointer = 0;
    void *first[] = {&pointer, &pause};
    CU(cuLaunchKernel(busy, 1, 1, 1, 1, 1, 1, 0, stream, first, nullptr));
    for (unsigned round = 0; round < 256; round++) {
        for (unsigned i = 0; i < 16; i++) {
            CUdeviceptr at = list + (round * 16 + i) * 4;
            unsigned value = round * 16 + i + 1;
            void *arguments[] = {&at, &value};
            CUDA_KERNEL_NODE_PARAMS params = Chain::of(mark, arguments);
            CU(cuGraphExecKernelNodeSetParams(chain.exec, chain.nodes[i], &params));
        }
        CU(cuGraphLaunch(chain.exec, stream));
    }
    auto begin = Clock::now();
    CU(cuStreamSynchronize(stream));
    printf("256 launches of one graph of 16, each with other parameters, behind a kernel of 5 ms: issued %f ms before the end; ", seconds_since(begin) * 1e3);
    CU(cuMemcpyDtoH(host.data(), list, 4096 * 4));
    int wrong = 0;
    for (unsigned i = 0; i < 4096; i++) wrong += host[i] != i + 1;
    printf("%d wrong\n", wrong);
    auto start = Clock::now();
    for (int i = 0; i < 20; i++) Chain(16, none, Chain::MARK, words_on_device);
    size_t before, after, total;
    CU(cuMemGetInfo(&before, &total));
    printf("instantiating a graph of 17: %f us\n", seconds_since(start) * 1e6 / 20);
    for (int i = 0; i < 500; i++) {
        Chain one(32, none, Chain::MARK, words_on_device);
        CU(cuGraphLaunch(one.exec, stream));
    }
    CU(cuStreamSynchronize(stream));
    CU(cuMemGetInfo(&after, &total));
    printf("500 graphs of 33: %f KiB of device memory each\n", (before - after) / 1024.0 / 500);
}

// Launch of 100 us and wait beside kernels of another stream that fill the device with blocks of 300 to 600 us: how long it
// takes until the kernel's end is known, by who tells of it.
static void crowded() {
    static const char *names[] = {"launch, WriteValue", "graph of kernel and mark", "graph of kernel and mark of the highest priority"};
    CUstream others, stream;
    int least, greatest;
    CU(cuCtxGetStreamPriorityRange(&least, &greatest));
    CU(cuStreamCreate(&others, CU_STREAM_NON_BLOCKING));
    CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    for (int way = 0; way < 3; way++) {
        CUdeviceptr pointer = 0, address = words_on_device;
        unsigned pause = 300000, one = 1;
        void *crowding[] = {&pointer, &pause}, *marking[] = {&address, &one};
        CUgraph graph;
        CUgraphNode nodes[2];
        CUgraphExec exec;
        unsigned length = 100000;
        void *working[] = {&pointer, &length};
        CUDA_KERNEL_NODE_PARAMS first = Chain::of(busy, working), second = Chain::of(mark, marking);
        CU(cuGraphCreate(&graph, 0));
        CU(cuGraphAddKernelNode(&nodes[0], graph, nullptr, 0, &first));
        CU(cuGraphAddKernelNode(&nodes[1], graph, nodes, 1, &second));
        if (way == 2) {
            CUlaunchAttributeValue priority{};
            priority.priority = greatest;
            CU(cuGraphKernelNodeSetAttribute(nodes[1], CU_LAUNCH_ATTRIBUTE_PRIORITY, &priority));
        }
        CU(cuGraphInstantiate(&exec, graph, way == 2 ? CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY : 0));
        std::vector<double> times;
        std::atomic<bool> stop{false};
        // Two of them are always with the driver: a grid of some 10 ms follows another.
        std::thread crowding_thread([&] {
            CU(cuCtxSetCurrent(context));
            CUevent events[2];
            for (auto &event : events) CU(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
            for (int i = 0; !stop; i++) {
                CU(cuEventSynchronize(events[i % 2]));
                CU(cuLaunchKernel(crowd, 132 * 2 * 22, 1, 1, 1024, 1, 1, 0, others, crowding, nullptr));
                CU(cuEventRecord(events[i % 2], others));
            }
        });
        usleep(30000);
        for (int i = 0; i < 60; i++) {
            words[0] = 0;
            auto begin = Clock::now();
            if (way == 0) CU(cuLaunchKernel(busy, 1, 1, 1, 1, 1, 1, 0, stream, working, nullptr));
            if (way == 0) CU(cuStreamWriteValue32(stream, address, 1, 0));
            if (way > 0) CU(cuGraphLaunch(exec, stream));
            while (!words[0]) {}
            times.push_back(seconds_since(begin) * 1e6);
            usleep(1000);
        }
        stop = true;
        crowding_thread.join();
        CU(cuCtxSynchronize());
        std::sort(times.begin(), times.end());
        printf("beside a full device: %-50s median %8.2f us, p99 %8.2f us\n", names[way], times[times.size() / 2], times[times.size() * 99 / 100]);
    }
}

// The wait for a graph of a kernel and a mark when only so many threads at a time are in their launches.
static void in_turn(int threads, int width) {
    static std::atomic<unsigned> next{0}, served{0};
    std::vector<std::vector<double>> times(threads);
    double seconds = together(threads, [&](CUstream stream, int t) {
        CUdeviceptr address = words_on_device + t * 256;
        Chain chain(1, none, Chain::MARK, address);
        return [=, &mine = times[t]]() mutable {
            volatile unsigned *word = words + t * 64;
            *word = 0;
            auto begin = Clock::now();
            chain.sign(address, 1);
            chain.update(none, 1);
            unsigned turn = next++;
            while (int(turn - served.load(std::memory_order_acquire)) >= width) __builtin_ia32_pause();
            CU(cuGraphLaunch(chain.exec, stream));
            served.fetch_add(1, std::memory_order_release);
            while (*word != 1) {}
            mine.push_back(seconds_since(begin) * 1e6);
        };
    });
    std::vector<double> merged;
    for (auto &one : times) merged.insert(merged.end(), one.begin(), one.end());
    std::sort(merged.begin(), merged.end());
    printf("graph of kernel and mark, %2d at a time           | %2d threads | median %7.2f us, p99 %7.2f us, %9.0f a second\n", width, threads, merged[merged.size() / 2], merged[merged.size() * 99 / 100], merged.size() / seconds);
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
    CU(cuModuleGetFunction(&busy, module, "busy"));
    CU(cuModuleGetFunction(&mark, module, "mark"));
    CU(cuModuleGetFunction(&where, module, "where"));
    CU(cuModuleGetFunction(&crowd, module, "crowd"));
    crowded();
    for (int width : {1, 2, 3, 4, 16})
        for (int threads : {1, 8, 16}) in_turn(threads, width);
    kept();
    green(device);
    for (int way = 0; way < 4; way++) {
        blocked(1, 1000, way);
        blocked(8, 10000, way);
    }
    for (int threads : {1, 2})
        for (int count : {1, 2, 4, 8}) branches(threads, count);
    for (int threads : {1, 8, 16})
        for (int way = WRITE_VALUE; way <= LAUNCH_MARK; way++) wait(threads, Way(way));
    for (int threads : {1, 8, 16}) {
        for (int size : {1, 2, 4, 8, 16, 32})
            for (int kind = PLAIN; kind <= OTHERS_MARK; kind++)
                if (kind != KEPT && kind != UPDATED_WRITE) rate(threads, size, Kind(kind), none, "empty", 0);
    }
    for (int threads : {16, 32})
        for (int size : {2, 4, 8})
            for (Kind kind : {PLAIN, UPDATED_MARK}) rate(threads, size, kind, busy, "13 us", 13000);
    return 0;
}
