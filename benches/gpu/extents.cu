// Whether the arena can be: 2,000 extents of 32 GiB of addresses, at places that are given, in a process with a
// live context, and once more, at the same places, in a second process beside it. Each is reserved with the driver
// (as a server does) in the first, and with mmap (as a client does) and with the driver in the second.
//
//   FOLDER/extents [COUNT]         natively; FOLDER is what `benches/gpu.sh pack` fills
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <sys/mman.h>
#include <unistd.h>
#include <vector>

#include <cuda.h>

static const size_t EXTENT = 32ull << 30;
// Where engine::arena begins.
static const unsigned long long BASE = 0x110000000000ull;

#define NEEDED(call)                                                                                                  \
    do {                                                                                                              \
        CUresult result = (call);                                                                                     \
        if (result != CUDA_SUCCESS) {                                                                                 \
            printf("%s: %d\n", #call, int(result));                                                                   \
            exit(1);                                                                                                  \
        }                                                                                                             \
    } while (0)

static double since(std::chrono::steady_clock::time_point begin) {
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
}

static void reserve(const char *who, int count) {
    int there = 0, elsewhere = 0, refused = 0;
    auto begin = std::chrono::steady_clock::now();
    for (int at = 0; at < count; at++) {
        CUdeviceptr got = 0, wanted = BASE + at * EXTENT;
        if (cuMemAddressReserve(&got, EXTENT, 0, wanted, 0) != CUDA_SUCCESS) refused++;
        else if (got != wanted) elsewhere++;
        else there++;
    }
    printf("%s: cuMemAddressReserve: %d at their places, %d elsewhere, %d refused, %.1f ms\n", who, there, elsewhere,
           refused, since(begin));
    fflush(stdout);
}

static void map(const char *who, int count) {
    int there = 0, not_there = 0;
    auto begin = std::chrono::steady_clock::now();
    for (int at = 0; at < count; at++) {
        void *wanted = reinterpret_cast<void *>(BASE + at * EXTENT);
        void *got = mmap(wanted, EXTENT, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
        if (got == wanted) there++;
        else not_there++;
    }
    printf("%s: mmap: %d at their places, %d not, %.1f ms\n", who, there, not_there, since(begin));
    for (int at = 0; at < count; at++) munmap(reinterpret_cast<void *>(BASE + at * EXTENT), EXTENT);
    fflush(stdout);
}

// One granule is mapped and used in the last extent, to see that it is good for something.
static void use(const char *who, int count, int device) {
    CUmemAllocationProp property{};
    property.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    property.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    property.location.id = device;
    CUmemAccessDesc access{};
    access.location = property.location;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    CUmemGenericAllocationHandle memory;
    size_t unit = 0;
    NEEDED(cuMemGetAllocationGranularity(&unit, &property, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    NEEDED(cuMemCreate(&memory, unit, &property, 0));
    CUdeviceptr last = BASE + (count - 1) * EXTENT;
    NEEDED(cuMemMap(last, unit, 0, memory, 0));
    NEEDED(cuMemSetAccess(last, unit, &access, 1));
    unsigned written = 77, read = 0;
    NEEDED(cuMemcpyHtoD(last, &written, sizeof written));
    NEEDED(cuMemcpyDtoH(&read, last, sizeof read));
    printf("%s: memory in the last of them holds what was written: %s\n", who, read == written ? "yes" : "no");
    fflush(stdout);
}

int main(int count_of_words, char **words) {
    int count = count_of_words > 1 ? atoi(words[1]) : 2000;
    bool second = count_of_words > 2;
    const char *who = second ? "second process" : "first process";
    CUdevice device;
    CUcontext context;
    NEEDED(cuInit(0));
    NEEDED(cuDeviceGet(&device, 0));
    NEEDED(cuDevicePrimaryCtxRetain(&context, device));
    NEEDED(cuCtxSetCurrent(context));
    if (second) map(who, count);
    reserve(who, count);
    use(who, count, device);
    if (!second) {
        std::string again = std::string(words[0]) + " " + std::to_string(count) + " second";
        return system(again.c_str()) == 0 ? 0 : 1;
    }
    return 0;
}
