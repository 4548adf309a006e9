// Which driver calls wait for kernels of other streams: the question behind forward progress between
// clients, since all of them share one context. A kernel stays on the device; each call is made beside
// it, on a thread of its own, and is told to wait if it has not returned after 300 ms.
//
//   nvcc -std=c++17 -gencode arch=compute_75,code=compute_75 -o driver_calls driver_calls.cu -lcuda
//   CUDA_DEVICE_MAX_CONNECTIONS=32 CUDA_MODULE_LOADING=EAGER ./driver_calls [part of a name]
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <unistd.h>
#include <vector>

#include <cuda.h>

#define CU(call)                                                                                   \
    do {                                                                                           \
        CUresult result = (call);                                                                  \
        if (result != CUDA_SUCCESS) printf("    %s: %d\n", #call, int(result));                    \
    } while (0)

static std::string module_text(int number, bool variable) {
    std::string name = std::to_string(number);
    return ".version 7.0\n.target sm_75\n.address_size 64\n" +
           (variable ? ".global .align 4 .u32 variable" + name + ";\n" : "") + ".visible .entry work" + name + "(.param .u64 flag) {\n" +
           ".reg .b64 %rd<4>; .reg .b32 %r<4>; .reg .pred %p<2>;\n" +
           "ld.param.u64 %rd1, [flag]; mov.u32 %r1, " + name + "; st.global.u32 [%rd1], %r1; ret;\n}\n";
}

// Stays until the flag, mapped host memory, is 1, or for ten seconds.
static const char *spin_text = R"(.version 7.0
.target sm_75
.address_size 64
.visible .entry spin(.param .u64 flag) {
    .reg .b64 %rd<6>; .reg .b32 %r<4>; .reg .pred %p<3>;
    ld.param.u64 %rd1, [flag];
    mov.u64 %rd2, %globaltimer;
again:
    ld.volatile.global.u32 %r1, [%rd1];
    setp.ne.u32 %p1, %r1, 0;
    @%p1 bra done;
    mov.u64 %rd3, %globaltimer;
    sub.u64 %rd4, %rd3, %rd2;
    setp.lt.u64 %p2, %rd4, 10000000000;
    @%p2 bra again;
done:
    ret;
}
.visible .entry none() { ret; }
.visible .entry deep(.param .u64 out) {
    .local .align 8 .b8 depot[20000];
    .reg .b64 %rd<6>; .reg .b32 %r<4>;
    ld.param.u64 %rd1, [out];
    mov.u64 %rd2, depot;
    ld.global.u32 %r1, [%rd1];
    and.b32 %r1, %r1, 1020;
    cvt.u64.u32 %rd3, %r1;
    add.u64 %rd4, %rd2, %rd3;
    st.local.u32 [%rd4], %r1;
    ld.local.u32 %r2, [%rd4];
    st.global.u32 [%rd1], %r2;
    ret;
}
)";

static CUcontext context;
static unsigned *flag;
static CUdeviceptr flag_on_device;
static CUfunction spin, none, deep;
static CUstream busy, other;
static const char *filter;

// Runs `call` beside a kernel that stays; says whether the call returned and, if it gave work to `other`,
// whether that work was done.
static void beside(const char *name, std::function<void()> call, std::function<void()> before = nullptr, bool work = false) {
    if (filter && !strstr(name, filter)) return;
    if (before) before();
    CU(cuCtxSynchronize());
    *(volatile unsigned *)flag = 0;
    void *parameters[] = {&flag_on_device};
    CU(cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, busy, parameters, nullptr));
    usleep(2000);
    std::atomic<int> returned{0};
    auto begin = std::chrono::steady_clock::now();
    std::atomic<double> took{0};
    std::thread thread([&] {
        cuCtxSetCurrent(context);
        call();
        took = std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count();
        returned = 1;
    });
    for (int i = 0; i < 3000 && !returned; i++) usleep(100);
    bool in_time = returned;
    const char *done = "";
    if (in_time && work) {
        CUresult state = CUDA_ERROR_NOT_READY;
        for (int i = 0; i < 300 && state == CUDA_ERROR_NOT_READY; i++) usleep(1000), state = cuStreamQuery(other);
        done = state == CUDA_SUCCESS ? ", its work ran" : ", ITS WORK WAITED";
    }
    bool still = cuStreamQuery(busy) == CUDA_ERROR_NOT_READY;
    *(volatile unsigned *)flag = 1;
    thread.join();
    CU(cuCtxSynchronize());
    printf("%-44s %s %10.1f us%s%s\n", name, in_time ? "returns" : "WAITS  ", in_time ? took.load() : 0.0, done, still ? "" : " (the kernel had ended)");
    fflush(stdout);
}

int main(int words, char **word) {
    filter = words > 1 ? word[1] : nullptr;
    CUdevice device;
    CU(cuInit(0));
    CU(cuDeviceGet(&device, 0));
    CU(cuDevicePrimaryCtxRetain(&context, device));
    CU(cuCtxSetCurrent(context));
    CU(cuMemHostAlloc((void **)&flag, 4096, CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_PORTABLE));
    CU(cuMemHostGetDevicePointer(&flag_on_device, flag, 0));
    CUmodule module;
    CU(cuModuleLoadData(&module, spin_text));
    CU(cuModuleGetFunction(&spin, module, "spin"));
    CU(cuModuleGetFunction(&none, module, "none"));
    CU(cuModuleGetFunction(&deep, module, "deep"));
    CU(cuStreamCreate(&busy, CU_STREAM_NON_BLOCKING));
    CU(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
    CU(cuLaunchKernel(none, 1, 1, 1, 1, 1, 1, 0, other, nullptr, nullptr));
    CUdeviceptr buffer;
    CU(cuMemAlloc(&buffer, 64 << 20));
    CU(cuMemsetD8(buffer, 0, 64 << 20));
    char *pinned, *pageable = (char *)malloc(64 << 20);
    memset(pageable, 1, 64 << 20);
    CU(cuMemHostAlloc((void **)&pinned, 64 << 20, 0));
    int loading = 0;
    cuModuleGetLoadingMode((CUmoduleLoadingMode *)&loading);
    printf("module loading %s\n", loading == 1 ? "eager" : "lazy");

    beside("nothing", [] {});
    beside("cuLaunchKernel, loaded", [&] { CU(cuLaunchKernel(none, 1, 1, 1, 1, 1, 1, 0, other, nullptr, nullptr)); }, nullptr, true);

    // Modules.
    int number = 0;
    CUmodule fresh;
    CUfunction work;
    std::string text;
    auto load = [&] {
        text = module_text(++number, true);
        CU(cuModuleLoadData(&fresh, text.c_str()));
    };
    auto get = [&] { CU(cuModuleGetFunction(&work, fresh, ("work" + std::to_string(number)).c_str())); };
    auto launch = [&] {
        void *parameters[] = {&buffer};
        CU(cuLaunchKernel(work, 1, 1, 1, 1, 1, 1, 0, other, parameters, nullptr));
    };
    beside("cuModuleLoadData, PTX", load);
    beside("cuModuleGetFunction", get);
    beside("cuLaunchKernel, first of a module", launch, nullptr, true);
    beside("cuModuleUnload", [&] { CU(cuModuleUnload(fresh)); });
    beside("cuModuleLoadData, PTX without variables", [&] {
        text = module_text(++number, false);
        CU(cuModuleLoadData(&fresh, text.c_str()));
    });
    beside("a launch beside a load that waits", [&] {
        std::thread loader([&] {
            cuCtxSetCurrent(context);
            load();
        });
        usleep(50000);
        CU(cuLaunchKernel(none, 1, 1, 1, 1, 1, 1, 0, other, nullptr, nullptr));
        std::thread([&, loader = std::move(loader)]() mutable { loader.join(); }).detach();
    }, nullptr, true);
    for (int i = 0; i < 3; i++) beside("load, get, launch", [&] { load(), get(), launch(); }, nullptr, true);
    CUlinkState link;
    std::vector<char> cubin;
    auto make_cubin = [&] {
        void *image;
        size_t bytes;
        text = module_text(++number, true);
        CU(cuLinkCreate(0, nullptr, nullptr, &link));
        CU(cuLinkAddData(link, CU_JIT_INPUT_PTX, (void *)text.c_str(), text.size() + 1, "x", 0, nullptr, nullptr));
        CU(cuLinkComplete(link, &image, &bytes));
        cubin.assign((char *)image, (char *)image + bytes);
        CU(cuLinkDestroy(link));
    };
    beside("cuLinkCreate, Add, Complete, Destroy", make_cubin);
    for (int i = 0; i < 3; i++) {
        beside("cuModuleLoadData, cubin", [&] { CU(cuModuleLoadData(&fresh, cubin.data())); }, make_cubin);
        beside("get, first launch, cubin", [&] { get(), launch(); }, nullptr, true);
    }
    CUlibrary library;
    CUkernel kernel;
    beside("cuLibraryLoadData, cubin", [&] { CU(cuLibraryLoadData(&library, cubin.data(), nullptr, nullptr, 0, nullptr, nullptr, 0)); }, make_cubin);
    beside("cuLibraryGetKernel", [&] { CU(cuLibraryGetKernel(&kernel, library, ("work" + std::to_string(number)).c_str())); });
    beside("cuLaunchKernel of a CUkernel, first", [&] { work = (CUfunction)kernel; launch(); }, nullptr, true);
    beside("cuLibraryUnload", [&] { CU(cuLibraryUnload(library)); });
    beside("cuFuncSetAttribute, shared memory", [&] { CU(cuFuncSetAttribute(none, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 100000)); });
    beside("cuLaunchKernel, 100 kB of shared memory", [&] { CU(cuLaunchKernel(none, 1, 1, 1, 1, 1, 1, 100000, other, nullptr, nullptr)); }, nullptr, true);
    beside("cuLaunchKernel, 20 kB of local memory", [&] { void *p[] = {&buffer}; CU(cuLaunchKernel(deep, 1, 1, 1, 1, 1, 1, 0, other, p, nullptr)); }, nullptr, true);
    beside("the same again", [&] { void *p[] = {&buffer}; CU(cuLaunchKernel(deep, 1, 1, 1, 1, 1, 1, 0, other, p, nullptr)); }, nullptr, true);
    beside("cuLaunchCooperativeKernel", [&] { CU(cuLaunchCooperativeKernel(none, 1, 1, 1, 1, 1, 1, 0, other, nullptr)); }, nullptr, true);

    // Memory.
    CUdeviceptr memory, place;
    void *host;
    CUmemGenericAllocationHandle physical;
    CUmemAllocationProp prop{};
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
    prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    CUmemAccessDesc access{prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    const size_t size = 64 << 20;
    beside("cuMemAlloc", [&] { CU(cuMemAlloc(&memory, size)); });
    beside("cuMemFree", [&] { CU(cuMemFree(memory)); });
    beside("cuMemAddressReserve", [&] { CU(cuMemAddressReserve(&place, size, 0, 0, 0)); });
    beside("cuMemCreate", [&] { CU(cuMemCreate(&physical, size, &prop, 0)); });
    beside("cuMemMap", [&] { CU(cuMemMap(place, size, 0, physical, 0)); });
    beside("cuMemSetAccess", [&] { CU(cuMemSetAccess(place, size, &access, 1)); });
    beside("cuMemsetD8Async", [&] { CU(cuMemsetD8Async(place, 0, size, other)); }, nullptr, true);
    beside("cuMemUnmap", [&] { CU(cuMemUnmap(place, size)); });
    beside("cuMemRelease", [&] { CU(cuMemRelease(physical)); });
    beside("cuMemAddressFree", [&] { CU(cuMemAddressFree(place, size)); });
    beside("cuMemHostAlloc", [&] { CU(cuMemHostAlloc(&host, size, 0)); });
    beside("cuMemFreeHost", [&] { CU(cuMemFreeHost(host)); });
    beside("cuMemHostRegister", [&] { CU(cuMemHostRegister(pageable, size, CU_MEMHOSTREGISTER_DEVICEMAP)); });
    beside("cuMemHostUnregister", [&] { CU(cuMemHostUnregister(pageable)); });
    beside("cuMemAllocManaged", [&] { CU(cuMemAllocManaged(&memory, size, CU_MEM_ATTACH_GLOBAL)); });
    beside("cuMemFree, managed", [&] { CU(cuMemFree(memory)); });
    beside("cuMemAllocAsync", [&] { CU(cuMemAllocAsync(&memory, size, other)); }, nullptr, true);
    beside("cuMemFreeAsync", [&] { CU(cuMemFreeAsync(memory, other)); }, nullptr, true);
    size_t a, b;
    beside("cuMemGetInfo", [&] { CU(cuMemGetInfo(&a, &b)); });

    // Copies.
    beside("cuMemcpyHtoDAsync, pinned, 4 B", [&] { CU(cuMemcpyHtoDAsync(buffer, pinned, 4, other)); }, nullptr, true);
    beside("cuMemcpyHtoDAsync, pageable, 4 B", [&] { CU(cuMemcpyHtoDAsync(buffer, pageable, 4, other)); }, nullptr, true);
    beside("cuMemcpyHtoDAsync, pinned, 64 MiB", [&] { CU(cuMemcpyHtoDAsync(buffer, pinned, size, other)); }, nullptr, true);
    beside("cuMemcpyDtoHAsync, pinned, 4 B", [&] { CU(cuMemcpyDtoHAsync(pinned, buffer, 4, other)); }, nullptr, true);
    beside("cuMemcpyDtoHAsync, pinned, 64 MiB", [&] { CU(cuMemcpyDtoHAsync(pinned, buffer, size, other)); }, nullptr, true);
    beside("cuMemcpyDtoHAsync, pageable, 4 B", [&] { CU(cuMemcpyDtoHAsync(pageable, buffer, 4, other)); }, nullptr, true);
    beside("cuMemcpyDtoDAsync", [&] { CU(cuMemcpyDtoDAsync(buffer, buffer + size / 2, size / 2, other)); }, nullptr, true);

    // Objects.
    CUstream stream;
    CUevent event;
    beside("cuStreamCreate", [&] { CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING)); });
    beside("first launch in a stream", [&] { CU(cuLaunchKernel(none, 1, 1, 1, 1, 1, 1, 0, stream, nullptr, nullptr)); });
    beside("cuStreamDestroy", [&] { CU(cuStreamDestroy(stream)); });
    beside("cuStreamCreateWithPriority, Destroy", [&] { CU(cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, -5)); CU(cuStreamDestroy(stream)); });
    beside("cuEventCreate", [&] { CU(cuEventCreate(&event, 0)); });
    beside("cuEventRecord", [&] { CU(cuEventRecord(event, other)); }, nullptr, true);
    beside("cuEventDestroy", [&] { CU(cuEventDestroy(event)); });
    beside("cuStreamWriteValue32, host", [&] { CU(cuStreamWriteValue32(other, flag_on_device + 64, 1, 0)); }, nullptr, true);
    beside("cuStreamWriteValue32, device", [&] { CU(cuStreamWriteValue32(other, buffer, 1, 0)); }, nullptr, true);
    CUarray array;
    CUDA_ARRAY_DESCRIPTOR shape{1024, 1024, CU_AD_FORMAT_FLOAT, 1};
    CUtexObject texture;
    CUDA_RESOURCE_DESC resource{};
    CUDA_TEXTURE_DESC texture_desc{};
    beside("cuArrayCreate", [&] { CU(cuArrayCreate(&array, &shape)); });
    resource.resType = CU_RESOURCE_TYPE_ARRAY, resource.res.array.hArray = array;
    beside("cuTexObjectCreate", [&] { CU(cuTexObjectCreate(&texture, &resource, &texture_desc, nullptr)); });
    beside("cuTexObjectDestroy", [&] { CU(cuTexObjectDestroy(texture)); });
    beside("cuArrayDestroy", [&] { CU(cuArrayDestroy(array)); });
    beside("cuLaunchHostFunc", [&] { CU(cuLaunchHostFunc(other, [](void *) {}, nullptr)); }, nullptr, true);
    beside("cuCtxSetLimit, stack", [&] { CU(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 4096)); });
    beside("cuCtxSetLimit, printf", [&] { CU(cuCtxSetLimit(CU_LIMIT_PRINTF_FIFO_SIZE, 2 << 20)); });
    CUgraph graph;
    CUgraphExec exec;
    CUgraphNode node;
    CUDA_KERNEL_NODE_PARAMS params{};
    params.func = none, params.gridDimX = params.gridDimY = params.gridDimZ = params.blockDimX = params.blockDimY = params.blockDimZ = 1;
    CU(cuGraphCreate(&graph, 0));
    CU(cuGraphAddKernelNode(&node, graph, nullptr, 0, &params));
    beside("cuGraphInstantiate", [&] { CU(cuGraphInstantiate(&exec, graph, 0)); });
    // Each for itself returns, until the driver needs more memory for them.
    beside("cuGraphInstantiate of 33 kernels, 100 times", [&] {
        CUgraph chain;
        CUgraphNode last = nullptr;
        CU(cuGraphCreate(&chain, 0));
        for (int i = 0; i < 33; i++) CU(cuGraphAddKernelNode(&last, chain, last ? &last : nullptr, last ? 1 : 0, &params));
        for (int i = 0; i < 100; i++) {
            CUgraphExec each;
            CU(cuGraphInstantiate(&each, chain, 0));
        }
    });
    beside("cuGraphLaunch, first", [&] { CU(cuGraphLaunch(exec, other)); }, nullptr, true);
    beside("cuGraphExecKernelNodeSetParams", [&] { CU(cuGraphExecKernelNodeSetParams(exec, node, &params)); });
    beside("cuGraphLaunch", [&] { CU(cuGraphLaunch(exec, other)); }, nullptr, true);
    beside("cuGraphExecDestroy", [&] { CU(cuGraphExecDestroy(exec)); });
    CUdevResource all, part;
    CUdevResourceDesc description;
    CUgreenCtx green;
    unsigned groups = 1;
    CU(cuDeviceGetDevResource(device, &all, CU_DEV_RESOURCE_TYPE_SM));
    CU(cuDevSmResourceSplitByCount(&part, &groups, &all, nullptr, 0, 16));
    CU(cuDevResourceGenerateDesc(&description, &part, 1));
    beside("cuGreenCtxCreate", [&] { CU(cuGreenCtxCreate(&green, description, device, CU_GREEN_CTX_DEFAULT_STREAM)); });
    beside("cuGreenCtxStreamCreate", [&] { CU(cuGreenCtxStreamCreate(&stream, green, CU_STREAM_NON_BLOCKING, 0)); });
    beside("launch in a green context", [&] { CU(cuLaunchKernel(none, 1, 1, 1, 1, 1, 1, 0, stream, nullptr, nullptr)); });
    beside("destroy its stream", [&] { CU(cuStreamDestroy(stream)); });
    beside("cuGreenCtxDestroy", [&] { CU(cuGreenCtxDestroy(green)); });

    // The kernel that stays is in one green context, the calls are made in another or in none.
    CUgreenCtx greens[2];
    CUcontext contexts[2];
    CUstream streams[2];
    for (int i = 0; i < 2; i++) {
        CU(cuGreenCtxCreate(&greens[i], description, device, CU_GREEN_CTX_DEFAULT_STREAM));
        CU(cuCtxFromGreenCtx(&contexts[i], greens[i]));
        CU(cuGreenCtxStreamCreate(&streams[i], greens[i], CU_STREAM_NON_BLOCKING, 0));
    }
    CUstream plain = busy, plain_other = other;
    CUcontext primary = context;
    for (int where = 0; where < 2; where++) {
        busy = streams[0];
        context = where ? contexts[1] : primary;
        other = where ? streams[1] : plain_other;
        const char *names[][2] = {{"green kernel; load in the primary", "green kernel; load in another green"}, {"green kernel; get, launch, primary", "green kernel; get, launch, another green"}, {"green kernel; 24 kB local, primary", "green kernel; 24 kB local, another green"}};
        beside(names[0][where], load);
        beside(names[1][where], [&] { get(), launch(); }, nullptr, true);
        beside(names[0][where], [&] { CU(cuLibraryLoadData(&library, cubin.data(), nullptr, nullptr, 0, nullptr, nullptr, 0)); CU(cuLibraryGetKernel(&kernel, library, ("work" + std::to_string(number)).c_str())); CU(cuKernelGetFunction(&work, kernel)); }, make_cubin);
        beside(names[1][where], launch, nullptr, true);
    }
    busy = plain, other = plain_other, context = primary;

    // Streams that share a connection: kernels behind a kernel that waits.
    if (!filter || strstr("connections", filter))
        for (int streams : {2, 3, 5, 9, 17, 33}) {
            std::vector<CUstream> all(streams);
            for (auto &each : all) CU(cuStreamCreate(&each, CU_STREAM_NON_BLOCKING));
            for (auto &each : all) CU(cuLaunchKernel(none, 1, 1, 1, 1, 1, 1, 0, each, nullptr, nullptr));
            for (bool second : {false, true}) {
                CU(cuCtxSynchronize());
                *(volatile unsigned *)flag = 0;
                void *parameters[] = {&flag_on_device};
                CU(cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, all[0], parameters, nullptr));
                if (second) CU(cuLaunchKernel(none, 1, 1, 1, 1, 1, 1, 0, all[0], nullptr, nullptr));
                for (int i = 1; i < streams; i++) CU(cuLaunchKernel(none, 1, 1, 1, 1, 1, 1, 0, all[i], nullptr, nullptr));
                usleep(100000);
                int done = 0;
                for (int i = 1; i < streams; i++) done += cuStreamQuery(all[i]) == CUDA_SUCCESS;
                *(volatile unsigned *)flag = 1;
                CU(cuCtxSynchronize());
                printf("connections: %s, %d of %d other streams ran beside it\n", second ? "a second kernel behind the one that stays" : "one kernel that stays", done, streams - 1);
            }
            for (auto &each : all) CU(cuStreamDestroy(each));
        }
    return 0;
}
