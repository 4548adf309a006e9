// needs: printf
// printf in kernels: to this program's standard output, in order for one thread, with every kind of
// conversion; the return value counts the arguments.
#include "check.h"

__global__ void say(const char *name, int *results) {
    if (threadIdx.x != 0 || blockIdx.x != 0) return;
    results[0] = printf("nothing\n");
    results[1] = printf("%d %u %x %o %c %5d|%-5d|%05d\n", -1, 4000000000u, 255, 8, 'z', 42, 42, 42);
    results[2] = printf("%lld %llu %llx\n", -1234567890123ll, 12345678901234567890ull, 0xfedcba9876543210ull);
    results[3] = printf("%f %.3e %g %10.2f|%a\n", 1.5, 12345.678, 0.0001, 3.14159, 1.0);
    results[4] = printf("%s and %s%%\n", "a literal", name);
    for (int i = 0; i < 3; i++) printf("line %d of 3\n", i + 1);
}

__global__ void count(int times) {
    for (int i = 0; i < times; i++) printf("tick\n");
}

int main() {
    OK(cudaDeviceSetLimit(cudaLimitPrintfFifoSize, 1 << 20));
    const char name[] = "device memory";
    Array<char> text(sizeof name);
    OK(cudaMemcpy(text, name, sizeof name, cudaMemcpyHostToDevice));
    Array<int> results(5);
    say<<<2, 32>>>(text, results);
    RAN();
    count<<<1, 4>>>(2);
    RAN();
    auto got = results.host();
    const int expected[] = {0, 8, 3, 5, 2};
    for (int i = 0; i < 5; i++) CHECK(got[i] == expected[i], "call %d returned %d", i, got[i]);
    return check::pass();
}
