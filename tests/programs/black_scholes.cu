// needs: plain
// Option prices by the Black-Scholes formula, in float and in double, against the host; put-call
// parity holds.
#include <algorithm>

#include "check.h"

template <class T> __host__ __device__ inline void price(T spot, T strike, T years, T rate, T volatility, T &call, T &put) {
    T root = volatility * sqrt(years);
    T d1 = (log(spot / strike) + (rate + T(0.5) * volatility * volatility) * years) / root, d2 = d1 - root;
    auto normal = [](T x) { return T(0.5) * erfc(-x * T(0.70710678118654752440)); };
    T discounted = strike * exp(-rate * years);
    call = spot * normal(d1) - discounted * normal(d2);
    put = discounted * normal(-d2) - spot * normal(-d1);
}

template <class T> __global__ void kernel(const T *spots, const T *strikes, const T *years, T *calls, T *puts, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) price(spots[i], strikes[i], years[i], T(0.02), T(0.3), calls[i], puts[i]);
}

template <class T> void test(const char *name, double tolerance) {
    const int count = 3000;
    Random random(67);
    std::vector<T> spots(count), strikes(count), years(count);
    for (int i = 0; i < count; i++) spots[i] = random.between(5, 30), strikes[i] = random.between(1, 100), years[i] = random.between(0.25, 10);
    Array<T> a(spots), b(strikes), c(years), calls(count), puts(count);
    kernel<<<blocks(count, 128), 128>>>((const T *)a, (const T *)b, (const T *)c, (T *)calls, (T *)puts, count);
    RAN();
    auto hc = calls.host(), hp = puts.host();
    double worst = 0;
    for (int i = 0; i < count; i++) {
        double call, put, parity = hc[i] - hp[i] - spots[i] + strikes[i] * std::exp(-0.02 * years[i]);
        price<double>(spots[i], strikes[i], years[i], 0.02, 0.3, call, put);
        worst = std::max({worst, std::fabs(hc[i] - call), std::fabs(hp[i] - put), std::fabs(parity)});
    }
    CHECK(worst < tolerance, "%s: largest error %g", name, worst);
    printf("%s: %d options\n", name, count);
}

int main() {
    test<float>("float", 1e-4);
    test<double>("double", 1e-12);
    return check::pass();
}
