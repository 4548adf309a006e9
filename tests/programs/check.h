// What every program of the corpus shares: checks that say what was wrong and end the program with
// 1, device arrays that free themselves, and the last line `PASS`.
//
// A program prints only what is the same on every device: outputs of the software GPU and of
// NVIDIA's driver are compared line by line.
#pragma once

#include <cmath>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include <cuda_runtime.h>

// Ends the program unless a runtime call succeeds.
#define OK(call) check::succeeds((call), #call, __LINE__)
// Ends the program unless a runtime call fails with just this error.
#define FAILS(call, error) check::fails((call), (error), #call, __LINE__)
// Ends the program unless something holds; the rest is a printf of what was found instead.
#define CHECK(condition, ...)                                                                      \
    do {                                                                                           \
        if (!(condition)) check::wrong(__LINE__, #condition, __VA_ARGS__);                         \
    } while (0)
// Ends the program unless the launch before it was accepted and its kernel ran to the end.
#define RAN()                                                                                      \
    do {                                                                                           \
        OK(cudaGetLastError());                                                                    \
        OK(cudaDeviceSynchronize());                                                               \
    } while (0)

namespace check {

[[noreturn]] __attribute__((format(printf, 3, 4))) inline void wrong(int line, const char *what,
                                                                     const char *format, ...) {
    printf("FAIL line %d: %s: ", line, what);
    va_list arguments;
    va_start(arguments, format);
    vprintf(format, arguments);
    va_end(arguments);
    printf("\n");
    fflush(stdout);
    // Not exit(): destructors of device arrays after a fault would only hide what went wrong.
    _Exit(1);
}

inline void succeeds(cudaError_t error, const char *call, int line) {
    if (error != cudaSuccess)
        wrong(line, call, "%s (%s)", cudaGetErrorName(error), cudaGetErrorString(error));
}

inline void fails(cudaError_t error, cudaError_t expected, const char *call, int line) {
    if (error != expected)
        wrong(line, call, "%s, expected %s", cudaGetErrorName(error), cudaGetErrorName(expected));
}

// A device array.
template <class T> class Array {
  public:
    explicit Array(size_t count) : count_(count) { OK(cudaMalloc(&data_, bytes())); }
    explicit Array(const std::vector<T> &host) : Array(host.size()) { set(host); }
    Array(const Array &) = delete;
    Array &operator=(const Array &) = delete;
    ~Array() { cudaFree(data_); }

    operator T *() const { return data_; }
    size_t count() const { return count_; }
    size_t bytes() const { return count_ * sizeof(T); }
    void clear() { OK(cudaMemset(data_, 0, bytes())); }
    void set(const std::vector<T> &host) {
        OK(cudaMemcpy(data_, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice));
    }
    std::vector<T> host() const {
        std::vector<T> copy(count_);
        OK(cudaMemcpy(copy.data(), data_, bytes(), cudaMemcpyDeviceToHost));
        return copy;
    }

  private:
    T *data_ = nullptr;
    size_t count_;
};

// Random numbers, the same everywhere: a 64-bit linear congruential generator's upper half.
class Random {
  public:
    explicit Random(uint64_t seed = 1) : state_(seed * 0x9E3779B97F4A7C15ull + 1) {}
    uint32_t bits() {
        state_ = state_ * 6364136223846793005ull + 1442695040888963407ull;
        uint32_t high = uint32_t(state_ >> 32);
        return high ^ (high >> 15);
    }
    uint64_t wide() {
        uint64_t high = bits();
        return high << 32 | bits();
    }
    uint32_t below(uint32_t bound) { return uint32_t(uint64_t(bits()) * bound >> 32); }
    // In [0, 1).
    double unit() { return bits() / 4294967296.0; }
    double between(double low, double high) { return low + (high - low) * unit(); }

  private:
    uint64_t state_;
};

// FNV-1a of some bytes: one deterministic number to print for a large result.
inline uint64_t hash(const void *data, size_t bytes) {
    const unsigned char *byte = static_cast<const unsigned char *>(data);
    uint64_t value = 0xcbf29ce484222325ull;
    for (size_t i = 0; i < bytes; i++) value = (value ^ byte[i]) * 0x100000001b3ull;
    return value;
}
template <class T> uint64_t hash(const std::vector<T> &values) {
    return hash(values.data(), values.size() * sizeof(T));
}

inline int pass() {
    printf("PASS\n");
    return 0;
}

inline int blocks(size_t count, int threads) { return int((count + threads - 1) / threads); }

} // namespace check

using check::Array;
using check::blocks;
using check::Random;
