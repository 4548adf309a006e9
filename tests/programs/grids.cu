// needs: plain
// Grids of 100,000 blocks, of three dimensions, of blocks of three dimensions, and every index of
// each thread seen just once.
#include "check.h"

__global__ void count(unsigned *seen) { atomicAdd(&seen[blockIdx.x % 1000], threadIdx.x + 1); }

__global__ void place(unsigned char *seen, unsigned *dims) {
    unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    unsigned thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    seen[block * (blockDim.x * blockDim.y * blockDim.z) + thread]++;
    if (block == 0 && thread == 0) {
        dims[0] = gridDim.x, dims[1] = gridDim.y, dims[2] = gridDim.z;
        dims[3] = blockDim.x, dims[4] = blockDim.y, dims[5] = blockDim.z;
    }
}

int main() {
    Array<unsigned> seen(1000), dims(6);
    seen.clear();
    count<<<100000, 32>>>(seen);
    RAN();
    for (unsigned v : seen.host()) CHECK(v == 100 * 32 * 33 / 2, "%u", v);
    const struct {
        dim3 grid, block;
    } shapes[] = {{dim3(7, 5, 3), dim3(8, 4, 2)}, {dim3(1, 300, 1), dim3(1, 1, 64)}, {dim3(2, 1, 200), dim3(1, 1024, 1)}, {dim3(65, 1, 1), dim3(17, 3, 5)}, {1, 1}};
    for (auto &shape : shapes) {
        dim3 g = shape.grid, b = shape.block;
        size_t total = size_t(g.x) * g.y * g.z * b.x * b.y * b.z;
        Array<unsigned char> places(total);
        places.clear();
        place<<<g, b>>>(places, dims);
        RAN();
        auto got = places.host();
        for (size_t i = 0; i < total; i++) CHECK(got[i] == 1, "thread %zu ran %d times", i, got[i]);
        auto d = dims.host();
        CHECK(d[0] == g.x && d[1] == g.y && d[2] == g.z && d[3] == b.x && d[4] == b.y && d[5] == b.z, "dimensions");
        printf("%ux%ux%u blocks of %ux%ux%u\n", g.x, g.y, g.z, b.x, b.y, b.z);
    }
    return check::pass();
}
