// needs: plain
// nvcc: -std=c++17 --extended-lambda
// Thrust: sums by key, scans by key, stable partition, sets, merging, binary search for many, gathers and scatters, iterators
// that zip, transform, count and permute, the inner product and the pair of the least and the greatest.
#include <algorithm>
#include <numeric>
#include <thrust/binary_search.h>
#include <thrust/copy.h>
#include <thrust/device_vector.h>
#include <thrust/extrema.h>
#include <thrust/gather.h>
#include <thrust/inner_product.h>
#include <thrust/iterator/counting_iterator.h>
#include <thrust/iterator/permutation_iterator.h>
#include <thrust/iterator/transform_iterator.h>
#include <thrust/iterator/zip_iterator.h>
#include <thrust/merge.h>
#include <thrust/partition.h>
#include <thrust/reduce.h>
#include <thrust/scan.h>
#include <thrust/scatter.h>
#include <thrust/set_operations.h>
#include <thrust/sort.h>
#include <thrust/transform_reduce.h>

#include "check.h"

template <typename T> std::vector<T> host(const thrust::device_vector<T> &vector, size_t count) {
    std::vector<T> copy(count);
    thrust::copy(vector.begin(), vector.begin() + count, copy.begin());
    return copy;
}

int main() {
    const int count = 10007;
    Random random(67);
    std::vector<int> a(count), b(count);
    for (int i = 0; i < count; i++) a[i] = int(random.below(400)), b[i] = int(random.below(1000));
    thrust::device_vector<int> x(a.begin(), a.end()), y(b.begin(), b.end()), keys(count), sums(count), out(2 * count);

    thrust::stable_sort_by_key(x.begin(), x.end(), y.begin());
    std::vector<int> order(count);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int i, int k) { return a[i] < a[k]; });
    std::vector<int> sa(count), sb(count);
    for (int i = 0; i < count; i++) sa[i] = a[order[i]], sb[i] = b[order[i]];
    CHECK(host(x, count) == sa && host(y, count) == sb, "sort by key");

    auto ends = thrust::reduce_by_key(x.begin(), x.end(), y.begin(), keys.begin(), sums.begin());
    std::vector<int> k, s;
    for (int i = 0; i < count; i++) {
        if (i == 0 || sa[i] != sa[i - 1]) k.push_back(sa[i]), s.push_back(0);
        s.back() += sb[i];
    }
    size_t kinds = ends.first - keys.begin();
    CHECK(kinds == k.size() && host(keys, kinds) == k && host(sums, kinds) == s, "sums by key: %zu", kinds);
    thrust::inclusive_scan_by_key(x.begin(), x.end(), y.begin(), out.begin());
    auto scanned = host(out, count);
    for (int i = 0, sum = 0; i < count; i++) {
        sum = i && sa[i] == sa[i - 1] ? sum + sb[i] : sb[i];
        CHECK(scanned[i] == sum, "scan by key: %d", i);
    }
    printf("by key: %zu kinds, %016llx\n", kinds, (unsigned long long)check::hash(s));

    thrust::device_vector<int> evens(b.begin(), b.end());
    auto middle = thrust::stable_partition(evens.begin(), evens.end(), [] __device__(int value) { return value % 2 == 0; });
    auto model = b;
    auto half = std::stable_partition(model.begin(), model.end(), [](int value) { return value % 2 == 0; });
    CHECK(middle - evens.begin() == half - model.begin() && host(evens, count) == model, "partition");

    std::vector<int> u = a, v = b, both(2 * count);
    std::sort(u.begin(), u.end());
    std::sort(v.begin(), v.end());
    thrust::device_vector<int> du(u.begin(), u.end()), dv(v.begin(), v.end());
    auto set = [&](const char *name, auto device, auto host_one) {
        size_t size = device(du.begin(), du.end(), dv.begin(), dv.end(), out.begin()) - out.begin();
        size_t expected = host_one(u.begin(), u.end(), v.begin(), v.end(), both.begin()) - both.begin();
        CHECK(size == expected && host(out, size) == std::vector<int>(both.begin(), both.begin() + expected), "%s: %zu, not %zu", name, size, expected);
        printf("%s: %zu\n", name, size);
    };
    set("union", [](auto... p) { return thrust::set_union(p...); }, [](auto... p) { return std::set_union(p...); });
    set("intersection", [](auto... p) { return thrust::set_intersection(p...); }, [](auto... p) { return std::set_intersection(p...); });
    set("difference", [](auto... p) { return thrust::set_difference(p...); }, [](auto... p) { return std::set_difference(p...); });
    set("merge", [](auto... p) { return thrust::merge(p...); }, [](auto... p) { return std::merge(p...); });

    thrust::device_vector<int> found(1000);
    thrust::lower_bound(du.begin(), du.end(), thrust::counting_iterator<int>(0), thrust::counting_iterator<int>(1000), found.begin());
    auto places = host(found, 1000);
    for (int i = 0; i < 1000; i++) CHECK(places[i] == std::lower_bound(u.begin(), u.end(), i) - u.begin(), "bound of %d: %d", i, places[i]);

    std::vector<int> shuffled(count);
    for (int i = 0; i < count; i++) shuffled[i] = int((long long)(i) * 4001 % count);
    thrust::device_vector<int> map(shuffled.begin(), shuffled.end()), first(b.begin(), b.end()), there(count), back(count);
    thrust::scatter(first.begin(), first.end(), map.begin(), there.begin());
    thrust::gather(map.begin(), map.end(), there.begin(), back.begin());
    CHECK(host(back, count) == b, "there and back");
    long long total = thrust::reduce(thrust::make_permutation_iterator(there.begin(), map.begin()), thrust::make_permutation_iterator(there.begin(), map.begin() + 100), 0ll);
    CHECK(total == std::accumulate(b.begin(), b.begin() + 100, 0ll), "permuted: %lld", total);

    auto squares = thrust::make_transform_iterator(thrust::counting_iterator<long long>(1), [] __host__ __device__(long long i) { return i * i; });
    long long sum = thrust::reduce(squares, squares + 1000);
    long long product = thrust::inner_product(first.begin(), first.end(), back.begin(), 0ll);
    CHECK(sum == 333833500ll && product == std::inner_product(b.begin(), b.end(), b.begin(), 0ll), "%lld and %lld", sum, product);
    thrust::device_vector<int> da(a.begin(), a.end());
    auto zipped = thrust::make_zip_iterator(thrust::make_tuple(da.begin(), first.begin()));
    long long weighted = thrust::transform_reduce(
        zipped, zipped + count, [] __host__ __device__(const thrust::tuple<int, int> &t) { return (long long)(thrust::get<0>(t)) * 3 - thrust::get<1>(t); }, 0ll, thrust::plus<long long>());
    long long expected = 0;
    for (int i = 0; i < count; i++) expected += a[i] * 3ll - b[i];
    CHECK(weighted == expected, "%lld, not %lld", weighted, expected);
    auto ends_of = thrust::minmax_element(first.begin(), first.end());
    auto model_ends = std::minmax_element(b.begin(), b.end());
    CHECK(*ends_of.first == *model_ends.first && *ends_of.second == *model_ends.second, "least and greatest");
    printf("iterators %lld %lld %lld\n", sum, product, weighted);
    return check::pass();
}
