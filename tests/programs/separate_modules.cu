// needs: jit
// nvcc: -rdc=true
// with: parts/separate_modules_2.cu parts/separate_modules_3.cu
// Device code of several source files, linked when the program starts: functions, variables and
// constants of another file, function pointers across files, static names that are not shared.
#include "check.h"

typedef int (*Operation)(int);

extern __device__ int counter;
extern __constant__ int table[4];
extern __device__ Operation chosen;
__device__ int twice(int x);
__device__ Operation select_operation(int which);
int launch_second(int *out);

static __device__ int hidden = 1000;
__device__ __noinline__ int shared_name(int x);

__global__ void first(int *out) {
    int i = threadIdx.x;
    Operation operation = select_operation(i);
    out[i] = twice(i) + table[i & 3] + chosen(i) + operation(i) + hidden + shared_name(i);
    atomicAdd(&counter, 1);
}

int main() {
    Array<int> out(32);
    first<<<1, 32>>>(out);
    RAN();
    auto got = out.host();
    const int values[4] = {10, 20, 30, 40};
    for (int i = 0; i < 32; i++) {
        int selected = i % 3 == 0 ? i + 1 : i % 3 == 1 ? i * i : -i;
        int expected = 2 * i + values[i & 3] + i * i * i + selected + 1000 + 3 * i;
        CHECK(got[i] == expected, "element %d: %d, not %d", i, got[i], expected);
    }
    int count = 0;
    OK(cudaMemcpyFromSymbol(&count, counter, sizeof count));
    CHECK(count == 5 + 32, "the counter is %d", count);
    int seen = launch_second(out);
    OK(cudaMemcpyFromSymbol(&count, counter, sizeof count));
    printf("%d %d\n", seen, count);
    return check::pass();
}
