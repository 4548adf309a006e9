// needs: graphs pools
// What graphs keep and count: user objects of a graph that was updated, memory of graphs and of pools, nodes
// that stay where memory is, managed memory of graphs, kernels by name in a drawing.
#include <string>
#include <unistd.h>

#include "check.h"

__global__ void fill(int *p, int value) { p[threadIdx.x] = value + threadIdx.x; }
void ended(void *count) { __atomic_fetch_add((int *)count, 1, __ATOMIC_SEQ_CST); }

unsigned long long memory(cudaGraphMemAttributeType attribute) {
    unsigned long long bytes = 0;
    OK(cudaDeviceGetGraphMemAttribute(0, attribute, &bytes));
    return bytes;
}

int main() {
    cudaStream_t stream;
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    // An update takes the other graph's objects over, and lets its own go.
    static int count = 0;
    cudaGraph_t plain, holder;
    cudaGraphExec_t program;
    cudaGraphNode_t node;
    for (auto graph : {&plain, &holder}) {
        OK(cudaGraphCreate(graph, 0));
        OK(cudaGraphAddEmptyNode(&node, *graph, nullptr, 0));
    }
    cudaUserObject_t object;
    OK(cudaUserObjectCreate(&object, &count, ended, 1, cudaUserObjectNoDestructorSync));
    OK(cudaGraphRetainUserObject(holder, object, 1, cudaGraphUserObjectMove));
    OK(cudaGraphInstantiate(&program, plain, 0));
    cudaGraphExecUpdateResultInfo info;
    OK(cudaGraphExecUpdate(program, holder, &info));
    OK(cudaGraphDestroy(holder));
    usleep(100000);
    CHECK(__atomic_load_n(&count, __ATOMIC_SEQ_CST) == 0, "ended while the executable graph holds it");
    OK(cudaGraphExecUpdate(program, plain, &info));
    for (int k = 0; k < 500 && !__atomic_load_n(&count, __ATOMIC_SEQ_CST); k++) usleep(10000);
    CHECK(__atomic_load_n(&count, __ATOMIC_SEQ_CST) == 1, "ended %d times", count);
    OK(cudaGraphExecDestroy(program));
    OK(cudaGraphDestroy(plain));

    // Memory counts from the first launch on.
    const size_t bytes = 1 << 20;
    cudaGraph_t graph;
    cudaGraphNode_t allocation, between, release, other;
    OK(cudaGraphCreate(&graph, 0));
    cudaMemAllocNodeParams params = {};
    params.poolProps.allocType = cudaMemAllocationTypePinned;
    params.poolProps.location.type = cudaMemLocationTypeDevice;
    params.bytesize = bytes;
    OK(cudaGraphAddMemAllocNode(&allocation, graph, nullptr, 0, &params));
    OK(cudaGraphAddEmptyNode(&between, graph, &allocation, 1));
    OK(cudaGraphAddMemFreeNode(&release, graph, &between, 1, params.dptr));
    OK(cudaGraphAddEmptyNode(&other, graph, nullptr, 0));
    for (auto node : {allocation, between, release, other}) FAILS(cudaGraphDestroyNode(node), cudaErrorNotSupported);
    FAILS(cudaGraphRemoveDependencies(graph, &allocation, &between, nullptr, 1), cudaErrorNotSupported);
    cudaGetLastError();
    OK(cudaGraphInstantiate(&program, graph, 0));
    CHECK(memory(cudaGraphMemAttrUsedMemCurrent) == 0 && memory(cudaGraphMemAttrReservedMemHigh) == 0, "%llu before a launch", memory(cudaGraphMemAttrUsedMemCurrent));
    for (int k = 0; k < 3; k++) OK(cudaGraphLaunch(program, stream));
    OK(cudaStreamSynchronize(stream));
    for (auto attribute : {cudaGraphMemAttrUsedMemCurrent, cudaGraphMemAttrUsedMemHigh, cudaGraphMemAttrReservedMemCurrent, cudaGraphMemAttrReservedMemHigh}) CHECK(memory(attribute) >= bytes, "attribute %d is %llu", attribute, memory(attribute));
    OK(cudaGraphExecDestroy(program));
    OK(cudaGraphDestroy(graph));
    OK(cudaDeviceGraphMemTrim(0));
    CHECK(memory(cudaGraphMemAttrUsedMemCurrent) == 0 && memory(cudaGraphMemAttrReservedMemCurrent) == 0 && memory(cudaGraphMemAttrUsedMemHigh) >= bytes, "%llu after all", memory(cudaGraphMemAttrUsedMemCurrent));
    unsigned long long zero = 0;
    OK(cudaDeviceSetGraphMemAttribute(0, cudaGraphMemAttrUsedMemHigh, &zero));
    CHECK(memory(cudaGraphMemAttrUsedMemHigh) == 0, "%llu", memory(cudaGraphMemAttrUsedMemHigh));

    // Managed memory of a graph. It is for kernels and copies: NVIDIA's driver maps it nowhere in the program.
    OK(cudaGraphCreate(&graph, 0));
    params.poolProps.allocType = cudaMemAllocationTypeManaged;
    OK(cudaGraphAddMemAllocNode(&allocation, graph, nullptr, 0, &params));
    int *managed = (int *)params.dptr, value = 30;
    void *arguments[] = {&managed, &value};
    cudaKernelNodeParams kernel = {};
    kernel.func = (void *)fill;
    kernel.gridDim = dim3(1);
    kernel.blockDim = dim3(64);
    kernel.kernelParams = arguments;
    OK(cudaGraphAddKernelNode(&node, graph, &allocation, 1, &kernel));
    OK(cudaGraphInstantiate(&program, graph, 0));
    OK(cudaGraphLaunch(program, stream));
    OK(cudaStreamSynchronize(stream));
    int read[64];
    OK(cudaMemcpy(read, managed, sizeof read, cudaMemcpyDefault));
    for (int i = 0; i < 64; i++) CHECK(read[i] == 30 + i, "element %d is %d", i, read[i]);
    OK(cudaFreeAsync(managed, stream));
    OK(cudaStreamSynchronize(stream));
    OK(cudaGraphExecDestroy(program));
    // A drawing names its kernels.
    char path[] = "/tmp/graph_lifetimes.XXXXXX";
    int file = mkstemp(path);
    CHECK(file >= 0, "no file");
    OK(cudaGraphDebugDotPrint(graph, path, 0));
    std::string text(1 << 16, 0);
    text.resize(pread(file, &text[0], text.size(), 0));
    close(file);
    unlink(path);
    CHECK(text.find("digraph dot {") == 0 && text.find("_Z4fillPii") != std::string::npos && text.find("->") != std::string::npos, "%s", text.c_str());
    OK(cudaGraphDestroy(graph));

    // A pool counts what was asked for, not the block that it is given from.
    cudaMemPool_t pool;
    OK(cudaDeviceGetDefaultMemPool(&pool, 0));
    unsigned long long keep = ~0ull, used;
    OK(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep));
    void *first, *second;
    auto in_use = [&] {
        OK(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemCurrent, &used));
        return used;
    };
    OK(cudaMallocAsync(&first, 100000, stream));
    CHECK(in_use() == 100000, "%llu", used);
    OK(cudaFreeAsync(first, stream));
    OK(cudaMallocAsync(&second, 70000, stream));
    CHECK(in_use() == 70000, "%llu", used);
    OK(cudaFreeAsync(second, stream));
    CHECK(in_use() == 0, "%llu", used);
    OK(cudaStreamSynchronize(stream));
    printf("objects, memory, nodes, a drawing\n");
    return check::pass();
}
