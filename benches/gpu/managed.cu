// What each scheme for memory that host and device share costs: the question behind managed memory on a
// real GPU. Each row is one scheme, each column one step of a round trip of the data, in ms: medians of
// rounds, every round in fresh memory. On NVIDIA's driver "managed" migrates pages at faults; through
// OpenMPS it is page-locked host memory, so that row then compares with "mapped".
//
//   nvcc -O2 -std=c++17 -gencode arch=compute_75,code=compute_75 -o managed managed.cu
//   ./managed [MiB [rounds [what the first column says]]]      256, 5, nothing
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include <cuda.h>
#include <cuda_runtime.h>

using Word = unsigned long long;
using Clock = std::chrono::steady_clock;

static void wrong(const char *what, const char *why) {
    printf("%s: %s\n", what, why);
    exit(1);
}
#define OK(call)                                                                                   \
    do {                                                                                           \
        cudaError_t result = (call);                                                               \
        if (result != cudaSuccess) wrong(#call, cudaGetErrorName(result));                         \
    } while (0)
// The driver's function, found as libraries find it: nothing need be linked.
#define CU(name, ...)                                                                              \
    do {                                                                                           \
        void *function = nullptr;                                                                  \
        cudaDriverEntryPointQueryResult found;                                                     \
        OK(cudaGetDriverEntryPointByVersion(#name, &function, 13000, cudaEnableDefault, &found));  \
        if (!function) wrong(#name, "the driver has no such function");                            \
        CUresult result = reinterpret_cast<decltype(&name)>(function)(__VA_ARGS__);                \
        if (result != CUDA_SUCCESS) wrong(#name, std::to_string(int(result)).c_str());             \
    } while (0)

__global__ void sum(const ulonglong2 *data, size_t pairs, Word *out) {
    Word mine = 0;
    for (size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x; i < pairs; i += size_t(gridDim.x) * blockDim.x) {
        ulonglong2 pair = data[i];
        mine += pair.x + pair.y;
    }
    for (int lane = 16; lane; lane /= 2) mine += __shfl_down_sync(~0u, mine, lane);
    if (threadIdx.x % 32 == 0) atomicAdd(out, mine);
}
__global__ void write(ulonglong2 *data, size_t pairs, Word first) {
    for (size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x; i < pairs; i += size_t(gridDim.x) * blockDim.x)
        data[i] = {first + 2 * i, first + 2 * i + 1};
}

// Where the data is: `host` and `device` are the same memory unless the scheme copies.
struct Shared {
    Word *host = nullptr;
    void *device = nullptr;
    CUmemGenericAllocationHandle handle = 0;
};
struct Scheme {
    const char *name;
    std::function<void(Shared &, size_t)> allocate, to_device, to_host, free;
};

static const cudaMemLocation on_device = {cudaMemLocationTypeDevice, 0}, on_host = {cudaMemLocationTypeHost, 0};
static void nothing(Shared &, size_t) {}
static void managed(Shared &s, size_t bytes) {
    OK(cudaMallocManaged(&s.device, bytes));
    s.host = static_cast<Word *>(s.device);
}
static void page_locked(Shared &s, size_t bytes) {
    OK(cudaMallocHost(reinterpret_cast<void **>(&s.host), bytes));
}
static void pageable(Shared &s, size_t bytes) {
    s.host = static_cast<Word *>(aligned_alloc(4096, bytes));
    if (!s.host) wrong("aligned_alloc", "no memory");
}
static void copy_in(Shared &s, size_t bytes) { OK(cudaMemcpy(s.device, s.host, bytes, cudaMemcpyHostToDevice)); }
static void copy_out(Shared &s, size_t bytes) { OK(cudaMemcpy(s.host, s.device, bytes, cudaMemcpyDeviceToHost)); }
static void free_managed(Shared &s, size_t) { OK(cudaFree(s.device)); }

static size_t granular(size_t bytes) {
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    size_t granularity = 0;
    CU(cuMemGetAllocationGranularity, &granularity, &properties, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
    return (bytes + granularity - 1) / granularity * granularity;
}
static void mapped_physical(Shared &s, size_t bytes) {
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUdeviceptr at = 0;
    size_t whole = granular(bytes);
    CU(cuMemCreate, &s.handle, whole, &properties, 0);
    CU(cuMemAddressReserve, &at, whole, 0, 0, 0);
    CU(cuMemMap, at, whole, 0, s.handle, 0);
    CU(cuMemSetAccess, at, whole, &access, 1);
    s.device = reinterpret_cast<void *>(at);
}
static void free_physical(Shared &s, size_t bytes) {
    CUdeviceptr at = reinterpret_cast<CUdeviceptr>(s.device);
    CU(cuMemUnmap, at, granular(bytes));
    CU(cuMemRelease, s.handle);
    CU(cuMemAddressFree, at, granular(bytes));
}

static const Scheme schemes[] = {
    {"managed", managed, nothing, nothing, free_managed},
    {"managed, prefetched both ways", managed,
     [](Shared &s, size_t bytes) { OK(cudaMemPrefetchAsync(s.device, bytes, on_device, 0, 0)); },
     [](Shared &s, size_t bytes) { OK(cudaMemPrefetchAsync(s.device, bytes, on_host, 0, 0)); }, free_managed},
    {"managed, preferred on the host, accessed by the device",
     [](Shared &s, size_t bytes) {
         managed(s, bytes);
         OK(cudaMemAdvise(s.device, bytes, cudaMemAdviseSetPreferredLocation, on_host));
         OK(cudaMemAdvise(s.device, bytes, cudaMemAdviseSetAccessedBy, on_device));
     },
     nothing, nothing, free_managed},
    {"managed, preferred on the device, accessed by the host",
     [](Shared &s, size_t bytes) {
         managed(s, bytes);
         OK(cudaMemAdvise(s.device, bytes, cudaMemAdviseSetPreferredLocation, on_device));
         OK(cudaMemAdvise(s.device, bytes, cudaMemAdviseSetAccessedBy, on_host));
     },
     nothing, nothing, free_managed},
    {"mapped: cudaMallocHost",
     [](Shared &s, size_t bytes) {
         page_locked(s, bytes);
         OK(cudaHostGetDevicePointer(&s.device, s.host, 0));
     },
     nothing, nothing, [](Shared &s, size_t) { OK(cudaFreeHost(s.host)); }},
    {"mapped: malloc, cudaHostRegister",
     [](Shared &s, size_t bytes) {
         pageable(s, bytes);
         OK(cudaHostRegister(s.host, bytes, cudaHostRegisterMapped));
         OK(cudaHostGetDevicePointer(&s.device, s.host, 0));
     },
     nothing, nothing,
     [](Shared &s, size_t) {
         OK(cudaHostUnregister(s.host));
         free(s.host);
     }},
    {"cudaMalloc, copies of malloc",
     [](Shared &s, size_t bytes) {
         pageable(s, bytes);
         OK(cudaMalloc(&s.device, bytes));
     },
     copy_in, copy_out,
     [](Shared &s, size_t) {
         OK(cudaFree(s.device));
         free(s.host);
     }},
    {"cudaMalloc, copies of cudaMallocHost",
     [](Shared &s, size_t bytes) {
         page_locked(s, bytes);
         OK(cudaMalloc(&s.device, bytes));
     },
     copy_in, copy_out,
     [](Shared &s, size_t) {
         OK(cudaFree(s.device));
         OK(cudaFreeHost(s.host));
     }},
    {"cuMemCreate and cuMemMap, copies of cudaMallocHost",
     [](Shared &s, size_t bytes) {
         page_locked(s, bytes);
         mapped_physical(s, bytes);
     },
     copy_in, copy_out,
     [](Shared &s, size_t bytes) {
         free_physical(s, bytes);
         OK(cudaFreeHost(s.host));
     }},
};

static const char *const steps[] = {
    "allocate", "host fills", "to device", "kernel reads", "reads again", "kernel writes", "to host", "host reads", "host fills again", "free",
};
constexpr int STEPS = sizeof steps / sizeof *steps;

static void fill(Word *data, size_t words, Word first) {
    for (size_t i = 0; i < words; i++) data[i] = first + i;
}
// What `words` consecutive numbers add up to.
static Word total(size_t words, Word first) { return words * first + Word(words) * (words - 1) / 2; }

// One round of a scheme: how many ms each step took. Ends the program if the data is not right.
static std::vector<double> round_trip(const Scheme &scheme, size_t bytes, Word *out, int multiprocessors) {
    const size_t words = bytes / sizeof(Word), pairs = words / 2;
    const unsigned blocks = multiprocessors * 8;
    Shared shared;
    std::vector<double> times;
    auto step = [&](auto &&work) {
        auto begin = Clock::now();
        work();
        OK(cudaDeviceSynchronize());
        times.push_back(std::chrono::duration<double, std::milli>(Clock::now() - begin).count());
    };
    auto device = [&] { return static_cast<ulonglong2 *>(shared.device); };
    auto read = [&] {
        step([&] { sum<<<blocks, 256>>>(device(), pairs, out); });
        Word seen;
        OK(cudaMemcpy(&seen, out, sizeof seen, cudaMemcpyDeviceToHost));
        OK(cudaMemset(out, 0, sizeof *out));
        OK(cudaDeviceSynchronize());
        if (seen != total(words, 7)) wrong(scheme.name, "the kernel read something else");
    };
    step([&] { scheme.allocate(shared, bytes); });
    step([&] { fill(shared.host, words, 7); });
    step([&] { scheme.to_device(shared, bytes); });
    read();
    read();
    step([&] { write<<<blocks, 256>>>(device(), pairs, 9); });
    step([&] { scheme.to_host(shared, bytes); });
    Word seen = 0;
    step([&] {
        for (size_t i = 0; i < words; i++) seen += shared.host[i];
    });
    if (seen != total(words, 9)) wrong(scheme.name, "the host read something else");
    step([&] { fill(shared.host, words, 11); });
    step([&] { scheme.free(shared, bytes); });
    return times;
}

int main(int argc, char **argv) {
    const size_t bytes = (argc > 1 ? strtoull(argv[1], nullptr, 10) : 256) << 20;
    const int rounds = argc > 2 ? std::max(1, atoi(argv[2])) : 5;
    const char *label = argc > 3 ? argv[3] : "";
    if (!bytes) wrong(argv[1], "not a number of MiB");
    int multiprocessors;
    Word *out;
    OK(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, 0));
    OK(cudaMalloc(&out, sizeof *out));
    OK(cudaMemset(out, 0, sizeof *out));
    // Kernels are loaded at their first launch.
    sum<<<1, 32>>>(nullptr, 0, out);
    write<<<1, 32>>>(nullptr, 0, 0);
    OK(cudaDeviceSynchronize());

    printf("| | %zu MiB, ms |", bytes >> 20);
    for (auto name : steps) printf(" %s |", name);
    printf("\n|---|---|");
    for (int i = 0; i < STEPS; i++) printf("---|");
    printf("\n");
    for (auto &scheme : schemes) {
        std::vector<std::vector<double>> all;
        for (int round = 0; round < rounds; round++) all.push_back(round_trip(scheme, bytes, out, multiprocessors));
        printf("| %s | %s |", label, scheme.name);
        for (int i = 0; i < STEPS; i++) {
            std::vector<double> times;
            for (auto &one : all) times.push_back(one[i]);
            std::sort(times.begin(), times.end());
            printf(" %.2f |", times[times.size() / 2]);
        }
        printf("\n");
        fflush(stdout);
    }
    OK(cudaFree(out));
    return 0;
}
