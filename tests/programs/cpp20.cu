// needs: plain
// nvcc: -std=c++20 --expt-relaxed-constexpr
// C++20 in kernels: concepts, constexpr tables, fold expressions, if constexpr, structured bindings,
// a class template with partial specialisations, three-way comparison, lambdas with templates.
#include <compare>
#include <concepts>
#include <type_traits>

#include "check.h"

template <class T>
concept Number = std::integral<T> || std::floating_point<T>;

template <Number... T> __host__ __device__ constexpr auto sum(T... values) { return (values + ... + 0); }

template <int n> struct Primes {
    int values[n];
    constexpr Primes() : values{} {
        int found = 0;
        for (int c = 2; found < n; c++) {
            bool prime = true;
            for (int k = 0; k < found && values[k] * values[k] <= c; k++) prime = prime && c % values[k];
            if (prime) values[found++] = c;
        }
    }
};

template <class T, int n> struct Power {
    __host__ __device__ static constexpr T of(T x) { return x * Power<T, n - 1>::of(x); }
};
template <class T> struct Power<T, 0> {
    __host__ __device__ static constexpr T of(T) { return 1; }
};

struct Version {
    int major, minor;
    constexpr auto operator<=>(const Version &) const = default;
};

template <Number T> __host__ __device__ T half_of(T value) {
    if constexpr (std::floating_point<T>) return value / 2;
    else return value >> 1;
}

__constant__ constexpr Primes<64> primes;

__global__ void kernel(double *out) {
    int i = threadIdx.x;
    auto apply = []<class T>(T value, auto &&f) { return f(value); };
    auto [whole, rest] = [](int x) {
        struct Pair {
            int whole, rest;
        };
        return Pair{x / 7, x % 7};
    }(i);
    out[i] = sum(primes.values[i], 0.25, 3u) + Power<long long, 5>::of(i) + half_of(i) + half_of(double(i)) +
             apply(i, [=](int x) { return x * whole + rest; }) + (Version{1, i} < Version{1, 30} ? 1000 : 0);
}

int main() {
    constexpr Primes<64> same;
    static_assert(same.values[63] == 311 && sum(1, 2, 3) == 6 && Power<int, 3>::of(5) == 125);
    Array<double> d(64);
    kernel<<<1, 64>>>(d);
    RAN();
    auto got = d.host();
    for (int i = 0; i < 64; i++) {
        double expected = same.values[i] + 3.25 + double(i) * i * i * i * i + (i >> 1) + i / 2.0 + i * (i / 7) + i % 7 +
                          (i < 30 ? 1000 : 0);
        CHECK(got[i] == expected, "thread %d: %g, not %g", i, got[i], expected);
    }
    printf("last %.2f\n", got[63]);
    return check::pass();
}
