// needs: plain
// Green contexts: a device's multiprocessors are split, streams of a part run kernels of the primary context
// on its memory, events go between them, and what was made while one was current outlives it.
#include "driver.h"

#include <vector>

__device__ unsigned total;

__global__ void count(unsigned *p) {
    atomicAdd(p, 1);
    atomicAdd(&total, 1);
}

static CUdevResource whole(CUdevice device) {
    CUdevResource all;
    CU(cuDeviceGetDevResource, device, &all, CU_DEV_RESOURCE_TYPE_SM);
    return all;
}

int main() {
    OK(cudaFree(nullptr));
    CUdevice device = 0;
    CUcontext primary;
    CU(cuCtxGetCurrent, &primary);
    cudaDeviceProp facts;
    OK(cudaGetDeviceProperties(&facts, 0));
    CUdevResource all = whole(device);
    unsigned sms = facts.multiProcessorCount, step = all.sm.minSmPartitionSize;
    CHECK(all.type == CU_DEV_RESOURCE_TYPE_SM && all.sm.smCount == sms, "%u of %u", all.sm.smCount, sms);
    CHECK(step > 0 && all.sm.smCoscheduledAlignment == step, "%u", step);
    CUdevResource other;
    auto resource = DRIVER(cuDeviceGetDevResource);
    CHECK(resource(device, &other, (CUdevResourceType)7) == CUDA_ERROR_INVALID_RESOURCE_TYPE, "no such type");
    CHECK(resource(99, &other, CU_DEV_RESOURCE_TYPE_SM) == CUDA_ERROR_INVALID_DEVICE, "no such device");

    auto split = DRIVER(cuDevSmResourceSplitByCount);
    unsigned groups = 0;
    CHECK(split(nullptr, &groups, &all, nullptr, 0, step) == CUDA_SUCCESS && groups >= 1, "%u", groups);
    std::vector<CUdevResource> parts(groups);
    CUdevResource rest;
    unsigned asked = groups;
    CHECK(split(parts.data(), &groups, &all, &rest, 0, step) == CUDA_SUCCESS && groups == asked, "%u", groups);
    unsigned sum = rest.type == CU_DEV_RESOURCE_TYPE_SM ? rest.sm.smCount : 0;
    for (auto &part : parts) {
        CHECK(part.type == CU_DEV_RESOURCE_TYPE_SM && part.sm.smCount == step, "%u", part.sm.smCount);
        sum += part.sm.smCount;
    }
    CHECK(sum == sms, "%u of %u", sum, sms);
    unsigned one = 1;
    CHECK(split(&other, &one, &all, nullptr, 0, sms + 1) == CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION, "more than all");
    CHECK(split(&other, &one, &all, nullptr, 3, step) == CUDA_ERROR_INVALID_VALUE, "flags");
    CUdevResource nothing = {};
    CHECK(split(&other, &one, &nothing, nullptr, 0, step) == CUDA_ERROR_INVALID_RESOURCE_TYPE, "no resource");
    CUdevResource forged = parts[0];
    forged.sm.smCount = sms;
    CHECK(split(&other, &one, &forged, nullptr, 0, step) == CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION, "forged");

    CUdevResourceDesc description;
    CUgreenCtx green;
    CU(cuDevResourceGenerateDesc, &description, &parts[0], 1);
    CHECK(DRIVER(cuGreenCtxCreate)(&green, description, device, 0) == CUDA_ERROR_INVALID_VALUE, "flags");
    CU(cuGreenCtxCreate, &green, description, device, CU_GREEN_CTX_DEFAULT_STREAM);
    CUdevResource of;
    CU(cuGreenCtxGetDevResource, green, &of, CU_DEV_RESOURCE_TYPE_SM);
    CHECK(of.sm.smCount == step, "%u", of.sm.smCount);
    CUcontext context;
    CU(cuCtxFromGreenCtx, &context, green);
    CU(cuCtxGetDevResource, context, &of, CU_DEV_RESOURCE_TYPE_SM);
    CHECK(of.sm.smCount == step && context != primary, "%u", of.sm.smCount);

    // A stream of the part runs the program's kernels, on memory and variables of the primary context.
    CUstream stream;
    CU(cuGreenCtxStreamCreate, &stream, green, CU_STREAM_NON_BLOCKING, 0);
    CUgreenCtx found;
    CU(cuStreamGetGreenCtx, stream, &found);
    CHECK(found == green, "another green context");
    unsigned *p, value;
    OK(cudaMalloc((void **)&p, 4));
    OK(cudaMemset(p, 0, 4));
    OK(cudaDeviceSynchronize());
    cudaEvent_t event;
    OK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    count<<<20, 64, 0, stream>>>(p);
    OK(cudaGetLastError());
    CU(cuGreenCtxRecordEvent, green, event);
    OK(cudaEventSynchronize(event));
    count<<<1, 1>>>(p);
    OK(cudaDeviceSynchronize());
    OK(cudaMemcpy(&value, p, 4, cudaMemcpyDeviceToHost));
    CHECK(value == 20 * 64 + 1, "%u", value);
    OK(cudaMemcpyFromSymbol(&value, total, 4));
    CHECK(value == 20 * 64 + 1, "there are two variables: %u", value);

    // Current, as frameworks have it; what it allocates is the primary context's.
    CU(cuCtxPushCurrent, context);
    unsigned *late;
    OK(cudaMalloc((void **)&late, 4));
    OK(cudaMemset(late, 0, 4));
    count<<<2, 32>>>(late);
    OK(cudaGetLastError());
    OK(cudaDeviceSynchronize());
    CUcontext popped;
    CU(cuCtxPopCurrent, &popped);
    CHECK(popped == context, "another context");
    OK(cudaStreamSynchronize(stream));
    CU(cuStreamDestroy, stream);
    CU(cuGreenCtxDestroy, green);
    OK(cudaMemcpy(&value, late, 4, cudaMemcpyDeviceToHost));
    CHECK(value == 64, "%u", value);
    OK(cudaFree(late));
    printf("done\n");
    return check::pass();
}
