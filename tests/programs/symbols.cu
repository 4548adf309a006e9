// needs: plain
// __device__ and __constant__ symbols: initial values, copies in and out with offsets, addresses and
// sizes, pointers stored in symbols, static symbols in templates.
#include "check.h"

__device__ int counter = 5;
__device__ double table[4] = {1.5, 2.5, 3.5, 4.5};
__device__ int *list;
__constant__ short factors[6] = {1, -2, 3, -4, 5, -6};
__device__ struct {
    char tag;
    long long big;
    float pair[2];
} record = {'r', 1ll << 50, {0.5f, 0.25f}};
static __device__ unsigned char bytes[1000];
template <class T> __device__ T zero_of = T(7);

__global__ void use(double *out) {
    int i = threadIdx.x;
    atomicAdd(&counter, factors[i % 6]);
    list[i] = i * factors[i % 6];
    out[i] = table[i % 4] + record.big / (1ll << 40) + record.pair[i % 2] + record.tag + bytes[i] + zero_of<int> + zero_of<float>;
    __syncthreads();
    if (i == 0) table[3] = 99;
}

int main() {
    const int threads = 60;
    int value;
    OK(cudaMemcpyFromSymbol(&value, counter, sizeof value));
    CHECK(value == 5, "the counter starts at %d", value);
    Array<int> values(threads);
    int *pointer = values;
    OK(cudaMemcpyToSymbol(list, &pointer, sizeof pointer));
    double third = 30.5;
    OK(cudaMemcpyToSymbol(table, &third, sizeof third, 2 * sizeof(double)));
    short tenth = 10;
    OK(cudaMemcpyToSymbolAsync(factors, &tenth, sizeof tenth, 4 * sizeof(short), cudaMemcpyHostToDevice, 0));
    void *address;
    size_t size;
    OK(cudaGetSymbolAddress(&address, bytes));
    OK(cudaGetSymbolSize(&size, bytes));
    CHECK(size == 1000, "%zu bytes", size);
    OK(cudaMemset(address, 3, size));
    Array<double> out(threads);
    use<<<1, threads>>>(out);
    RAN();
    const short factor[6] = {1, -2, 3, -4, 10, -6};
    double entries[4] = {1.5, 2.5, 30.5, 4.5};
    auto got = out.host();
    auto l = values.host();
    int sum = 5;
    for (int i = 0; i < threads; i++) {
        sum += factor[i % 6];
        CHECK(l[i] == i * factor[i % 6], "list %d: %d", i, l[i]);
        double expected = entries[i % 4] + 1024 + (i % 2 ? 0.25 : 0.5) + 'r' + 3 + 7 + 7;
        CHECK(got[i] == expected, "value %d: %g, not %g", i, got[i], expected);
    }
    OK(cudaMemcpyFromSymbol(&value, counter, sizeof value));
    CHECK(value == sum, "the counter is %d, not %d", value, sum);
    double last;
    OK(cudaMemcpyFromSymbol(&last, table, sizeof last, 3 * sizeof(double), cudaMemcpyDeviceToHost));
    CHECK(last == 99, "%g", last);
    FAILS(cudaMemcpyToSymbol(table, &third, sizeof third, 4 * sizeof(double)), cudaErrorInvalidValue);
    printf("counter %d\n", value);
    return check::pass();
}
