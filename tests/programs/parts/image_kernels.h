// What the programs image_….cu have in common: kernels of different sizes, and a check of each.
#include "../check.h"

template <int N> __global__ void polynomial(const float *in, float *out, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    float value = 0;
#pragma unroll
    for (int k = 0; k < N; k++) value = value * in[i] + float(k);
    out[i] = value;
}
__global__ void which(int *out) {
#ifdef __CUDA_ARCH__
    *out = __CUDA_ARCH__;
#endif
}

template <int N> void checked(const std::vector<float> &values, const Array<float> &in) {
    Array<float> out(values.size());
    polynomial<N><<<blocks(values.size(), 64), 64>>>(in, out, int(values.size()));
    RAN();
    auto got = out.host();
    for (size_t i = 0; i < values.size(); i++) {
        float expected = 0;
        for (int k = 0; k < N; k++) expected = std::fma(expected, values[i], float(k));
        CHECK(got[i] == expected, "degree %d, element %zu: %g, not %g", N, i, got[i], expected);
    }
}

int main() {
    std::vector<float> values(300);
    for (size_t i = 0; i < values.size(); i++) values[i] = float(int(i) - 150) / 128;
    Array<float> in(values);
    checked<3>(values, in);
    checked<17>(values, in);
    checked<64>(values, in);
    Array<int> architecture(1);
    which<<<1, 1>>>(architecture);
    RAN();
#ifdef ARCHITECTURES
    CHECK(architecture.host()[0] == 800, "compiled for %d", architecture.host()[0]);
#else
    CHECK(architecture.host()[0] == 750, "compiled for %d", architecture.host()[0]);
#endif
    printf("four kernels\n");
    return check::pass();
}
