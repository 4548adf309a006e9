// needs: sm_90
// nvcc: -std=c++17 -gencode arch=compute_90,code=compute_90
// A histogram whose bins are spread over the shared memory of a cluster's blocks: every block adds to the bins of
// the others by atomics. Clusters of one, two, four and eight, by the launch's attribute.
#include <cooperative_groups.h>

#include "check.h"

namespace cg = cooperative_groups;

__global__ void count(const unsigned *in, int size, unsigned *bins, int per_block) {
    extern __shared__ unsigned own[];
    auto cluster = cg::this_cluster();
    for (int i = threadIdx.x; i < per_block; i += blockDim.x) own[i] = 0;
    cluster.sync();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < size; i += gridDim.x * blockDim.x) {
        unsigned bin = in[i];
        atomicAdd(cluster.map_shared_rank(own, bin / per_block) + bin % per_block, 1);
    }
    cluster.sync();
    for (int i = threadIdx.x; i < per_block; i += blockDim.x) atomicAdd(&bins[cluster.block_rank() * per_block + i], own[i]);
}

int main() {
    const int size = 20000, total = 512;
    Random random(8);
    std::vector<unsigned> values(size), expected(total, 0);
    for (auto &value : values) {
        value = random.below(total) & random.below(total);
        expected[value]++;
    }
    Array<unsigned> in(values), bins(total);
    for (int width : {1, 2, 4, 8}) {
        bins.clear();
        cudaLaunchConfig_t config = {};
        config.gridDim = 16;
        config.blockDim = 128;
        config.dynamicSmemBytes = total / width * sizeof(unsigned);
        cudaLaunchAttribute attribute;
        attribute.id = cudaLaunchAttributeClusterDimension;
        attribute.val.clusterDim = {unsigned(width), 1, 1};
        config.attrs = &attribute;
        config.numAttrs = 1;
        OK(cudaLaunchKernelEx(&config, count, (const unsigned *)in, size, (unsigned *)bins, total / width));
        RAN();
        CHECK(bins.host() == expected, "clusters of %d", width);
        printf("clusters of %d\n", width);
    }
    return check::pass();
}
