// needs: plain
// Fast Fourier transform, radix 2, one block a signal, in shared memory; against a plain transform
// in double on the host, and back again.
#include <complex>

#include "check.h"

const int size = 512, bits = 9, signals = 6;

__global__ void fft(float2 *data, int sign) {
    __shared__ float2 s[size];
    float2 *signal = data + blockIdx.x * size;
    for (int i = threadIdx.x; i < size; i += blockDim.x) s[__brev(i) >> (32 - bits)] = signal[i];
    for (int half = 1; half < size; half *= 2) {
        __syncthreads();
        int k = threadIdx.x % half, even = (threadIdx.x / half) * 2 * half + k, odd = even + half;
        float sine, cosine;
        sincospif(float(sign * k) / half, &sine, &cosine);
        float2 a = s[even], b = s[odd];
        float2 t = {b.x * cosine - b.y * sine, b.x * sine + b.y * cosine};
        s[even] = {a.x + t.x, a.y + t.y};
        s[odd] = {a.x - t.x, a.y - t.y};
    }
    __syncthreads();
    for (int i = threadIdx.x; i < size; i += blockDim.x) signal[i] = s[i];
}

int main() {
    Random random(15);
    std::vector<float2> signal(signals * size);
    for (float2 &v : signal) v = {float(random.between(-1, 1)), float(random.between(-1, 1))};
    Array<float2> d(signal);
    fft<<<signals, size / 2>>>(d, -1);
    RAN();
    auto spectrum = d.host();
    double worst = 0;
    for (int n = 0; n < signals; n++)
        for (int k = 0; k < size; k += 7) {
            std::complex<double> sum = 0;
            for (int i = 0; i < size; i++)
                sum += std::complex<double>(signal[n * size + i].x, signal[n * size + i].y) *
                       std::polar(1.0, -2 * M_PI * (k * i % size) / size);
            float2 got = spectrum[n * size + k];
            worst = std::max(worst, std::abs(sum - std::complex<double>(got.x, got.y)));
        }
    CHECK(worst < 5e-5, "largest error %g", worst);
    fft<<<signals, size / 2>>>(d, 1);
    RAN();
    auto back = d.host();
    for (size_t i = 0; i < back.size(); i++)
        CHECK(std::fabs(back[i].x / size - signal[i].x) < 1e-5 && std::fabs(back[i].y / size - signal[i].y) < 1e-5,
              "element %zu comes back as %g, not %g", i, back[i].x / size, signal[i].x);
    printf("%d signals of %d points there and back\n", signals, size);
    return check::pass();
}
