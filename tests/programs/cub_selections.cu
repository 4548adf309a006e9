// needs: plain
// nvcc: -std=c++17
// CUB's other device-wide algorithms: histograms, selection by a test, by flags, of what differs, partition in three, runs and
// their lengths, sums by key, the least with its place, sums of segments, scans by key.
#include <algorithm>
#include <cub/cub.cuh>

#include "check.h"

template <typename Call> void twice(Call call) {
    size_t bytes = 0;
    OK(call(nullptr, bytes));
    Array<char> storage(std::max<size_t>(bytes, 1));
    OK(call((void *)(char *)storage, bytes));
    RAN();
}

struct Below {
    int bound;
    __host__ __device__ bool operator()(int value) const { return value < bound; }
};

static std::vector<int> first(const Array<int> &array, int count) {
    auto all = array.host();
    all.resize(count);
    return all;
}

int main() {
    const int count = 20011;
    Random random(59);
    std::vector<int> values(count);
    for (int i = 0; i < count; i++) values[i] = i % 50 && random.below(3) ? values[i - 1] : int(random.below(1000));
    Array<int> in(values), out(count), rest(count), lengths(count), found(2);

    std::vector<int> bins(64, 0);
    for (int value : values) bins[value * 64 / 1024]++;
    Array<int> counted(64);
    twice([&](void *s, size_t &n) { return cub::DeviceHistogram::HistogramEven(s, n, (int *)in, (int *)counted, 65, 0, 1024, count); });
    CHECK(counted.host() == bins, "histogram");
    printf("histogram %016llx\n", (unsigned long long)check::hash(bins));

    std::vector<int> expected, others;
    for (int value : values) (value < 300 ? expected : others).push_back(value);
    twice([&](void *s, size_t &n) { return cub::DeviceSelect::If(s, n, (int *)in, (int *)out, (int *)found, count, Below{300}); });
    CHECK(first(out, found.host()[0]) == expected, "selected %d, not %zu", found.host()[0], expected.size());
    std::vector<char> flags(count);
    for (int i = 0; i < count; i++) flags[i] = values[i] >= 300;
    Array<char> flagged(flags);
    twice([&](void *s, size_t &n) { return cub::DeviceSelect::Flagged(s, n, (int *)in, (char *)flagged, (int *)out, (int *)found, count); });
    CHECK(first(out, found.host()[0]) == others, "flagged");
    twice([&](void *s, size_t &n) {
        return cub::DevicePartition::If(s, n, (int *)in, (int *)out, (int *)rest, (int *)lengths, (int *)found, count, Below{100}, Below{300});
    });
    auto parts = found.host();
    std::vector<int> a, b, c;
    for (int value : values) (value < 100 ? a : value < 300 ? b : c).push_back(value);
    CHECK(parts[0] == int(a.size()) && parts[1] == int(b.size()), "%d and %d", parts[0], parts[1]);
    CHECK(first(out, parts[0]) == a && first(rest, parts[1]) == b && first(lengths, int(c.size())) == c, "parts");
    printf("selected %zu, parts %zu %zu %zu\n", expected.size(), a.size(), b.size(), c.size());

    expected.clear();
    std::vector<int> runs, sums;
    for (int i = 0; i < count; i++) {
        if (i == 0 || values[i] != values[i - 1]) expected.push_back(values[i]), runs.push_back(0), sums.push_back(0);
        runs.back()++;
        sums.back() += i % 13;
    }
    twice([&](void *s, size_t &n) { return cub::DeviceSelect::Unique(s, n, (int *)in, (int *)out, (int *)found, count); });
    CHECK(first(out, found.host()[0]) == expected, "unique");
    twice([&](void *s, size_t &n) { return cub::DeviceRunLengthEncode::Encode(s, n, (int *)in, (int *)out, (int *)lengths, (int *)found, count); });
    int kinds = found.host()[0];
    CHECK(first(out, kinds) == expected && first(lengths, kinds) == runs, "runs");
    std::vector<int> weights(count);
    for (int i = 0; i < count; i++) weights[i] = i % 13;
    Array<int> weight(weights);
    twice([&](void *s, size_t &n) {
        return cub::DeviceReduce::ReduceByKey(s, n, (int *)in, (int *)out, (int *)weight, (int *)lengths, (int *)found, cuda::std::plus<>(), count);
    });
    CHECK(first(out, found.host()[0]) == expected && first(lengths, kinds) == sums, "sums by key");
    printf("runs %d, sums %016llx\n", kinds, (unsigned long long)check::hash(sums));

    twice([&](void *s, size_t &n) { return cub::DeviceScan::ExclusiveSumByKey(s, n, (int *)in, (int *)weight, (int *)out, count); });
    auto scanned = out.host();
    for (int i = 0, sum = 0; i < count; i++) {
        if (i == 0 || values[i] != values[i - 1]) sum = 0;
        CHECK(scanned[i] == sum, "scan by key: %d is %d, not %d", i, scanned[i], sum);
        sum += weights[i];
    }
    Array<int> least(1);
    Array<long long> where(1);
    twice([&](void *s, size_t &n) { return cub::DeviceReduce::ArgMin(s, n, (int *)in, (int *)least, (long long *)where, (long long)(count)); });
    int place = int(std::min_element(values.begin(), values.end()) - values.begin());
    CHECK(where.host()[0] == place && least.host()[0] == values[place], "the least is %d, at %lld", least.host()[0], where.host()[0]);
    std::vector<int> begins = {0, 3, 3, 1000, 1001, 15000, count};
    Array<int> offsets(begins);
    int segments = int(begins.size()) - 1;
    twice([&](void *s, size_t &n) { return cub::DeviceSegmentedReduce::Sum(s, n, (int *)in, (int *)out, segments, (int *)offsets, (int *)offsets + 1); });
    auto of = first(out, segments);
    for (int i = 0; i < segments; i++) {
        int sum = 0;
        for (int k = begins[i]; k < begins[i + 1]; k++) sum += values[k];
        CHECK(of[i] == sum, "segment %d: %d, not %d", i, of[i], sum);
    }
    printf("scans, the least, segments\n");
    return check::pass();
}
