// needs: plain
// Calls through function pointers: a table in constant memory, pointers fetched to the host and
// passed back as arguments, and a different target in each lane.
#include "check.h"

typedef int (*Operation)(int, int);
__device__ int add(int a, int b) { return a + b; }
__device__ int subtract(int a, int b) { return a - b; }
__device__ int multiply(int a, int b) { return a * b; }
__device__ __noinline__ int gcd(int a, int b) {
    while (b) {
        int r = a % b;
        a = b;
        b = r;
    }
    return a;
}

__device__ Operation table[4] = {add, subtract, multiply, gcd};
__device__ Operation chosen = gcd;

__global__ void by_table(int *out) {
    int i = threadIdx.x;
    out[i] = table[i % 4](i * 6, i + 4);
}

__global__ void by_argument(int *out, Operation f) { out[threadIdx.x] = f(threadIdx.x * 12, 18); }

int host(int which, int a, int b) {
    if (which == 0) return a + b;
    if (which == 1) return a - b;
    if (which == 2) return a * b;
    while (b) {
        int r = a % b;
        a = b;
        b = r;
    }
    return a;
}

int main() {
    Array<int> d(96);
    by_table<<<1, 96>>>(d);
    RAN();
    auto got = d.host();
    for (int i = 0; i < 96; i++) CHECK(got[i] == host(i % 4, i * 6, i + 4), "thread %d: %d", i, got[i]);
    Operation f;
    OK(cudaMemcpyFromSymbol(&f, chosen, sizeof f));
    by_argument<<<1, 96>>>(d, f);
    RAN();
    got = d.host();
    for (int i = 0; i < 96; i++) CHECK(got[i] == host(3, i * 12, 18), "thread %d: %d", i, got[i]);
    printf("%016llx\n", (unsigned long long)check::hash(got));
    return check::pass();
}
