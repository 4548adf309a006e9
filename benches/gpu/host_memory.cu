// What page-locked memory costs to have and to give back: cudaMallocHost, cudaHostRegister of memory of three
// kinds (never touched, filled, a memfd's), and their ends. Each row is one size of one kind; the first time in
// this process and the median of the tenth and later ones, in microseconds. `touch` is the program's first
// write to each page afterwards, which is where page faults would show.
//
//   nvcc -O2 -std=c++17 -gencode arch=compute_75,code=compute_75 -o host_memory host_memory.cu
//   ./host_memory [what the first column says]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <vector>

#include <sys/mman.h>
#include <unistd.h>

#include <cuda_runtime.h>

using Clock = std::chrono::steady_clock;

#define OK(call)                                                                                   \
    do {                                                                                           \
        cudaError_t result = (call);                                                               \
        if (result != cudaSuccess) {                                                               \
            printf("%s: %s\n", #call, cudaGetErrorName(result));                                   \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

static double microseconds(const std::function<void()> &work) {
    auto start = Clock::now();
    work();
    return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

struct Times {
    std::vector<double> begin, touch, end;
};

static void print(const char *who, const char *what, size_t bytes, const Times &times) {
    auto later = [](std::vector<double> values) {
        values.erase(values.begin(), values.begin() + 9);
        std::sort(values.begin(), values.end());
        return values[values.size() / 2];
    };
    printf("| %s | %s | %zu | %.0f | %.0f | %.0f | %.0f | %.0f |\n", who, what, bytes >> 10, times.begin[0],
           later(times.begin), later(times.touch), times.end[0], later(times.end));
    fflush(stdout);
}

static void touch(char *memory, size_t bytes) {
    for (size_t at = 0; at < bytes; at += 4096) memory[at] = 1;
}

static void *shared_memory(size_t bytes, int *fd) {
    *fd = memfd_create("host_memory", MFD_CLOEXEC);
    if (*fd < 0 || ftruncate(*fd, off_t(bytes))) exit(2);
    return mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, *fd, 0);
}

int main(int count, char **arguments) {
    const char *who = count > 1 ? arguments[1] : "";
    OK(cudaFree(nullptr));
    printf("| | us | KiB | begin, first | begin, tenth | touch | end, first | end, tenth |\n");
    printf("|---|---|---|---|---|---|---|---|\n");
    for (size_t bytes : {size_t(4) << 10, size_t(1) << 20, size_t(256) << 20}) {
        const int rounds = bytes > (64 << 20) ? 12 : 20;
        Times times;
        for (int round = 0; round < rounds; round++) {
            char *memory;
            times.begin.push_back(microseconds([&] { OK(cudaMallocHost((void **)&memory, bytes)); }));
            times.touch.push_back(microseconds([&] { touch(memory, bytes); }));
            times.end.push_back(microseconds([&] { OK(cudaFreeHost(memory)); }));
        }
        print(who, "cudaMallocHost", bytes, times);
        for (const char *kind : {"cudaHostRegister, untouched", "cudaHostRegister, filled", "cudaHostRegister, memfd"}) {
            Times registered;
            for (int round = 0; round < rounds; round++) {
                int fd = -1;
                bool is_file = strstr(kind, "memfd");
                void *memory = is_file ? shared_memory(bytes, &fd)
                                       : mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
                if (memory == MAP_FAILED) return 2;
                if (!strstr(kind, "untouched")) memset(memory, round + 1, bytes);
                registered.begin.push_back(microseconds([&] { OK(cudaHostRegister(memory, bytes, 0)); }));
                registered.touch.push_back(microseconds([&] { touch(static_cast<char *>(memory), bytes); }));
                registered.end.push_back(microseconds([&] { OK(cudaHostUnregister(memory)); }));
                munmap(memory, bytes);
                if (fd >= 0) close(fd);
            }
            print(who, kind, bytes, registered);
        }
    }
    return 0;
}
