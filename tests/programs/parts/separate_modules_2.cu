// A part of separate_modules.cu: variables and functions for the others.
typedef int (*Operation)(int);

__device__ int counter = 5;
__constant__ int table[4] = {10, 20, 30, 40};
__device__ int twice(int x) { return 2 * x; }
__device__ int cube(int x) { return x * x * x; }
__device__ Operation chosen = cube;

static __device__ int hidden = 7;

__global__ void second(int *out) { out[threadIdx.x] = hidden + counter; }

int launch_second(int *out) {
    second<<<1, 1>>>(out);
    int got = -1;
    cudaMemcpy(&got, out, sizeof got, cudaMemcpyDeviceToHost);
    return got;
}
