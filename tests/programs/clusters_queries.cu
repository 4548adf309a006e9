// needs: sm_90 clusters
// nvcc: -std=c++17 -gencode arch=compute_90,code=compute_90
// What can be asked of clusters, and what is refused: sizes that do not divide the grid, sizes that are too large, a size
// that contradicts the kernel's own, shared memory beyond the end; registers that tell of clusters where there is none.
#include <cooperative_groups.h>

#include "check.h"

namespace cg = cooperative_groups;

__global__ void plain(unsigned *out) {
    unsigned clusters, rank, size, in_all;
    asm("mov.u32 %0, %%nclusterid.x;" : "=r"(clusters));
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
    asm("mov.u32 %0, %%clusterid.x;" : "=r"(in_all));
    if (threadIdx.x == 0) {
        out[blockIdx.x * 4 + 0] = clusters;
        out[blockIdx.x * 4 + 1] = rank;
        out[blockIdx.x * 4 + 2] = size;
        out[blockIdx.x * 4 + 3] = in_all;
    }
}

__global__ void __cluster_dims__(2, 1, 1) pairs(unsigned *out) { out[blockIdx.x] = cg::this_cluster().block_rank(); }

template <typename Kernel> cudaError_t launch(Kernel kernel, dim3 grid, dim3 cluster, unsigned *out) {
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = 64;
    cudaLaunchAttribute attribute;
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim = {cluster.x, cluster.y, cluster.z};
    config.attrs = &attribute;
    config.numAttrs = 1;
    cudaError_t error = cudaLaunchKernelEx(&config, kernel, out);
    cudaGetLastError();
    return error;
}

int main() {
    int value = 0;
    OK(cudaDeviceGetAttribute(&value, cudaDevAttrClusterLaunch, 0));
    CHECK(value == 1, "%d", value);
    Array<unsigned> out(64);
    plain<<<6, 64>>>(out);
    RAN();
    auto got = out.host();
    for (unsigned b = 0; b < 6; b++)
        CHECK(got[b * 4] == 6 && got[b * 4 + 1] == 0 && got[b * 4 + 2] == 1 && got[b * 4 + 3] == b, "block %u: %u %u %u %u", b, got[b * 4],
              got[b * 4 + 1], got[b * 4 + 2], got[b * 4 + 3]);
    OK(launch(plain, 6, 3, out));
    RAN();
    got = out.host();
    for (unsigned b = 0; b < 6; b++)
        CHECK(got[b * 4] == 2 && got[b * 4 + 1] == b % 3 && got[b * 4 + 2] == 3 && got[b * 4 + 3] == b / 3, "block %u: %u %u %u %u", b,
              got[b * 4], got[b * 4 + 1], got[b * 4 + 2], got[b * 4 + 3]);
    printf("registers\n");

    printf("not divided: %s\n", cudaGetErrorName(launch(plain, 6, 4, out)));
    printf("too large: %s\n", cudaGetErrorName(launch(plain, 64, 32, out)));
    printf("another than the kernel's: %s\n", cudaGetErrorName(launch(pairs, 8, 4, out)));
    printf("the kernel's own: %s\n", cudaGetErrorName(launch(pairs, 8, 2, out)));
    pairs<<<7, 64>>>(out);
    printf("the kernel's own, not divided: %s\n", cudaGetErrorName(cudaGetLastError()));
    OK(cudaDeviceSynchronize());

    cudaLaunchConfig_t config = {};
    config.gridDim = 16;
    config.blockDim = 64;
    int largest = 0, active = 0;
    OK(cudaOccupancyMaxPotentialClusterSize(&largest, plain, &config));
    CHECK(largest >= 8, "%d", largest);
    cudaLaunchAttribute attribute;
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim = {4, 1, 1};
    config.attrs = &attribute;
    config.numAttrs = 1;
    OK(cudaOccupancyMaxActiveClusters(&active, plain, &config));
    CHECK(active >= 1, "%d", active);
    cudaFuncAttributes attributes;
    OK(cudaFuncGetAttributes(&attributes, pairs));
    printf("of its own: %d %d %d, %d\n", attributes.requiredClusterWidth, attributes.requiredClusterHeight, attributes.requiredClusterDepth,
           attributes.clusterDimMustBeSet);
    return check::pass();
}
