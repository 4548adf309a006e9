// Kernels of the whole-process tests. All parameters are 64-bit, so that any launch is a list of
// words. kernels.ptx is made from this file, without the compiler's banner:
//
//   nvcc -ptx -arch=compute_75 -o - kernels.cu | sed '/^\/\//d' | cat -s > kernels.ptx

typedef unsigned long long word;

__device__ word counter = 7;

// out[i] = i * factor + round for each i below count.
extern "C" __global__ void sequence(word *out, word count, word factor, word round)
{
    for (word i = blockIdx.x * (word)blockDim.x + threadIdx.x; i < count;
         i += gridDim.x * (word)blockDim.x)
        out[i] = i * factor + round;
}

// Adds to each element, over and over: a kernel that takes a while.
extern "C" __global__ void churn(word *data, word count, word rounds)
{
    for (word i = blockIdx.x * (word)blockDim.x + threadIdx.x; i < count;
         i += gridDim.x * (word)blockDim.x) {
        word value = data[i];
        for (word round = 0; round < rounds; ++round)
            value = value * 6364136223846793005ull + 1442695040888963407ull;
        data[i] = value;
    }
}

extern "C" __global__ void wait_for(volatile word *flag, word value)
{
    while (*flag != value) {
    }
}

extern "C" __global__ void set(volatile word *flag, word value)
{
    *flag = value;
}

extern "C" __global__ void forever(volatile word *flag)
{
    for (;;)
        *flag = *flag + 1;
}

extern "C" __global__ void write_to(word address, word value)
{
    *(word *)address = value;
}

extern "C" __global__ void bump(word *seen)
{
    *seen = atomicAdd(&counter, 1ull);
}

// Sum of a block's elements by way of shared memory and shuffles, one result a block.
extern "C" __global__ void block_sum(const word *in, word *out)
{
    __shared__ word partial[32];
    word value = in[blockIdx.x * (word)blockDim.x + threadIdx.x];
    for (int step = 16; step > 0; step /= 2)
        value += __shfl_down_sync(0xffffffffu, value, step);
    if (threadIdx.x % 32 == 0)
        partial[threadIdx.x / 32] = value;
    __syncthreads();
    if (threadIdx.x < 32) {
        value = threadIdx.x < blockDim.x / 32 ? partial[threadIdx.x] : 0;
        for (int step = 16; step > 0; step /= 2)
            value += __shfl_down_sync(0xffffffffu, value, step);
        if (threadIdx.x == 0)
            out[blockIdx.x] = value;
    }
}
