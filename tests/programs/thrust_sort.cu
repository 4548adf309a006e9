// needs: plain
// Thrust: sort and unique, in device vectors.
#include <algorithm>

#include <thrust/device_vector.h>
#include <thrust/sort.h>
#include <thrust/unique.h>

#include "check.h"

int main() {
    const int count = 20000;
    Random random(57);
    std::vector<int> keys(count);
    for (int &key : keys) key = int(random.bits()) % 5000;
    thrust::device_vector<int> d(keys.begin(), keys.end());
    thrust::sort(d.begin(), d.end());
    std::sort(keys.begin(), keys.end());
    CHECK(std::equal(keys.begin(), keys.end(), std::vector<int>(d.begin(), d.end()).begin()), "not sorted");
    auto end = thrust::unique(d.begin(), d.end());
    keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
    CHECK(size_t(end - d.begin()) == keys.size(), "%zu keys, not %zu", size_t(end - d.begin()), keys.size());
    printf("%zu distinct keys\n", keys.size());
    return check::pass();
}
