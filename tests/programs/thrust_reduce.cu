// needs: plain
// nvcc: --extended-lambda
// Thrust: transform, reduce, inclusive scan, count_if over a device vector.
#include <numeric>

#include <thrust/count.h>
#include <thrust/device_vector.h>
#include <thrust/reduce.h>
#include <thrust/scan.h>
#include <thrust/sequence.h>
#include <thrust/transform.h>

#include "check.h"

int main() {
    const int count = 30000;
    thrust::device_vector<long long> d(count);
    thrust::sequence(d.begin(), d.end(), 1);
    thrust::transform(d.begin(), d.end(), d.begin(), [] __device__(long long x) { return x * x; });
    long long sum = thrust::reduce(d.begin(), d.end(), 0ll);
    long long expected = 0;
    for (long long i = 1; i <= count; i++) expected += i * i;
    CHECK(sum == expected, "%lld, not %lld", sum, expected);
    auto odd = thrust::count_if(d.begin(), d.end(), [] __device__(long long x) { return x % 2 == 1; });
    CHECK(odd == count / 2, "%lld odd squares", (long long)odd);
    thrust::inclusive_scan(d.begin(), d.end(), d.begin());
    CHECK(d.back() == sum && d[9] == 385, "%lld", (long long)d.back());
    printf("%lld\n", sum);
    return check::pass();
}
