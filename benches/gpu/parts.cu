// What a device's multiprocessors can be split into: in which steps, whether what a split leaves over can be
// used, whether green contexts of disjoint parts stay apart, and what making and ending one costs.
//
//   nvcc -O2 -std=c++20 -gencode arch=compute_75,code=compute_75 -o parts parts.cu -lcuda
//   ./parts
#include <algorithm>
#include <bitset>
#include <chrono>
#include <cstdio>
#include <cstdlib>
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
.visible .entry where(.param .u64 seen) {
    .reg .b64 %rd<6>; .reg .b32 %r<4>; .reg .pred %p<2>;
    ld.param.u64 %rd1, [seen];
    mov.u32 %r1, %smid;
    mul.wide.u32 %rd2, %r1, 4;
    add.u64 %rd1, %rd1, %rd2;
    mov.u32 %r2, 1;
    st.global.u32 [%rd1], %r2;
    mov.u64 %rd3, %globaltimer;
again:
    mov.u64 %rd4, %globaltimer;
    sub.u64 %rd5, %rd4, %rd3;
    setp.lt.u64 %p1, %rd5, 20000;
    @%p1 bra again;
    ret;
})";

using Seen = std::bitset<1024>;
static CUfunction where;
static CUdeviceptr words;
static CUdevice device;

static double now() {
    auto time = std::chrono::steady_clock::now().time_since_epoch();
    return std::chrono::duration<double, std::micro>(time).count();
}

static Seen seen(CUgreenCtx context) {
    CUstream stream;
    CU(cuGreenCtxStreamCreate(&stream, context, CU_STREAM_NON_BLOCKING, 0));
    CU(cuMemsetD32(words, 0, 1024));
    void *params[] = {&words};
    CU(cuLaunchKernel(where, 2048, 1, 1, 1024, 1, 1, 0, stream, params, nullptr));
    CU(cuStreamSynchronize(stream));
    unsigned found[1024];
    CU(cuMemcpyDtoH(found, words, sizeof found));
    CU(cuStreamDestroy(stream));
    Seen result;
    for (int i = 0; i < 1024; i++) result[i] = found[i] != 0;
    return result;
}

static CUresult make(CUgreenCtx *context, std::vector<CUdevResource> resources) {
    CUdevResourceDesc description;
    CUresult result = cuDevResourceGenerateDesc(&description, resources.data(), resources.size());
    if (result != CUDA_SUCCESS) return result;
    return cuGreenCtxCreate(context, description, device, CU_GREEN_CTX_DEFAULT_STREAM);
}

static void show(const char *name, std::vector<CUdevResource> resources) {
    CUgreenCtx context;
    unsigned count = 0;
    for (auto &resource : resources) count += resource.sm.smCount;
    CUresult result = make(&context, resources);
    if (result != CUDA_SUCCESS) {
        printf("  %-34s %3u asked, error %d\n", name, count, int(result));
        return;
    }
    printf("  %-34s %3u asked, %3zu seen\n", name, count, seen(context).count());
    CU(cuGreenCtxDestroy(context));
}

int main() {
    CU(cuInit(0));
    CU(cuDeviceGet(&device, 0));
    CUcontext primary;
    CU(cuDevicePrimaryCtxRetain(&primary, device));
    CU(cuCtxSetCurrent(primary));
    CUmodule module;
    CU(cuModuleLoadData(&module, text));
    CU(cuModuleGetFunction(&where, module, "where"));
    CU(cuMemAlloc(&words, 4096));
    CUdevResource whole, rest;
    CU(cuDeviceGetDevResource(device, &whole, CU_DEV_RESOURCE_TYPE_SM));
    printf("%u multiprocessors\n", whole.sm.smCount);
    for (unsigned flags = 0; flags <= 2; flags++) {
        unsigned count = 0;
        CUresult result = cuDevSmResourceSplitByCount(nullptr, &count, &whole, nullptr, flags, 1);
        if (result != CUDA_SUCCESS) {
            printf("flags %u: error %d\n", flags, int(result));
            continue;
        }
        std::vector<CUdevResource> groups(count);
        rest = CUdevResource{};
        CU(cuDevSmResourceSplitByCount(groups.data(), &count, &whole, &rest, flags, 1));
        printf("flags %u: %u groups of %u, %u left over\n", flags, count, groups[0].sm.smCount, rest.sm.smCount);
        std::vector<CUdevResource> all(groups), half(groups.begin(), groups.begin() + count / 2);
        show("one group", {groups[0]});
        show("two groups, the first and the last", {groups[0], groups[count - 1]});
        show("half of the groups", half);
        show("all groups", all);
        if (rest.sm.smCount > 0) {
            all.push_back(rest);
            show("what is left over", {rest});
            show("the last group and what is left over", {groups[count - 1], rest});
            half.push_back(rest);
            show("half of the groups and it", half);
            show("all groups and it", all);
        }
        CUgreenCtx a, b;
        std::vector<CUdevResource> second(groups.begin() + count / 2, groups.end());
        if (rest.sm.smCount > 0) second.push_back(rest), half.pop_back();
        CU(make(&a, half));
        CU(make(&b, second));
        printf("  of two halves %zu are in both\n", (seen(a) & seen(b)).count());
        CU(cuGreenCtxDestroy(a));
        CU(cuGreenCtxDestroy(b));
        size_t before, after, total;
        CU(cuMemGetInfo(&before, &total));
        std::vector<double> made, ended;
        for (int round = 0; round < 200; round++) {
            CUgreenCtx context;
            double start = now();
            CU(make(&context, {groups[round % count], groups[(round + 1) % count]}));
            made.push_back(now() - start);
            if (round % 20 == 0) seen(context);
            start = now();
            CU(cuGreenCtxDestroy(context));
            ended.push_back(now() - start);
        }
        CU(cuMemGetInfo(&after, &total));
        std::sort(made.begin(), made.end());
        std::sort(ended.begin(), ended.end());
        printf("  200 made and ended: %.0f and %.0f us each, %.1f MiB less free\n", made[100], ended[100],
               (double(before) - double(after)) / (1 << 20));
        std::vector<CUgreenCtx> kept(64);
        for (int at = 0; at < 64; at++) CU(make(&kept[at], {groups[at % count]}));
        CU(cuMemGetInfo(&after, &total));
        printf("  64 kept: %.1f MiB less free\n", (double(before) - double(after)) / (1 << 20));
        for (auto context : kept) CU(cuGreenCtxDestroy(context));
        CU(cuMemGetInfo(&after, &total));
        printf("  and ended: %.1f MiB less free\n", (double(before) - double(after)) / (1 << 20));
    }
}
