// needs: sm_80
// nvcc: -gencode arch=compute_80,code=compute_80
// mma.sync of bfloat16, of tf32 and of doubles; halves with sums as halves. Small whole numbers: all sums are exact. What tf32
// does not hold of a float is not seen.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "check.h"

__device__ unsigned pair(const __nv_bfloat16 *p) { return *reinterpret_cast<const unsigned *>(p); }
__device__ unsigned pair(const __half *p) { return *reinterpret_cast<const unsigned *>(p); }

// The right matrix lies by columns in all of them.
__global__ void bfloats(const __nv_bfloat16 *a, const __nv_bfloat16 *b, float *d) {
    int group = threadIdx.x / 4, in = threadIdx.x % 4;
    float s[4] = {1, 2, 3, 4};
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(s[0]), "+f"(s[1]), "+f"(s[2]), "+f"(s[3])
                 : "r"(pair(&a[group * 16 + in * 2])), "r"(pair(&a[(group + 8) * 16 + in * 2])), "r"(pair(&a[group * 16 + in * 2 + 8])),
                   "r"(pair(&a[(group + 8) * 16 + in * 2 + 8])), "r"(pair(&b[group * 16 + in * 2])), "r"(pair(&b[group * 16 + in * 2 + 8])));
    for (int i = 0; i < 4; i++) d[(group + i / 2 * 8) * 8 + in * 2 + i % 2] = s[i];
}

__global__ void halves(const __half *a, const __half *b, float *d) {
    int group = threadIdx.x / 4, in = threadIdx.x % 4;
    // 1 and 2, 3 and 4.
    unsigned s[2] = {0x40003c00, 0x44004200};
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%0, %1}, {%2, %3, %4, %5}, {%6, %7}, {%0, %1};"
                 : "+r"(s[0]), "+r"(s[1])
                 : "r"(pair(&a[group * 16 + in * 2])), "r"(pair(&a[(group + 8) * 16 + in * 2])), "r"(pair(&a[group * 16 + in * 2 + 8])),
                   "r"(pair(&a[(group + 8) * 16 + in * 2 + 8])), "r"(pair(&b[group * 16 + in * 2])), "r"(pair(&b[group * 16 + in * 2 + 8])));
    for (int i = 0; i < 4; i++) d[(group + i / 2 * 8) * 8 + in * 2 + i % 2] = __half2float(reinterpret_cast<__half *>(s)[i]);
}

__global__ void tf32(const float *a, const float *b, float *d) {
    int group = threadIdx.x / 4, in = threadIdx.x % 4;
    float s[4] = {1, 2, 3, 4};
    auto bits = [](float value) { return __float_as_uint(value); };
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(s[0]), "+f"(s[1]), "+f"(s[2]), "+f"(s[3])
                 : "r"(bits(a[group * 8 + in])), "r"(bits(a[(group + 8) * 8 + in])), "r"(bits(a[group * 8 + in + 4])),
                   "r"(bits(a[(group + 8) * 8 + in + 4])), "r"(bits(b[group * 8 + in])), "r"(bits(b[group * 8 + in + 4])));
    for (int i = 0; i < 4; i++) d[(group + i / 2 * 8) * 8 + in * 2 + i % 2] = s[i];
}

// Rounded to tf32 first, to nearest and away from zero.
__global__ void round_to_tf32(const float *in, unsigned *out, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(out[i]) : "f"(in[i]));
}

__global__ void doubles(const double *a, const double *b, double *d) {
    int group = threadIdx.x / 4, in = threadIdx.x % 4;
    double s[2] = {0.5, -0.5};
    for (int k = 0; k < 16; k += 4)
        asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
                     : "+d"(s[0]), "+d"(s[1])
                     : "d"(a[group * 16 + k + in]), "d"(b[group * 16 + k + in]));
    for (int i = 0; i < 2; i++) d[group * 8 + in * 2 + i] = s[i];
}

template <typename In, typename Sum, typename Kernel> void run(const char *name, Kernel kernel, int rows, int k, const std::vector<double> &start, double beyond) {
    Random random(k + rows);
    std::vector<In> a(rows * k), b(8 * k);
    std::vector<double> x(rows * k), y(8 * k);
    for (int i = 0; i < rows * k; i++) a[i] = In(float((x[i] = int(random.below(19)) - 9) + (x[i] > 0 ? beyond : 0)));
    for (int i = 0; i < 8 * k; i++) b[i] = In(float(y[i] = int(random.below(19)) - 9));
    Array<In> left(a), right(b);
    Array<Sum> out(rows * 8);
    kernel<<<1, 32>>>(left, right, out);
    RAN();
    auto got = out.host();
    for (int r = 0; r < rows; r++)
        for (int n = 0; n < 8; n++) {
            double sum = start[(r / 8 * 2 + n % 2) % start.size()];
            for (int i = 0; i < k; i++) sum += x[r * k + i] * y[n * k + i];
            CHECK(double(got[r * 8 + n]) == sum, "%s: %d, %d: %g, not %g", name, r, n, double(got[r * 8 + n]), sum);
        }
    printf("%s: %016llx\n", name, (unsigned long long)check::hash(got));
}

int main() {
    run<__nv_bfloat16, float>("bfloat16", bfloats, 16, 16, {1, 2, 3, 4}, 0);
    run<__half, float>("halves", halves, 16, 16, {1, 2, 3, 4}, 0);
    run<float, float>("tf32", tf32, 16, 8, {1, 2, 3, 4}, 0);
    run<float, float>("tf32 of more bits than it has", tf32, 16, 8, {1, 2, 3, 4}, 1.0 / 8192);
    run<double, double>("doubles", doubles, 8, 16, {0.5, -0.5}, 0);

    std::vector<float> values;
    Random random(9);
    for (int i = 0; i < 2000; i++) {
        uint32_t bits = random.bits();
        // Finite ones, with ties among them.
        if ((bits >> 23 & 0xff) == 0xff || (bits >> 23 & 0xff) == 0) bits ^= 0x40000000;
        if (i % 4 == 0) bits = (bits & ~0x1fffu) | 0x1000;
        float value;
        memcpy(&value, &bits, 4);
        values.push_back(value);
    }
    Array<float> in(values);
    Array<unsigned> out(values.size());
    round_to_tf32<<<blocks(values.size(), 128), 128>>>(in, out, int(values.size()));
    RAN();
    auto got = out.host();
    for (size_t i = 0; i < values.size(); i++) {
        uint32_t bits;
        memcpy(&bits, &values[i], 4);
        uint32_t expected = (bits + 0x1000) & ~0x1fffu;
        CHECK((got[i] & ~0x1fffu) == expected, "%08x becomes %08x, not %08x", bits, got[i], expected);
    }
    printf("%zu rounded\n", values.size());
    return check::pass();
}
