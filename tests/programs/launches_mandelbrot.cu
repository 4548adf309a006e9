// needs: launches
// nvcc: -rdc=true -lcudadevrt -fmad=false
// Mandelbrot by Mariani and Silver: a square whose border has one value is filled, others are cut into four, each a
// grid of its own. The picture is that of a plain kernel.
#include "check.h"

const int SIZE = 256, LIMIT = 64;

__device__ int escape(int x, int y) {
    float cr = -2.0f + 2.5f * x / SIZE, ci = -1.25f + 2.5f * y / SIZE, r = 0, i = 0;
    int n = 0;
    while (n < LIMIT && r * r + i * i <= 4) {
        float next = r * r - i * i + cr;
        i = 2 * r * i + ci;
        r = next;
        n++;
    }
    return n;
}

__global__ void plain(int *picture) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    picture[y * SIZE + x] = escape(x, y);
}

__global__ void fill(int *picture, int x0, int y0, int size, int value) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x < size && y < size) picture[(y0 + y) * SIZE + x0 + x] = value;
}

__global__ void each(int *picture, int x0, int y0, int size) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x < size && y < size) picture[(y0 + y) * SIZE + x0 + x] = escape(x0 + x, y0 + y);
}

// One square a block.
__global__ void squares(int *picture, int x0, int y0, int size) {
    x0 += size * blockIdx.x;
    y0 += size * blockIdx.y;
    __shared__ int least, most;
    if (threadIdx.x == 0) least = LIMIT + 1, most = -1;
    __syncthreads();
    for (int i = threadIdx.x; i < 4 * size; i += blockDim.x) {
        int at = i % size, side = i / size;
        int x = side == 0 ? at : side == 1 ? size - 1 : side == 2 ? at : 0;
        int y = side == 0 ? 0 : side == 1 ? at : side == 2 ? size - 1 : at;
        int value = escape(x0 + x, y0 + y);
        atomicMin(&least, value);
        atomicMax(&most, value);
    }
    __syncthreads();
    if (threadIdx.x != 0) return;
    dim3 threads(16, 4), blocks((size + 15) / 16, (size + 3) / 4);
    if (least == most)
        fill<<<blocks, threads>>>(picture, x0, y0, size, least);
    else if (size <= 16)
        each<<<blocks, threads>>>(picture, x0, y0, size);
    else
        squares<<<dim3(2, 2), 32>>>(picture, x0, y0, size / 2);
}

int main() {
    Array<int> model(SIZE * SIZE), picture(SIZE * SIZE);
    picture.clear();
    plain<<<dim3(SIZE / 16, SIZE / 16), dim3(16, 16)>>>(model);
    RAN();
    squares<<<dim3(4, 4), 32>>>(picture, 0, 0, SIZE / 4);
    RAN();
    auto wanted = model.host(), got = picture.host();
    int different = 0;
    for (int i = 0; i < SIZE * SIZE; i++) different += wanted[i] != got[i];
    // A square may hold what its border does not show.
    CHECK(different < SIZE * SIZE / 500, "%d differ", different);
    printf("PASS\n");
}
