// needs: plain
// nvcc: -std=c++20 --expt-relaxed-constexpr
// The C++ library on the device (libcu++): arrays, tuples, optionals, variants, expected values, spans, views of several
// dimensions, complex numbers, bits, durations, sums of ranges; the same code gives the same on the host.
#include <cuda/std/array>
#include <cuda/std/bit>
#include <cuda/std/bitset>
#include <cuda/std/chrono>
#include <cuda/std/complex>
#include <cuda/std/expected>
#include <cuda/std/functional>
#include <cuda/std/limits>
#include <cuda/std/mdspan>
#include <cuda/std/numeric>
#include <cuda/std/optional>
#include <cuda/std/ratio>
#include <cuda/std/span>
#include <cuda/std/tuple>
#include <cuda/std/utility>
#include <cuda/std/variant>

#include "check.h"

namespace cs = cuda::std;

enum class Wrong { negative, large };

__host__ __device__ cs::expected<int, Wrong> root(int value) {
    if (value < 0) return cs::unexpected(Wrong::negative);
    int r = 0;
    while ((r + 1) * (r + 1) <= value) r++;
    if (r > 100) return cs::unexpected(Wrong::large);
    return r;
}

__host__ __device__ cs::optional<int> first_above(cs::span<const int> numbers, int bound) {
    for (int number : numbers)
        if (number > bound) return number;
    return cs::nullopt;
}

struct Circle {
    int radius;
};
struct Box {
    int width, height;
};

__host__ __device__ int area(const cs::variant<Circle, Box> &shape) {
    return cs::visit(
        [](const auto &s) -> int {
            if constexpr (cs::is_same_v<cs::decay_t<decltype(s)>, Circle>)
                return 3 * s.radius * s.radius;
            else
                return s.width * s.height;
        },
        shape);
}

__host__ __device__ void all(int seed, long long *out) {
    int n = 0;
    cs::array<int, 16> numbers{};
    cs::iota(numbers.begin(), numbers.end(), seed);
    for (int &number : numbers) number = number * 7919 % 101;
    out[n++] = cs::accumulate(numbers.begin(), numbers.end(), 0);
    cs::array<int, 16> sorted = numbers;
    for (size_t i = 1; i < sorted.size(); i++)
        for (size_t k = i; k > 0 && sorted[k] < sorted[k - 1]; k--) cs::swap(sorted[k], sorted[k - 1]);
    cs::array<int, 16> sums{}, steps{};
    cs::inclusive_scan(numbers.begin(), numbers.end(), sums.begin());
    cs::adjacent_difference(sorted.begin(), sorted.end(), steps.begin());
    out[n++] = sums[15] * 1000 + cs::accumulate(steps.begin(), steps.end(), 0, [](int a, int b) { return a > b ? a : b; });
    cs::partial_sum(sorted.begin(), sorted.end(), steps.begin(), cs::multiplies<unsigned>());
    out[n++] = steps[3] + cs::transform_reduce(numbers.begin(), numbers.end(), 0, cs::plus<>(), cs::negate<>());
    out[n++] = cs::inner_product(sorted.begin(), sorted.end(), numbers.begin(), 0);

    auto [low, high, sum] = cs::make_tuple(sorted[0], numbers[1], 5ll);
    out[n++] = cs::apply([](auto... values) { return (long long)((values + ...)); }, cs::make_tuple(low, high, sum));
    auto found = first_above(cs::span<const int>(numbers.data(), 8), 60);
    out[n++] = found ? *found : first_above(numbers, 0).value_or(-1);
    auto good = root(seed * 3).and_then([](int r) { return root(r); });
    out[n++] = good ? *good : good.error() == Wrong::large ? -2 : -1;
    out[n++] = root(seed - 20).value_or(-7) + root(20000 + seed).has_value();

    cs::variant<Circle, Box> shape = Circle{seed};
    int first = area(shape);
    shape.emplace<Box>(Box{seed, 4});
    out[n++] = first * 100 + area(shape) + int(shape.index());

    cs::mdspan<int, cs::extents<int, 4, cs::dynamic_extent>, cs::layout_left> matrix(numbers.data(), 4);
    long long trace = 0;
    for (int i = 0; i < matrix.extent(0); i++) trace = trace * 10 + matrix(i, 3 - i) % 10;
    out[n++] = trace;

    cs::complex<double> z(seed % 3 - 1, 0.5), w(0, 1);
    z = z * z + w;
    out[n++] = (long long)(z.real() * 64) * 1000 + (long long)(cs::conj(z).imag() * 64);
    unsigned bits = unsigned(seed) * 2654435761u;
    out[n++] = cs::popcount(bits) + 100 * cs::countl_zero(bits) + 10000ll * cs::bit_width(bits | 1) + (cs::has_single_bit(bits) ? 1000000 : 0);
    out[n++] = cs::rotl(bits, 7) ^ cs::bit_cast<unsigned>(float(seed)) ^ cs::bit_ceil(bits % 1000 + 1);
    cs::bitset<70> set;
    for (int i = 0; i < 70; i += seed % 5 + 1) set.set(i);
    out[n++] = (long long)((set << 3 | set).count()) + set.test(66);
    auto span = cs::chrono::hours(seed) + cs::chrono::minutes(61) + cs::chrono::milliseconds(2500);
    out[n++] = cs::chrono::duration_cast<cs::chrono::seconds>(span).count();
    out[n++] = cs::ratio_add<cs::ratio<1, 3>, cs::ratio<1, 6>>::den * 10 + cs::numeric_limits<short>::digits;
    out[n++] = cs::gcd(seed * 12, 90) * 1000 + cs::lcm(seed + 1, 6) + cs::midpoint(seed, 100);
}
constexpr int ASKED = 17;

__global__ void kernel(long long *out) { all(blockIdx.x * blockDim.x + threadIdx.x, out + (blockIdx.x * blockDim.x + threadIdx.x) * ASKED); }

int main() {
    const int count = 256;
    Array<long long> out(count * ASKED);
    kernel<<<4, 64>>>(out);
    RAN();
    auto got = out.host();
    for (int i = 0; i < count; i++) {
        long long expected[ASKED];
        all(i, expected);
        for (int n = 0; n < ASKED; n++) CHECK(got[i * ASKED + n] == expected[n], "seed %d, %d: %lld, not %lld", i, n, got[i * ASKED + n], expected[n]);
    }
    printf("%016llx\n", (unsigned long long)check::hash(got));
    return check::pass();
}
