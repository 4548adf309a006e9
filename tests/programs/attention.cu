// needs: sm_80
// nvcc: -std=c++17 -gencode arch=compute_80,code=compute_80
// Attention as one kernel: products of queries and keys on tensor cores, a softmax that goes on from tile to tile with the
// greatest so far, products with values; against doubles on the host. Then a layer's norm by warps, with its mean and variance.
#include <cuda_fp16.h>

#include "check.h"

constexpr int LENGTH = 128, WIDTH = 32, TILE = 16;

__device__ unsigned pair(const __half *p) { return *reinterpret_cast<const unsigned *>(p); }
__device__ unsigned pack(float low, float high) {
    __half2 both = __floats2half2_rn(low, high);
    return *reinterpret_cast<unsigned *>(&both);
}
__device__ void multiply(float (&s)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(s[0]), "+f"(s[1]), "+f"(s[2]), "+f"(s[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// A warp has 16 queries; keys and values come 16 at a time. Values lie by columns (`turned`).
__global__ void attend(const __half *queries, const __half *keys, const __half *turned, float *out) {
    int lane = threadIdx.x % 32, group = lane / 4, in = lane % 4, row = blockIdx.x * TILE;
    unsigned q[WIDTH / 16][4];
    for (int k = 0; k < WIDTH / 16; k++)
        for (int i = 0; i < 4; i++) q[k][i] = pair(&queries[(row + group + i % 2 * 8) * WIDTH + k * 16 + in * 2 + i / 2 * 8]);
    float result[WIDTH / 8][4] = {}, most[2] = {-INFINITY, -INFINITY}, total[2] = {};
    for (int tile = 0; tile < LENGTH; tile += TILE) {
        float s[2][4] = {};
        for (int h = 0; h < 2; h++)
            for (int k = 0; k < WIDTH / 16; k++) {
                const __half *key = &keys[(tile + h * 8 + group) * WIDTH + k * 16 + in * 2];
                multiply(s[h], q[k], pair(key), pair(key + 8));
            }
        for (int r = 0; r < 2; r++) {
            float high = fmaxf(fmaxf(s[0][r * 2], s[0][r * 2 + 1]), fmaxf(s[1][r * 2], s[1][r * 2 + 1]));
            for (int offset = 1; offset < 4; offset *= 2) high = fmaxf(high, __shfl_xor_sync(~0u, high, offset));
            high = fmaxf(high, most[r]);
            float scale = expf(most[r] - high), sum = 0;
            most[r] = high;
            for (int h = 0; h < 2; h++)
                for (int i = 0; i < 2; i++) sum += s[h][r * 2 + i] = expf(s[h][r * 2 + i] - high);
            for (int offset = 1; offset < 4; offset *= 2) sum += __shfl_xor_sync(~0u, sum, offset);
            total[r] = total[r] * scale + sum;
            for (auto &column : result) column[r * 2] *= scale, column[r * 2 + 1] *= scale;
        }
        const unsigned p[4] = {pack(s[0][0], s[0][1]), pack(s[0][2], s[0][3]), pack(s[1][0], s[1][1]), pack(s[1][2], s[1][3])};
        for (int n = 0; n < WIDTH / 8; n++) {
            const __half *value = &turned[(n * 8 + group) * LENGTH + tile + in * 2];
            multiply(result[n], p, pair(value), pair(value + 8));
        }
    }
    for (int n = 0; n < WIDTH / 8; n++)
        for (int i = 0; i < 4; i++) out[(row + group + i / 2 * 8) * WIDTH + n * 8 + in * 2 + i % 2] = result[n][i] / total[i / 2];
}

__global__ void norm(const float *in, float *out) {
    int row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
    float x = in[row * WIDTH + lane], mean = x, square;
    for (int offset = 16; offset; offset /= 2) mean += __shfl_xor_sync(~0u, mean, offset);
    mean /= WIDTH;
    square = (x - mean) * (x - mean);
    for (int offset = 16; offset; offset /= 2) square += __shfl_xor_sync(~0u, square, offset);
    out[row * WIDTH + lane] = (x - mean) * rsqrtf(square / WIDTH + 1e-5f);
}

int main() {
    Random random(97);
    const int count = LENGTH * WIDTH;
    std::vector<__half> q(count), k(count), v(count);
    std::vector<double> x(count), y(count), z(count);
    for (int i = 0; i < count; i++) {
        x[i] = double(float(q[i] = __half(float(random.between(-1, 1)))));
        y[i] = double(float(k[i] = __half(float(random.between(-1, 1)))));
        int row = i / WIDTH, column = i % WIDTH;
        z[i] = double(float(v[column * LENGTH + row] = __half(float(random.between(-1, 1)))));
    }
    Array<__half> queries(q), keys(k), values(v);
    Array<float> out(count), normed(count);
    attend<<<LENGTH / TILE, 32>>>(queries, keys, values, out);
    norm<<<LENGTH / 4, 128>>>(out, normed);
    RAN();
    auto got = out.host(), after = normed.host();
    double worst = 0, worst_norm = 0;
    for (int r = 0; r < LENGTH; r++) {
        double weight[LENGTH], total = 0, row[WIDTH] = {}, mean = 0, square = 0;
        for (int c = 0; c < LENGTH; c++) {
            double score = 0;
            for (int i = 0; i < WIDTH; i++) score += x[r * WIDTH + i] * y[c * WIDTH + i];
            total += weight[c] = std::exp(score);
        }
        for (int c = 0; c < LENGTH; c++)
            for (int i = 0; i < WIDTH; i++) row[i] += weight[c] / total * z[c * WIDTH + i];
        for (int i = 0; i < WIDTH; i++) worst = std::max(worst, std::fabs(row[i] - got[r * WIDTH + i]));
        for (int i = 0; i < WIDTH; i++) mean += double(got[r * WIDTH + i]) / WIDTH;
        for (int i = 0; i < WIDTH; i++) square += std::pow(got[r * WIDTH + i] - mean, 2) / WIDTH;
        for (int i = 0; i < WIDTH; i++) worst_norm = std::max(worst_norm, std::fabs((got[r * WIDTH + i] - mean) / std::sqrt(square + 1e-5) - after[r * WIDTH + i]));
    }
    CHECK(worst < 2e-3, "%g beside what it should be", worst);
    CHECK(worst_norm < 1e-4, "the norm: %g beside what it should be", worst_norm);
    printf("%d by %d\n", LENGTH, WIDTH);
    return check::pass();
}
