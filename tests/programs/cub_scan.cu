// needs: plain
// CUB: device-wide scan and reduction with temporary storage, and block-wide ones.
#include <cub/block/block_reduce.cuh>
#include <cub/block/block_scan.cuh>
#include <cub/device/device_reduce.cuh>
#include <cub/device/device_scan.cuh>

#include "check.h"

__global__ void in_block(const int *in, int *out, int *sums) {
    using Scan = cub::BlockScan<int, 128>;
    using Reduce = cub::BlockReduce<int, 128>;
    __shared__ union {
        Scan::TempStorage scan;
        Reduce::TempStorage reduce;
    } storage;
    int i = blockIdx.x * 128 + threadIdx.x, value;
    Scan(storage.scan).ExclusiveSum(in[i], value);
    out[i] = value;
    __syncthreads();
    int sum = Reduce(storage.reduce).Sum(in[i]);
    if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

int main() {
    const int count = 128 * 150;
    Random random(59);
    std::vector<int> values(count);
    for (int &value : values) value = int(random.below(100));
    Array<int> in(values), out(count), sums(count / 128), total(1);
    size_t scan_bytes = 0, reduce_bytes = 0;
    OK(cub::DeviceScan::InclusiveSum(nullptr, scan_bytes, (int *)in, (int *)out, count));
    OK(cub::DeviceReduce::Max(nullptr, reduce_bytes, (int *)in, (int *)total, count));
    Array<char> scratch(std::max(scan_bytes, reduce_bytes));
    OK(cub::DeviceScan::InclusiveSum((char *)scratch, scan_bytes, (int *)in, (int *)out, count));
    RAN();
    auto got = out.host();
    int sum = 0;
    for (int i = 0; i < count; i++) {
        sum += values[i];
        CHECK(got[i] == sum, "element %d: %d, not %d", i, got[i], sum);
    }
    OK(cub::DeviceReduce::Max((char *)scratch, reduce_bytes, (int *)in, (int *)total, count));
    RAN();
    CHECK(total.host()[0] == 99, "%d", total.host()[0]);
    in_block<<<count / 128, 128>>>(in, out, sums);
    RAN();
    got = out.host();
    auto s = sums.host();
    for (int b = 0; b < count / 128; b++) {
        sum = 0;
        for (int i = b * 128; i < b * 128 + 128; sum += values[i++]) CHECK(got[i] == sum, "in block: element %d: %d, not %d", i, got[i], sum);
        CHECK(s[b] == sum, "sum of block %d: %d, not %d", b, s[b], sum);
    }
    printf("%016llx\n", (unsigned long long)check::hash(s));
    return check::pass();
}
