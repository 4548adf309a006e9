// needs: sm_90
// nvcc: -std=c++17 -gencode arch=compute_90,code=compute_90
// Barriers in the shared memory of another block of the cluster: arrivals from afar, values stored there with their bytes
// counted (st.async), and one bulk copy from one block's shared memory to another's.
#include <cooperative_groups.h>
#include <cuda/barrier>
#include <cuda/ptx>

#include "check.h"

namespace cg = cooperative_groups;
namespace ptx = cuda::ptx;
using Barrier = cuda::barrier<cuda::thread_scope_block>;

__device__ uint64_t *native(Barrier &barrier) { return cuda::device::barrier_native_handle(barrier); }

// All threads of both blocks arrive at rank 0's barrier; its threads wait.
__global__ void __cluster_dims__(2, 1, 1) from_afar(unsigned *out) {
    __shared__ Barrier barrier;
    __shared__ unsigned sum;
    auto cluster = cg::this_cluster();
    if (threadIdx.x == 0) {
        init(&barrier, 2 * blockDim.x);
        sum = 0;
        ptx::fence_mbarrier_init(ptx::sem_release, ptx::scope_cluster);
    }
    cluster.sync();
    atomicAdd(cluster.map_shared_rank(&sum, 0), threadIdx.x + blockIdx.x);
    uint64_t *there = cluster.map_shared_rank(native(barrier), 0);
    ptx::mbarrier_arrive(ptx::sem_release, ptx::scope_cluster, ptx::space_cluster, there);
    if (cluster.block_rank() == 0) {
        while (!ptx::mbarrier_try_wait_parity(ptx::sem_acquire, ptx::scope_cluster, native(barrier), 0)) {}
        out[blockIdx.x / 2 * blockDim.x + threadIdx.x] = sum;
    }
    cluster.sync();
}

// Each block stores into its neighbour's box, which counts the bytes.
__global__ void __cluster_dims__(4, 1, 1) stores(int *out) {
    __shared__ Barrier barrier;
    __shared__ alignas(16) int box[64];
    auto cluster = cg::this_cluster();
    if (threadIdx.x == 0) {
        init(&barrier, 1);
        ptx::fence_mbarrier_init(ptx::sem_release, ptx::scope_cluster);
    }
    cluster.sync();
    if (threadIdx.x == 0) ptx::mbarrier_arrive_expect_tx(ptx::sem_release, ptx::scope_cta, ptx::space_shared, native(barrier), sizeof box);
    unsigned next = (cluster.block_rank() + 1) % 4;
    int *there = cluster.map_shared_rank(box, next);
    ptx::st_async(there + threadIdx.x, int(blockIdx.x * 1000 + threadIdx.x), cluster.map_shared_rank(native(barrier), next));
    while (!ptx::mbarrier_try_wait_parity(ptx::sem_acquire, ptx::scope_cluster, native(barrier), 0)) {}
    out[blockIdx.x * 64 + threadIdx.x] = box[63 - threadIdx.x];
    cluster.sync();
}

__global__ void __cluster_dims__(2, 1, 1) bulk(int *out) {
    __shared__ Barrier barrier;
    __shared__ alignas(128) int from[256], to[256];
    auto cluster = cg::this_cluster();
    if (threadIdx.x == 0) {
        init(&barrier, 1);
        ptx::fence_mbarrier_init(ptx::sem_release, ptx::scope_cluster);
    }
    for (int i = threadIdx.x; i < 256; i += blockDim.x) from[i] = blockIdx.x * 10000 + i;
    ptx::fence_proxy_async(ptx::space_shared);
    cluster.sync();
    if (threadIdx.x == 0) {
        ptx::mbarrier_arrive_expect_tx(ptx::sem_release, ptx::scope_cta, ptx::space_shared, native(barrier), sizeof to);
        unsigned other = 1 - cluster.block_rank();
        ptx::cp_async_bulk(ptx::space_cluster, ptx::space_shared, cluster.map_shared_rank(to, other), from, sizeof from,
                           cluster.map_shared_rank(native(barrier), other));
    }
    while (!ptx::mbarrier_try_wait_parity(ptx::sem_acquire, ptx::scope_cluster, native(barrier), 0)) {}
    for (int i = threadIdx.x; i < 256; i += blockDim.x) out[blockIdx.x * 256 + i] = to[i];
    cluster.sync();
}

int main() {
    Array<unsigned> sums(3 * 64);
    from_afar<<<6, 64>>>(sums);
    RAN();
    auto got = sums.host();
    for (int i = 0; i < 3 * 64; i++) {
        unsigned cluster = i / 64, expected = 2 * 2016 + 64 * (2 * cluster) + 64 * (2 * cluster + 1);
        CHECK(got[i] == expected, "%d: %u, not %u", i, got[i], expected);
    }
    printf("arrivals\n");
    Array<int> words(8 * 64), lines(4 * 256);
    stores<<<8, 64>>>(words);
    RAN();
    auto seen = words.host();
    for (int i = 0; i < 8 * 64; i++) {
        int block = i / 64, from = block / 4 * 4 + (block + 3) % 4, expected = from * 1000 + 63 - i % 64;
        CHECK(seen[i] == expected, "%d: %d, not %d", i, seen[i], expected);
    }
    printf("stores\n");
    bulk<<<4, 64>>>(lines);
    RAN();
    seen = lines.host();
    for (int i = 0; i < 4 * 256; i++) CHECK(seen[i] == (i / 256 ^ 1) * 10000 + i % 256, "%d: %d", i, seen[i]);
    printf("bulk copies\n");
    return check::pass();
}
