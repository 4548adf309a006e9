// needs: launches
// nvcc: -rdc=true -lcudadevrt
// Kernels that launch kernels that launch kernels: a tree of grids, of several blocks and threads. The root is over
// only when all leaves are, and children see what their parents wrote before the launch.
#include "check.h"

__device__ int failures;

__global__ void leaf(int *counts, const int *written, int at) {
    if (*written != at) atomicAdd(&failures, 1);
    atomicAdd(&counts[at], 1);
}

// Node `at` of a tree in which node n has the children 4n + 1 to 4n + 4.
__global__ void node(int *counts, int *written, int at, int nodes) {
    if (blockIdx.x == 0 && threadIdx.x == 0) atomicAdd(&counts[at], 1);
    int child = 4 * at + 1 + blockIdx.x * blockDim.x + threadIdx.x;
    if (child >= nodes) return;
    written[child] = child;
    if (4 * child + 1 >= nodes)
        leaf<<<2, 3>>>(counts, written + child, child);
    else
        node<<<2, 2>>>(counts, written, child, nodes);
    if (cudaGetLastError() != cudaSuccess) atomicAdd(&failures, 1);
}

int main() {
    int nodes = 1 + 4 + 16 + 64 + 256;
    Array<int> counts(nodes), written(nodes);
    counts.clear();
    written.clear();
    for (int round = 1; round <= 3; round++) {
        node<<<2, 2>>>(counts, written, 0, nodes);
        RAN();
        int failed = -1;
        OK(cudaMemcpyFromSymbol(&failed, failures, sizeof(failed)));
        CHECK(failed == 0, "%d", failed);
        auto got = counts.host();
        for (int i = 0; i < nodes; i++) {
            int wanted = round * (4 * i + 1 < nodes ? 1 : 6);
            CHECK(got[i] == wanted, "node %d: %d, not %d", i, got[i], wanted);
        }
    }
    printf("%d nodes\n", nodes);
    printf("PASS\n");
}
