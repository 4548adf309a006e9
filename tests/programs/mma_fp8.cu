// needs: sm_89
// nvcc: -gencode arch=compute_89,code=compute_89
// mma.sync of numbers of 8 bits with an exponent: e4m3 and e5m2, alike and mixed, sums as floats. Numbers that are powers of
// two and small multiples of them, so that all sums are exact.
#include <cuda_fp8.h>

#include "check.h"

#define KERNEL(name, types)                                                                                                  \
    __global__ void name(const unsigned *a, const unsigned *b, float *d) {                                                   \
        int group = threadIdx.x / 4, in = threadIdx.x % 4;                                                                   \
        float s[4] = {0.5f, 1, -2, 4};                                                                                       \
        asm volatile("mma.sync.aligned.m16n8k32.row.col.f32." types ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
                     : "+f"(s[0]), "+f"(s[1]), "+f"(s[2]), "+f"(s[3])                                                        \
                     : "r"(a[group * 8 + in]), "r"(a[(group + 8) * 8 + in]), "r"(a[group * 8 + in + 4]),                     \
                       "r"(a[(group + 8) * 8 + in + 4]), "r"(b[group * 8 + in]), "r"(b[group * 8 + in + 4]));                \
        for (int i = 0; i < 4; i++) d[(group + i / 2 * 8) * 8 + in * 2 + i % 2] = s[i];                                      \
    }
KERNEL(e4m3, "e4m3.e4m3")
KERNEL(e5m2, "e5m2.e5m2")
KERNEL(e4m3_e5m2, "e4m3.e5m2")
KERNEL(e5m2_e4m3, "e5m2.e4m3")

template <typename Left, typename Right> void run(const char *name, void (*kernel)(const unsigned *, const unsigned *, float *)) {
    Random random(sizeof(Left) + name[1]);
    std::vector<unsigned> a(16 * 8), b(8 * 8);
    std::vector<double> x(16 * 32), y(8 * 32);
    auto number = [&] { return (int(random.below(7)) - 3) * (1 << random.below(3)) / 2.0; };
    for (size_t i = 0; i < x.size(); i++) {
        Left value{float(x[i] = number())};
        a[i / 4] |= unsigned(value.__x) << i % 4 * 8;
    }
    for (size_t i = 0; i < y.size(); i++) {
        Right value{float(y[i] = number())};
        b[i / 4] |= unsigned(value.__x) << i % 4 * 8;
    }
    Array<unsigned> left(a), right(b);
    Array<float> out(128);
    kernel<<<1, 32>>>(left, right, out);
    RAN();
    auto got = out.host();
    const float start[] = {0.5f, 1, -2, 4};
    for (int r = 0; r < 16; r++)
        for (int n = 0; n < 8; n++) {
            double sum = start[r / 8 * 2 + n % 2];
            for (int i = 0; i < 32; i++) sum += x[r * 32 + i] * y[n * 32 + i];
            CHECK(got[r * 8 + n] == sum, "%s: %d, %d: %g, not %g", name, r, n, got[r * 8 + n], sum);
        }
    printf("%s: %016llx\n", name, (unsigned long long)check::hash(got));
}

int main() {
    run<__nv_fp8_e4m3, __nv_fp8_e4m3>("e4m3", e4m3);
    run<__nv_fp8_e5m2, __nv_fp8_e5m2>("e5m2", e5m2);
    run<__nv_fp8_e4m3, __nv_fp8_e5m2>("e4m3 and e5m2", e4m3_e5m2);
    run<__nv_fp8_e5m2, __nv_fp8_e4m3>("e5m2 and e4m3", e5m2_e4m3);
    return check::pass();
}
