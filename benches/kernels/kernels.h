// Twenty classic kernels in one dialect: nvcc makes PTX of it, and PoCL takes it as OpenCL C, so both run the same text.
//
// Compiled by `cargo xtask kernels` and by `opencl`. Sizes are those of `cases`. It must not know which of the two
// languages it is read as but by the words defined here.

#ifdef __CUDACC__
#define KERNEL extern "C" __global__ void
#define DEVICE static __device__ __forceinline__
#define GLOBAL
#define SHARED __shared__
#define TABLE static __constant__
#define BARRIER() __syncthreads()
#define LOCAL_X threadIdx.x
#define LOCAL_Y threadIdx.y
#define GROUP_X blockIdx.x
#define GROUP_Y blockIdx.y
#define ADD_SHARED(place, value) atomicAdd(place, value)
#define ADD_GLOBAL(place, value) atomicAdd(place, value)
#define SQRT(x) sqrtf(x)
#define RSQRT(x) rsqrtf(x)
#define EXP(x) __expf(x)
#define SIN(x) __sinf(x)
#define COS(x) __cosf(x)
#define LOG(x) __logf(x)
#define MAX(a, b) fmaxf(a, b)
#define FMA(a, b, c) fmaf(a, b, c)
#else
#define KERNEL __kernel void
#define DEVICE static inline
#define GLOBAL __global
#define SHARED __local
#define TABLE __constant
#define BARRIER() barrier(CLK_LOCAL_MEM_FENCE)
#define LOCAL_X ((unsigned)get_local_id(0))
#define LOCAL_Y ((unsigned)get_local_id(1))
#define GROUP_X ((unsigned)get_group_id(0))
#define GROUP_Y ((unsigned)get_group_id(1))
#define ADD_SHARED(place, value) atomic_add((volatile __local unsigned *)(place), value)
#define ADD_GLOBAL(place, value) atomic_add((volatile __global unsigned *)(place), value)
#define SQRT(x) sqrt(x)
#define RSQRT(x) rsqrt(x)
#define EXP(x) exp(x)
#define SIN(x) sin(x)
#define COS(x) cos(x)
#define LOG(x) log(x)
#define MAX(a, b) fmax(a, b)
#define FMA(a, b, c) fma(a, b, c)
#endif

// c = a * b, both `side` a row, by tiles of 16 x 16.
KERNEL product_tiles(GLOBAL const float *a, GLOBAL const float *b, GLOBAL float *c, unsigned side) {
    SHARED float left[16][16];
    SHARED float right[16][16];
    unsigned x = LOCAL_X, y = LOCAL_Y;
    unsigned row = GROUP_Y * 16 + y, column = GROUP_X * 16 + x;
    float sum = 0.0f;
    for (unsigned tile = 0; tile < side; tile += 16) {
        left[y][x] = a[row * side + tile + x];
        right[y][x] = b[(tile + y) * side + column];
        BARRIER();
        for (unsigned k = 0; k < 16; ++k) sum = FMA(left[y][k], right[k][x], sum);
        BARRIER();
    }
    c[row * side + column] = sum;
}

#ifdef __CUDACC__
#include <cuda_fp16.h>
// c = a * b in half precision by tensor cores: each of four warps has 16 rows and 32 columns. `b` stands by columns.
KERNEL product_mma(const unsigned *a, const unsigned *b, float *c, unsigned side) {
    unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    unsigned row = blockIdx.y * 64 + warp * 16, column = blockIdx.x * 32;
    unsigned group = lane / 4, pair = lane % 4, pitch = side / 2;
    float sums[4][4] = {};
    for (unsigned k = 0; k < side; k += 16) {
        const unsigned *from = a + (row + group) * pitch + k / 2 + pair;
        unsigned a0 = from[0], a1 = from[8 * pitch], a2 = from[4], a3 = from[8 * pitch + 4];
        for (unsigned n = 0; n < 4; ++n) {
            const unsigned *other = b + (column + n * 8 + group) * pitch + k / 2 + pair;
            unsigned b0 = other[0], b1 = other[4];
            float *s = sums[n];
            asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                         : "+f"(s[0]), "+f"(s[1]), "+f"(s[2]), "+f"(s[3])
                         : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
        }
    }
    for (unsigned n = 0; n < 4; ++n) {
        float *to = c + (row + group) * side + column + n * 8 + pair * 2;
        to[0] = sums[n][0];
        to[1] = sums[n][1];
        to[8 * side] = sums[n][2];
        to[8 * side + 1] = sums[n][3];
    }
}
#else
// The same product without tensor cores: 128 work-items have 64 rows and 32 columns, 16 sums each.
KERNEL product_mma(GLOBAL const half *a, GLOBAL const half *b, GLOBAL float *c, unsigned side) {
    SHARED float left[64][16];
    SHARED float right[32][16];
    unsigned x = LOCAL_X % 32, y = LOCAL_X / 32;
    float sums[16];
    for (unsigned i = 0; i < 16; ++i) sums[i] = 0.0f;
    for (unsigned tile = 0; tile < side; tile += 16) {
        for (unsigned i = LOCAL_X; i < 64 * 16; i += 128)
            left[i / 16][i % 16] = vload_half((GROUP_Y * 64 + i / 16) * side + tile + i % 16, a);
        for (unsigned i = LOCAL_X; i < 32 * 16; i += 128)
            right[i / 16][i % 16] = vload_half((GROUP_X * 32 + i / 16) * side + tile + i % 16, b);
        BARRIER();
        for (unsigned k = 0; k < 16; ++k) {
            float other = right[x][k];
            for (unsigned i = 0; i < 16; ++i) sums[i] = FMA(left[y * 16 + i][k], other, sums[i]);
        }
        BARRIER();
    }
    for (unsigned i = 0; i < 16; ++i) c[(GROUP_Y * 64 + y * 16 + i) * side + GROUP_X * 32 + x] = sums[i];
}
#endif

// One sum for each block of 256 threads over `each` elements a thread.
KERNEL reduction(GLOBAL const float *from, GLOBAL float *to, unsigned each) {
    SHARED float sums[256];
    unsigned x = LOCAL_X, start = GROUP_X * 256 * each + x;
    float sum = 0.0f;
    for (unsigned i = 0; i < each; ++i) sum += from[start + i * 256];
    sums[x] = sum;
    BARRIER();
    for (unsigned half_way = 128; half_way > 0; half_way /= 2) {
        if (x < half_way) sums[x] += sums[x + half_way];
        BARRIER();
    }
    if (x == 0) to[GROUP_X] = sums[0];
}

// Sums of all before, in each block of 512 elements (Blelloch); the block's sum to `sums`.
KERNEL scan(GLOBAL const unsigned *from, GLOBAL unsigned *to, GLOBAL unsigned *sums) {
    SHARED unsigned tree[512];
    unsigned x = LOCAL_X, base = GROUP_X * 512, offset = 1;
    tree[2 * x] = from[base + 2 * x];
    tree[2 * x + 1] = from[base + 2 * x + 1];
    for (unsigned d = 256; d > 0; d /= 2) {
        BARRIER();
        if (x < d) tree[offset * (2 * x + 2) - 1] += tree[offset * (2 * x + 1) - 1];
        offset *= 2;
    }
    if (x == 0) {
        sums[GROUP_X] = tree[511];
        tree[511] = 0;
    }
    for (unsigned d = 1; d < 512; d *= 2) {
        offset /= 2;
        BARRIER();
        if (x < d) {
            unsigned i = offset * (2 * x + 1) - 1, j = offset * (2 * x + 2) - 1;
            unsigned old = tree[i];
            tree[i] = tree[j];
            tree[j] += old;
        }
    }
    BARRIER();
    to[base + 2 * x] = tree[2 * x];
    to[base + 2 * x + 1] = tree[2 * x + 1];
}

KERNEL scan_add(GLOBAL unsigned *to, GLOBAL const unsigned *sums) {
    unsigned i = GROUP_X * 512 + LOCAL_X;
    to[i] += sums[GROUP_X];
    to[i + 256] += sums[GROUP_X];
}

// Prefix sums in each block of 256 (Hillis and Steele) say where what is below `limit` goes.
KERNEL prefix_count(GLOBAL const unsigned *from, GLOBAL unsigned *counts, unsigned limit) {
    SHARED unsigned sums[256];
    unsigned x = LOCAL_X;
    sums[x] = from[GROUP_X * 256 + x] < limit ? 1 : 0;
    BARRIER();
    for (unsigned d = 1; d < 256; d *= 2) {
        unsigned other = x >= d ? sums[x - d] : 0;
        BARRIER();
        sums[x] += other;
        BARRIER();
    }
    if (x == 255) counts[GROUP_X] = sums[255];
}

// Sums of all before over at most 256 * `each` counts, by one block.
KERNEL prefix_bases(GLOBAL const unsigned *counts, GLOBAL unsigned *bases, unsigned each) {
    SHARED unsigned sums[256];
    unsigned x = LOCAL_X, sum = 0;
    for (unsigned i = 0; i < each; ++i) sum += counts[x * each + i];
    sums[x] = sum;
    BARRIER();
    for (unsigned d = 1; d < 256; d *= 2) {
        unsigned other = x >= d ? sums[x - d] : 0;
        BARRIER();
        sums[x] += other;
        BARRIER();
    }
    unsigned base = sums[x] - sum;
    for (unsigned i = 0; i < each; ++i) {
        bases[x * each + i] = base;
        base += counts[x * each + i];
    }
}

KERNEL prefix_place(GLOBAL const unsigned *from, GLOBAL const unsigned *bases, GLOBAL unsigned *to, unsigned limit) {
    SHARED unsigned sums[256];
    unsigned x = LOCAL_X, value = from[GROUP_X * 256 + x], chosen = value < limit ? 1 : 0;
    sums[x] = chosen;
    BARRIER();
    for (unsigned d = 1; d < 256; d *= 2) {
        unsigned other = x >= d ? sums[x - d] : 0;
        BARRIER();
        sums[x] += other;
        BARRIER();
    }
    if (chosen) to[bases[GROUP_X] + sums[x] - 1] = value;
}

// By tiles of 32 x 32, blocks of 32 x 8.
KERNEL transpose(GLOBAL const float *from, GLOBAL float *to, unsigned side) {
    SHARED float tile[32][33];
    unsigned x = LOCAL_X, y = LOCAL_Y, left = GROUP_X * 32, top = GROUP_Y * 32;
    for (unsigned i = y; i < 32; i += 8) tile[i][x] = from[(top + i) * side + left + x];
    BARRIER();
    for (unsigned i = y; i < 32; i += 8) to[(left + i) * side + top + x] = tile[x][i];
}

// Of bytes, four in a word, `each` words a thread.
KERNEL histogram(GLOBAL const unsigned *from, GLOBAL unsigned *bins, unsigned each) {
    SHARED unsigned own[256];
    unsigned x = LOCAL_X, start = GROUP_X * 256 * each + x;
    own[x] = 0;
    BARRIER();
    for (unsigned i = 0; i < each; ++i) {
        unsigned word = from[start + i * 256];
        ADD_SHARED(&own[word & 255], 1);
        ADD_SHARED(&own[word >> 8 & 255], 1);
        ADD_SHARED(&own[word >> 16 & 255], 1);
        ADD_SHARED(&own[word >> 24], 1);
    }
    BARRIER();
    ADD_GLOBAL(&bins[x], own[x]);
}

// A step of Jacobi's method on a square, borders kept.
KERNEL stencil(GLOBAL const float *from, GLOBAL float *to, unsigned side) {
    unsigned x = GROUP_X * 32 + LOCAL_X, y = GROUP_Y * 8 + LOCAL_Y, i = y * side + x;
    if (x == 0 || y == 0 || x == side - 1 || y == side - 1) {
        to[i] = from[i];
        return;
    }
    to[i] = 0.25f * (from[i - 1] + from[i + 1] + from[i - side] + from[i + side]);
}

// 512 complex values a block, 256 threads, Stockham's order. `from` and `to` hold pairs.
KERNEL fft(GLOBAL const float *from, GLOBAL float *to) {
    SHARED float real[2][512];
    SHARED float imaginary[2][512];
    unsigned x = LOCAL_X, base = GROUP_X * 512, now = 0;
    for (unsigned i = x; i < 512; i += 256) {
        real[0][i] = from[2 * (base + i)];
        imaginary[0][i] = from[2 * (base + i) + 1];
    }
    for (unsigned half_way = 1; half_way < 512; half_way *= 2) {
        BARRIER();
        unsigned k = x & (half_way - 1), to_first = ((x - k) << 1) + k;
        float angle = -3.14159265f * (float)k / (float)half_way;
        float c = COS(angle), s = SIN(angle);
        float ar = real[now][x], ai = imaginary[now][x], br = real[now][x + 256], bi = imaginary[now][x + 256];
        float tr = c * br - s * bi, ti = c * bi + s * br;
        now ^= 1;
        real[now][to_first] = ar + tr;
        imaginary[now][to_first] = ai + ti;
        real[now][to_first + half_way] = ar - tr;
        imaginary[now][to_first + half_way] = ai - ti;
    }
    BARRIER();
    for (unsigned i = x; i < 512; i += 256) {
        to[2 * (base + i)] = real[now][i];
        to[2 * (base + i) + 1] = imaginary[now][i];
    }
}

// One step of a bitonic sort in global memory.
KERNEL sort_step(GLOBAL unsigned *values, unsigned size, unsigned stride) {
    unsigned x = GROUP_X * 256 + LOCAL_X;
    unsigned low = (x & ~(stride - 1)) * 2 + (x & (stride - 1)), high = low + stride;
    unsigned a = values[low], b = values[high];
    if ((a > b) == ((low & size) == 0)) {
        values[low] = b;
        values[high] = a;
    }
}

// All steps of strides below 512 in shared memory: of sizes up to 512 if `size` is 0, else of this one.
KERNEL sort_tile(GLOBAL unsigned *values, unsigned size) {
    SHARED unsigned tile[512];
    unsigned x = LOCAL_X, base = GROUP_X * 512;
    tile[x] = values[base + x];
    tile[x + 256] = values[base + x + 256];
    for (unsigned now = size == 0 ? 2 : size; now <= (size == 0 ? 512 : size); now *= 2)
        for (unsigned stride = now / 2 < 256 ? now / 2 : 256; stride > 0; stride /= 2) {
            BARRIER();
            unsigned low = (x & ~(stride - 1)) * 2 + (x & (stride - 1)), high = low + stride;
            unsigned a = tile[low], b = tile[high];
            if ((a > b) == (((base + low) & now) == 0)) {
                tile[low] = b;
                tile[high] = a;
            }
        }
    BARRIER();
    values[base + x] = tile[x];
    values[base + x + 256] = tile[x + 256];
}

// Compressed rows, a thread a row.
KERNEL sparse(GLOBAL const unsigned *rows, GLOBAL const unsigned *columns, GLOBAL const float *values, GLOBAL const float *x,
              GLOBAL float *y) {
    unsigned row = GROUP_X * 256 + LOCAL_X;
    float sum = 0.0f;
    for (unsigned i = rows[row]; i < rows[row + 1]; ++i) sum = FMA(values[i], x[columns[i]], sum);
    y[row] = sum;
}

// Points in a quarter of a circle, of `each` random ones a thread (xorshift).
KERNEL monte_carlo(GLOBAL unsigned *counts, unsigned each) {
    unsigned thread = GROUP_X * 256 + LOCAL_X, state = thread * 2654435761u + 12345u, inside = 0;
    for (unsigned i = 0; i < each; ++i) {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        float x = (float)(state & 0xffff) * (1.0f / 65536.0f), y = (float)(state >> 16) * (1.0f / 65536.0f);
        if (FMA(x, x, y * y) < 1.0f) inside += 1;
    }
    counts[thread] = inside;
}

KERNEL mandelbrot(GLOBAL unsigned *to, unsigned side, unsigned most) {
    unsigned x = GROUP_X * 32 + LOCAL_X, y = GROUP_Y * 8 + LOCAL_Y, n = 0;
    float cr = FMA((float)x, 3.0f / (float)side, -2.0f), ci = FMA((float)y, 3.0f / (float)side, -1.5f);
    float zr = 0.0f, zi = 0.0f;
    while (n < most) {
        float rr = zr * zr, ii = zi * zi;
        if (rr + ii > 4.0f) break;
        zi = FMA(zr + zr, zi, ci);
        zr = rr - ii + cr;
        n += 1;
    }
    to[y * side + x] = n;
}

// 7 x 7 over a square of pitch `side + 6`.
KERNEL convolution(GLOBAL const float *from, GLOBAL const float *weights, GLOBAL float *to, unsigned side) {
    SHARED float tile[22][23];
    SHARED float own[49];
    unsigned x = LOCAL_X, y = LOCAL_Y, left = GROUP_X * 16, top = GROUP_Y * 16;
    for (unsigned i = y; i < 22; i += 16)
        for (unsigned j = x; j < 22; j += 16) tile[i][j] = from[(top + i) * (side + 6) + left + j];
    if (y * 16 + x < 49) own[y * 16 + x] = weights[y * 16 + x];
    BARRIER();
    float sum = 0.0f;
    for (unsigned i = 0; i < 7; ++i)
        for (unsigned j = 0; j < 7; ++j) sum = FMA(tile[y + i][x + j], own[i * 7 + j], sum);
    to[(top + y) * side + left + x] = sum;
}

// A block of 64 threads for each query; keys and values of 64 numbers.
KERNEL attention(GLOBAL const float *q, GLOBAL const float *k, GLOBAL const float *v, GLOBAL float *to, unsigned count) {
    SHARED float query[64];
    SHARED float weights[64];
    unsigned x = LOCAL_X, row = GROUP_X;
    float most = -1e30f, sum = 0.0f, result = 0.0f;
    query[x] = q[row * 64 + x] * 0.125f;
    for (unsigned tile = 0; tile < count; tile += 64) {
        BARRIER();
        float score = 0.0f;
        for (unsigned i = 0; i < 64; ++i) score = FMA(query[i], k[i * count + tile + x], score);
        weights[x] = score;
        BARRIER();
        float highest = most;
        for (unsigned i = 0; i < 64; ++i) highest = MAX(highest, weights[i]);
        float scale = EXP(most - highest);
        most = highest;
        BARRIER();
        weights[x] = EXP(score - most);
        BARRIER();
        sum *= scale;
        result *= scale;
        for (unsigned i = 0; i < 64; ++i) {
            sum += weights[i];
            result = FMA(weights[i], v[(tile + i) * 64 + x], result);
        }
    }
    to[row * 64 + x] = result / sum;
}

// A block of 256 threads a row of `width`.
KERNEL softmax(GLOBAL const float *from, GLOBAL float *to, unsigned width) {
    SHARED float shared[256];
    unsigned x = LOCAL_X, base = GROUP_X * width;
    float most = -1e30f, sum = 0.0f;
    for (unsigned i = x; i < width; i += 256) most = MAX(most, from[base + i]);
    shared[x] = most;
    BARRIER();
    for (unsigned d = 128; d > 0; d /= 2) {
        if (x < d) shared[x] = MAX(shared[x], shared[x + d]);
        BARRIER();
    }
    most = shared[0];
    BARRIER();
    for (unsigned i = x; i < width; i += 256) sum += EXP(from[base + i] - most);
    shared[x] = sum;
    BARRIER();
    for (unsigned d = 128; d > 0; d /= 2) {
        if (x < d) shared[x] += shared[x + d];
        BARRIER();
    }
    sum = 1.0f / shared[0];
    for (unsigned i = x; i < width; i += 256) to[base + i] = EXP(from[base + i] - most) * sum;
}

KERNEL layer_norm(GLOBAL const float *from, GLOBAL const float *scale, GLOBAL const float *shift, GLOBAL float *to,
                  unsigned width) {
    SHARED float sums[256];
    SHARED float squares[256];
    unsigned x = LOCAL_X, base = GROUP_X * width;
    float sum = 0.0f, square = 0.0f;
    for (unsigned i = x; i < width; i += 256) {
        float value = from[base + i];
        sum += value;
        square = FMA(value, value, square);
    }
    sums[x] = sum;
    squares[x] = square;
    BARRIER();
    for (unsigned d = 128; d > 0; d /= 2) {
        if (x < d) {
            sums[x] += sums[x + d];
            squares[x] += squares[x + d];
        }
        BARRIER();
    }
    float mean = sums[0] / (float)width;
    float inverse = RSQRT(squares[0] / (float)width - mean * mean + 1e-5f);
    for (unsigned i = x; i < width; i += 256)
        to[base + i] = FMA((from[base + i] - mean) * inverse, scale[i], shift[i]);
}

// One level of a breadth-first search: a thread a node.
KERNEL bfs(GLOBAL const unsigned *rows, GLOBAL const unsigned *columns, GLOBAL unsigned *levels, unsigned level) {
    unsigned node = GROUP_X * 256 + LOCAL_X;
    if (levels[node] != level) return;
    for (unsigned i = rows[node]; i < rows[node + 1]; ++i) {
        unsigned other = columns[i];
        if (levels[other] == 0xffffffffu) levels[other] = level + 1;
    }
}

TABLE unsigned sha_words[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5, 0xd807aa98, 0x12835b01,
    0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc,
    0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147,
    0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116, 0x1e376c08,
    0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208,
    0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

DEVICE unsigned turned(unsigned x, unsigned n) { return x >> n | x << (32 - n); }

// One block of SHA-256 a thread: word i of message m at from[i * count + m]; so the result.
KERNEL sha256(GLOBAL const unsigned *from, GLOBAL unsigned *to, unsigned count) {
    unsigned m = GROUP_X * 256 + LOCAL_X;
    unsigned w[16];
    for (unsigned i = 0; i < 16; ++i) w[i] = from[i * count + m];
    unsigned a = 0x6a09e667, b = 0xbb67ae85, c = 0x3c6ef372, d = 0xa54ff53a;
    unsigned e = 0x510e527f, f = 0x9b05688c, g = 0x1f83d9ab, h = 0x5be0cd19;
#pragma unroll
    for (unsigned i = 0; i < 64; ++i) {
        if (i >= 16) {
            unsigned p = w[(i + 1) % 16], q = w[(i + 14) % 16];
            w[i % 16] += (turned(p, 7) ^ turned(p, 18) ^ p >> 3) + w[(i + 9) % 16] + (turned(q, 17) ^ turned(q, 19) ^ q >> 10);
        }
        unsigned t = h + (turned(e, 6) ^ turned(e, 11) ^ turned(e, 25)) + ((e & f) ^ (~e & g)) + sha_words[i] + w[i % 16];
        unsigned u = (turned(a, 2) ^ turned(a, 13) ^ turned(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
        h = g;
        g = f;
        f = e;
        e = d + t;
        d = c;
        c = b;
        b = a;
        a = t + u;
    }
    to[m] = a + 0x6a09e667;
    to[count + m] = b + 0xbb67ae85;
    to[2 * count + m] = c + 0x3c6ef372;
    to[3 * count + m] = d + 0xa54ff53a;
    to[4 * count + m] = e + 0x510e527f;
    to[5 * count + m] = f + 0x9b05688c;
    to[6 * count + m] = g + 0x1f83d9ab;
    to[7 * count + m] = h + 0x5be0cd19;
}

// Where a word of `length` bytes stands in a text: 1 for each place.
KERNEL search(GLOBAL const unsigned char *text, GLOBAL const unsigned char *word, GLOBAL unsigned *found, unsigned length) {
    SHARED unsigned char own[32];
    unsigned x = LOCAL_X, at = GROUP_X * 256 + x, i = 0;
    if (x < length) own[x] = word[x];
    BARRIER();
    while (i < length && text[at + i] == own[i]) ++i;
    found[at] = i == length ? 1 : 0;
}

// Accelerations of bodies (x, y, z, mass each), tiles of 256.
KERNEL nbody(GLOBAL const float *bodies, GLOBAL float *to, unsigned tiles) {
    SHARED float tile[256][4];
    unsigned x = LOCAL_X, own = GROUP_X * 256 + x;
    float px = bodies[own * 4], py = bodies[own * 4 + 1], pz = bodies[own * 4 + 2];
    float ax = 0.0f, ay = 0.0f, az = 0.0f;
    for (unsigned t = 0; t < tiles; ++t) {
        for (unsigned i = 0; i < 4; ++i) tile[x][i] = bodies[(t * 256 + x) * 4 + i];
        BARRIER();
        for (unsigned j = 0; j < 256; ++j) {
            float dx = tile[j][0] - px, dy = tile[j][1] - py, dz = tile[j][2] - pz;
            float inverse = RSQRT(FMA(dx, dx, FMA(dy, dy, FMA(dz, dz, 0.01f))));
            float pull = tile[j][3] * (inverse * inverse * inverse);
            ax = FMA(dx, pull, ax);
            ay = FMA(dy, pull, ay);
            az = FMA(dz, pull, az);
        }
        BARRIER();
    }
    to[own * 4] = ax;
    to[own * 4 + 1] = ay;
    to[own * 4 + 2] = az;
    to[own * 4 + 3] = 0.0f;
}
