// needs: plain
// Heat in a plate: a 5-point stencil with halos in shared memory, many small launches one after
// another, buffers exchanged; exact in dyadic fractions for the first steps, close for the rest.
#include "check.h"

const int tile = 16;

__global__ void step(const float *in, float *out, int width, int height) {
    __shared__ float part[tile + 2][tile + 2];
    int x = blockIdx.x * tile + threadIdx.x, y = blockIdx.y * tile + threadIdx.y;
    int tx = threadIdx.x + 1, ty = threadIdx.y + 1;
    auto at = [&](int x, int y) { return x >= 0 && x < width && y >= 0 && y < height ? in[y * width + x] : 0.0f; };
    part[ty][tx] = at(x, y);
    if (threadIdx.x == 0) part[ty][0] = at(x - 1, y);
    if (threadIdx.x == tile - 1) part[ty][tile + 1] = at(x + 1, y);
    if (threadIdx.y == 0) part[0][tx] = at(x, y - 1);
    if (threadIdx.y == tile - 1) part[tile + 1][tx] = at(x, y + 1);
    __syncthreads();
    if (x < width && y < height)
        out[y * width + x] = 0.5f * part[ty][tx] +
                             0.125f * (part[ty][tx - 1] + part[ty][tx + 1] + part[ty - 1][tx] + part[ty + 1][tx]);
}

int main() {
    const int width = 75, height = 50, steps = 200;
    std::vector<float> plate(width * height), next(width * height);
    for (int x = 20; x < 30; x++) plate[25 * width + x] = 1024;
    Array<float> a(plate), b(plate.size());
    float *from = a, *to = b;
    dim3 grid(blocks(width, tile), blocks(height, tile)), block(tile, tile);
    for (int t = 1; t <= steps; t++) {
        step<<<grid, block>>>(from, to, width, height);
        std::swap(from, to);
        auto at = [&](int x, int y) { return x >= 0 && x < width && y >= 0 && y < height ? plate[y * width + x] : 0.0f; };
        for (int y = 0; y < height; y++)
            for (int x = 0; x < width; x++)
                next[y * width + x] =
                    0.5f * at(x, y) + 0.125f * (at(x - 1, y) + at(x + 1, y) + at(x, y - 1) + at(x, y + 1));
        std::swap(plate, next);
        if (t != 5 && t != steps) continue;
        RAN();
        std::vector<float> got(width * height);
        OK(cudaMemcpy(got.data(), from, got.size() * 4, cudaMemcpyDeviceToHost));
        double limit = t == 5 ? 0 : 1e-4;
        for (size_t i = 0; i < got.size(); i++)
            CHECK(std::fabs(got[i] - plate[i]) <= limit, "step %d, cell %zu: %g, not %g", t, i, got[i], plate[i]);
        printf("step %d: centre %.3f\n", t, got[25 * width + 25]);
    }
    return check::pass();
}
