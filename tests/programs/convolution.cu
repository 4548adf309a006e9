// needs: plain
// A separable blur of an image with its kernel in constant memory, rows then columns; edges by
// clamping; and Conway's game of life for 50 generations.
#include <algorithm>

#include "check.h"

const int radius = 5;
__constant__ float weights[2 * radius + 1];

__global__ void blur(const float *in, float *out, int width, int height, int dx, int dy) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= width || y >= height) return;
    float sum = 0;
#pragma unroll
    for (int k = -radius; k <= radius; k++)
        sum += weights[k + radius] * in[min(max(y + k * dy, 0), height - 1) * width + min(max(x + k * dx, 0), width - 1)];
    out[y * width + x] = sum;
}

__global__ void live(const unsigned char *in, unsigned char *out, int width, int height) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= width || y >= height) return;
    int around = 0;
    for (int dy = -1; dy <= 1; dy++)
        for (int dx = -1; dx <= 1; dx++)
            if (dx || dy) around += in[(y + dy + height) % height * width + (x + dx + width) % width];
    out[y * width + x] = around == 3 || (around == 2 && in[y * width + x]);
}

int main() {
    const int width = 130, height = 70;
    const dim3 block(32, 4), grid(blocks(width, 32), blocks(height, 4));
    // Binomial weights over 1024 and small whole pixels: the sums are exact.
    const float w[2 * radius + 1] = {1, 10, 45, 120, 210, 252, 210, 120, 45, 10, 1};
    OK(cudaMemcpyToSymbol(weights, w, sizeof w));
    Random random(71);
    std::vector<float> image(width * height), rows(image.size()), both(image.size());
    for (float &p : image) p = float(random.below(8));
    auto host = [&](const std::vector<float> &in, std::vector<float> &out, int dx, int dy) {
        for (int y = 0; y < height; y++)
            for (int x = 0; x < width; x++) {
                float sum = 0;
                for (int k = -radius; k <= radius; k++)
                    sum += w[k + radius] * in[std::min(std::max(y + k * dy, 0), height - 1) * width + std::min(std::max(x + k * dx, 0), width - 1)];
                out[y * width + x] = sum;
            }
    };
    host(image, rows, 1, 0);
    host(rows, both, 0, 1);
    Array<float> a(image), b(image.size());
    blur<<<grid, block>>>(a, b, width, height, 1, 0);
    blur<<<grid, block>>>(b, a, width, height, 0, 1);
    RAN();
    auto got = a.host();
    for (size_t i = 0; i < got.size(); i++) CHECK(got[i] == both[i], "pixel %zu: %g, not %g", i, got[i], both[i]);

    std::vector<unsigned char> world(width * height), next(world.size());
    for (auto &cell : world) cell = random.below(3) == 0;
    Array<unsigned char> c(world), d(world.size());
    unsigned char *from = c, *to = d;
    int alive = 0;
    for (int generation = 0; generation < 50; generation++) {
        live<<<grid, block>>>(from, to, width, height);
        std::swap(from, to);
        for (int y = 0; y < height; y++)
            for (int x = 0; x < width; x++) {
                int around = -world[y * width + x];
                for (int k = 0; k < 9; k++) around += world[(y + k / 3 - 1 + height) % height * width + (x + k % 3 - 1 + width) % width];
                next[y * width + x] = around == 3 || (around == 2 && world[y * width + x]);
            }
        std::swap(world, next);
    }
    RAN();
    auto cells = c.host(); // an even number of steps
    for (size_t i = 0; i < cells.size(); i++) {
        CHECK(cells[i] == world[i], "cell %zu", i);
        alive += cells[i];
    }
    printf("%016llx, %d alive\n", (unsigned long long)check::hash(got), alive);
    return check::pass();
}
