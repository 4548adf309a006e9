// Kernels for the executor's tests. kernels.ptx is made from this file, in this folder, by
//   nvcc -ptx -arch=compute_75 -o - kernels.cu | sed '/^\/\//d' | cat -s > kernels.ptx

typedef unsigned int uint;
typedef unsigned long long u64;

// Sum by shuffles within warps, then through shared memory, then one atomic a block.
extern "C" __global__ void reduce_sum(const float *in, float *out, uint n)
{
    __shared__ float parts[32];
    float sum = 0;
    for (uint i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        sum += in[i];
    for (int d = 16; d; d >>= 1)
        sum += __shfl_down_sync(~0u, sum, d);
    if (threadIdx.x % 32 == 0)
        parts[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x < 32) {
        sum = threadIdx.x < (blockDim.x + 31) / 32 ? parts[threadIdx.x] : 0;
        for (int d = 16; d; d >>= 1)
            sum += __shfl_xor_sync(~0u, sum, d);
        if (threadIdx.x == 0)
            atomicAdd(out, sum);
    }
}

// Inclusive scan of one block, in dynamic shared memory.
extern "C" __global__ void scan_block(const uint *in, uint *out)
{
    extern __shared__ uint buffer[];
    uint t = threadIdx.x;
    buffer[t] = in[t];
    __syncthreads();
    for (uint d = 1; d < blockDim.x; d *= 2) {
        uint other = t >= d ? buffer[t - d] : 0;
        __syncthreads();
        buffer[t] += other;
        __syncthreads();
    }
    out[t] = buffer[t];
}

extern "C" __global__ void transpose(const float *in, float *out, uint width, uint height)
{
    __shared__ float tile[16][17];
    uint x = blockIdx.x * 16 + threadIdx.x, y = blockIdx.y * 16 + threadIdx.y;
    if (x < width && y < height)
        tile[threadIdx.y][threadIdx.x] = in[y * width + x];
    __syncthreads();
    x = blockIdx.y * 16 + threadIdx.x;
    y = blockIdx.x * 16 + threadIdx.y;
    if (x < height && y < width)
        out[y * height + x] = tile[threadIdx.x][threadIdx.y];
}

extern "C" __global__ void histogram(const unsigned char *in, uint *out, uint n)
{
    __shared__ uint bins[256];
    for (uint i = threadIdx.x; i < 256; i += blockDim.x)
        bins[i] = 0;
    __syncthreads();
    for (uint i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        atomicAdd(&bins[in[i]], 1);
    __syncthreads();
    for (uint i = threadIdx.x; i < 256; i += blockDim.x)
        if (bins[i])
            atomicAdd(&out[i], bins[i]);
}

extern "C" __global__ void matrix_product(const float *a, const float *b, float *c, uint n)
{
    __shared__ float ta[16][16], tb[16][16];
    uint row = blockIdx.y * 16 + threadIdx.y, column = blockIdx.x * 16 + threadIdx.x;
    float sum = 0;
    for (uint k = 0; k < n; k += 16) {
        ta[threadIdx.y][threadIdx.x] = a[row * n + k + threadIdx.x];
        tb[threadIdx.y][threadIdx.x] = b[(k + threadIdx.y) * n + column];
        __syncthreads();
#pragma unroll
        for (int i = 0; i < 16; ++i)
            sum += ta[threadIdx.y][i] * tb[i][threadIdx.x];
        __syncthreads();
    }
    c[row * n + column] = sum;
}

// Bitonic sort of one block's elements.
extern "C" __global__ void sort_block(uint *data)
{
    extern __shared__ uint keys[];
    uint t = threadIdx.x;
    keys[t] = data[t];
    __syncthreads();
    for (uint k = 2; k <= blockDim.x; k *= 2)
        for (uint j = k / 2; j > 0; j /= 2) {
            uint other = t ^ j;
            if (other > t) {
                bool up = (t & k) == 0;
                if ((keys[t] > keys[other]) == up) {
                    uint swap = keys[t];
                    keys[t] = keys[other];
                    keys[other] = swap;
                }
            }
            __syncthreads();
        }
    data[t] = keys[t];
}

extern "C" __global__ void mandelbrot(uint *out, uint width, uint height, uint limit)
{
    uint x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= width || y >= height)
        return;
    float cx = 3.0f * x / width - 2.0f, cy = 2.0f * y / height - 1.0f, zx = 0, zy = 0;
    uint n = 0;
    while (n < limit && zx * zx + zy * zy < 4.0f) {
        float t = zx * zx - zy * zy + cx;
        zy = 2.0f * zx * zy + cy;
        zx = t;
        ++n;
    }
    out[y * width + x] = n;
}

__device__ __noinline__ uint ackermann(uint m, uint n)
{
    if (m == 0)
        return n + 1;
    if (n == 0)
        return ackermann(m - 1, 1);
    return ackermann(m - 1, ackermann(m, n - 1));
}

extern "C" __global__ void recursion(uint *out)
{
    out[threadIdx.x] = ackermann(threadIdx.x % 3, threadIdx.x % 5);
}

typedef int (*Operation)(int, int);
__device__ __noinline__ int plus(int a, int b) { return a + b; }
__device__ __noinline__ int times(int a, int b) { return a * b; }
__device__ __noinline__ int minus(int a, int b) { return a - b; }
__device__ Operation operations[3] = {plus, times, minus};

extern "C" __global__ void indirect(int *out)
{
    int t = threadIdx.x;
    out[t] = operations[t % 3](t, 7);
}

// A lock that lanes of one warp hold in turn.
extern "C" __global__ void locked_count(uint *lock, volatile uint *count)
{
    while (atomicCAS(lock, 0, 1) != 0)
        ;
    __threadfence();
    *count = *count + 1;
    __threadfence();
    atomicExch(lock, 0);
}

// Lane 0 waits for what another lane of its warp does after the branch.
extern "C" __global__ void wait_for_neighbour(volatile uint *flag, uint *out)
{
    if (threadIdx.x == 0) {
        while (*flag == 0)
            ;
    }
    if (threadIdx.x == 1)
        *flag = 1;
    out[threadIdx.x] = threadIdx.x + 1;
}

// Block 0 waits for block 1.
extern "C" __global__ void wait_for_block(volatile uint *flag, uint *out)
{
    if (blockIdx.x == 0) {
        if (threadIdx.x == 0)
            while (*flag == 0)
                ;
        __syncthreads();
        out[threadIdx.x] = *flag;
    } else if (threadIdx.x == 0) {
        *flag = 42;
    }
}

extern "C" __global__ void votes(const uint *in, uint *out)
{
    uint t = threadIdx.x, v = in[t];
    uint ballot = __ballot_sync(~0u, v & 1);
    uint all = __all_sync(~0u, v < 1000), any = __any_sync(~0u, v == 7);
    uint same = __match_any_sync(~0u, v % 5);
    uint active = 0;
    if (v & 1)
        active = __activemask();
    out[t * 5] = ballot;
    out[t * 5 + 1] = all * 2 + any;
    out[t * 5 + 2] = same;
    out[t * 5 + 3] = active;
    out[t * 5 + 4] = __shfl_sync(~0u, v, (t + 5) % 32);
}

// Halves of a warp meet in different branches.
extern "C" __global__ void warp_halves(uint *out)
{
    __shared__ uint cell[64];
    uint t = threadIdx.x;
    cell[t] = t;
    __syncwarp();
    if (t % 32 < 16) {
        uint v = cell[t ^ 1];
        __syncwarp(0xffff);
        cell[t] = v + 100;
        __syncwarp(0xffff);
        out[t] = cell[t ^ 2] + __shfl_sync(0xffff, t, 3);
    } else {
        out[t] = __shfl_xor_sync(0xffff0000, t, 5);
    }
}

extern "C" __global__ void early_exit(uint *out)
{
    uint t = threadIdx.x;
    if (t % 3 == 0)
        return;
    __syncthreads();
    out[t] = __syncthreads_count(t % 2);
}

__constant__ float weights[8] = {1, 2, 3, 4, 5, 6, 7, 8};
__device__ uint counter = 5;
__device__ uint *pointer = &counter;

extern "C" __global__ void variables(float *out, uint *old)
{
    out[threadIdx.x] = weights[threadIdx.x % 8];
    old[threadIdx.x] = atomicAdd(pointer, 1);
}

extern "C" __global__ void local_array(const uint *in, uint *out, uint n)
{
    uint stack[32];
    for (uint i = 0; i < n; ++i)
        stack[(i * 7 + in[threadIdx.x]) % 32] = i + threadIdx.x;
    uint sum = 0;
    for (uint i = 0; i < n; ++i)
        sum = sum * 3 + stack[(in[threadIdx.x] + i) % 32];
    out[threadIdx.x] = sum;
}

struct Big { double d[4]; int i[3]; char c; };

extern "C" __global__ void by_value(Big big, double *out)
{
    out[threadIdx.x] = big.d[threadIdx.x % 4] * big.i[threadIdx.x % 3] + big.c;
}

extern "C" __global__ void math_single(const float *in, float *out, uint n)
{
    uint i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n)
        return;
    float x = in[i];
    float *o = out + i * 12;
    o[0] = sinf(x);
    o[1] = cosf(x);
    o[2] = expf(x);
    o[3] = logf(fabsf(x) + 1e-3f);
    o[4] = sqrtf(fabsf(x));
    o[5] = tanhf(x);
    o[6] = powf(fabsf(x), 1.7f);
    o[7] = x / 3.7f;
    o[8] = rsqrtf(fabsf(x) + 0.5f);
    o[9] = floorf(x);
    o[10] = __sinf(x);
    o[11] = erff(x);
}

extern "C" __global__ void math_double(const double *in, double *out, uint n)
{
    uint i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n)
        return;
    double x = in[i];
    double *o = out + i * 8;
    o[0] = sin(x);
    o[1] = exp(x);
    o[2] = log(fabs(x) + 1e-3);
    o[3] = sqrt(fabs(x));
    o[4] = x / 3.7;
    o[5] = pow(fabs(x), 1.7);
    o[6] = rint(x);
    o[7] = cbrt(x);
}

extern "C" __global__ void integers(const long long *in, long long *out, uint n)
{
    uint i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n)
        return;
    long long x = in[i], y = in[(i + 1) % n];
    int a = (int)x, b = (int)y;
    long long *o = out + i * 16;
    o[0] = y ? x / y : 1;
    o[1] = y ? x % y : 1;
    o[2] = b ? (uint)a / (uint)b : 1;
    o[3] = b && !(a == (-2147483647 - 1) && b == -1) ? a % b : 1;
    o[4] = __mul64hi(x, y);
    o[5] = __umulhi((uint)a, (uint)b);
    o[6] = __clz(a);
    o[7] = __popcll(x);
    o[8] = __brevll(x);
    o[9] = __funnelshift_l((uint)a, (uint)b, 11);
    o[10] = __byte_perm((uint)a, (uint)b, 0x5142);
    o[11] = __sad(a, b, 9u);
    o[12] = __ffsll(x);
    o[13] = (long long)((unsigned __int128)(u64)x * (u64)y >> 37);
    o[14] = (short)a * (signed char)b;
    o[15] = min(a, b) + (max(x, y) >> 3);
}

// A grid-wide barrier of spinning blocks.
extern "C" __global__ void grid_barrier(uint *arrived, uint *values, uint *out)
{
    uint me = blockIdx.x;
    if (threadIdx.x == 0) {
        values[me] = me * me;
        __threadfence();
        atomicAdd(arrived, 1);
        while (*(volatile uint *)arrived < gridDim.x)
            ;
        __threadfence();
    }
    __syncthreads();
    if (threadIdx.x == 0)
        out[me] = ((volatile uint *)values)[(me + 1) % gridDim.x];
}

extern "C" __global__ void forever(uint *out)
{
    volatile uint *p = out;
    while (*p == 0)
        ;
}

extern "C" __global__ void wild(uint *p, u64 offset) { p[offset + threadIdx.x] = 1; }

extern "C" __global__ void half_trap(uint *out)
{
    out[threadIdx.x] = 1;
    if (threadIdx.x == 40)
        __trap();
}
