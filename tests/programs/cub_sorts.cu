// needs: plain
// nvcc: -std=c++17
// CUB's sorts: keys and pairs by radix, up and down, some bits only, floats with their signs, stable; segments; by merging with
// a comparison of one's own.
#include <algorithm>
#include <cub/cub.cuh>
#include <numeric>

#include "check.h"

// Calls a device-wide algorithm twice: for the size of its storage, and to run.
template <typename Call> void twice(Call call) {
    size_t bytes = 0;
    OK(call(nullptr, bytes));
    Array<char> storage(std::max<size_t>(bytes, 1));
    OK(call((void *)(char *)storage, bytes));
    RAN();
}

struct ByDigits {
    __host__ __device__ static int digits(unsigned value) {
        int sum = 0;
        for (; value; value /= 10) sum += value % 10;
        return sum;
    }
    __host__ __device__ bool operator()(unsigned a, unsigned b) const { return digits(a) < digits(b); }
};

int main() {
    const int count = 20011;
    Random random(53);
    std::vector<unsigned> keys(count), order(count);
    for (auto &key : keys) key = random.bits() & (random.below(2) ? ~0u : 0xff00ffu);
    std::iota(order.begin(), order.end(), 0u);
    Array<unsigned> in(keys), out(count), places(order), moved(count);

    twice([&](void *s, size_t &n) { return cub::DeviceRadixSort::SortKeys(s, n, (unsigned *)in, (unsigned *)out, count); });
    auto expected = keys;
    std::sort(expected.begin(), expected.end());
    CHECK(out.host() == expected, "keys");
    printf("keys %016llx\n", (unsigned long long)check::hash(expected));

    twice([&](void *s, size_t &n) {
        return cub::DeviceRadixSort::SortPairsDescending(s, n, (unsigned *)in, (unsigned *)out, (unsigned *)places, (unsigned *)moved, count, 8, 20);
    });
    auto by = order;
    std::stable_sort(by.begin(), by.end(), [&](unsigned a, unsigned b) { return (keys[a] >> 8 & 0xfff) > (keys[b] >> 8 & 0xfff); });
    CHECK(moved.host() == by, "pairs by some bits");
    printf("pairs %016llx\n", (unsigned long long)check::hash(by));

    std::vector<float> real(count);
    for (float &value : real) value = float(random.between(-1000, 1000));
    real[7] = INFINITY, real[8] = -INFINITY;
    Array<float> floats(real), sorted(count);
    twice([&](void *s, size_t &n) { return cub::DeviceRadixSort::SortKeys(s, n, (float *)floats, (float *)sorted, count); });
    std::sort(real.begin(), real.end());
    CHECK(sorted.host() == real, "floats");
    printf("floats\n");

    std::vector<int> begins = {0, 5, 5, 300, 301, 4000, 9000, 9010, count};
    Array<int> offsets(begins);
    int segments = int(begins.size()) - 1;
    twice([&](void *s, size_t &n) {
        return cub::DeviceSegmentedSort::SortKeys(s, n, (unsigned *)in, (unsigned *)out, count, segments, (int *)offsets, (int *)offsets + 1);
    });
    expected = keys;
    for (int i = 0; i < segments; i++) std::sort(expected.begin() + begins[i], expected.begin() + begins[i + 1]);
    CHECK(out.host() == expected, "segments");
    printf("segments %016llx\n", (unsigned long long)check::hash(expected));

    Array<unsigned> merged(keys);
    twice([&](void *s, size_t &n) { return cub::DeviceMergeSort::StableSortKeys(s, n, (unsigned *)merged, count, ByDigits()); });
    expected = keys;
    std::stable_sort(expected.begin(), expected.end(), ByDigits());
    CHECK(merged.host() == expected, "merged");
    printf("merged %016llx\n", (unsigned long long)check::hash(expected));
    return check::pass();
}
