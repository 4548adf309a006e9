// needs: plain
// Recursion of different depth in every lane: Fibonacci, Ackermann, Hanoi and a quicksort, with a
// stack limit that is set and read back.
#include "check.h"

__device__ __noinline__ int fibonacci(int n) { return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2); }

__device__ __noinline__ unsigned ackermann(unsigned m, unsigned n) {
    if (m == 0) return n + 1;
    if (n == 0) return ackermann(m - 1, 1);
    return ackermann(m - 1, ackermann(m, n - 1));
}

__device__ __noinline__ int hanoi(int n, int from, int to, int *moves) {
    if (n == 0) return 0;
    int via = 3 - from - to, done = hanoi(n - 1, from, via, moves);
    moves[from * 3 + to]++;
    return done + 1 + hanoi(n - 1, via, to, moves);
}

__device__ __noinline__ void quicksort(short *values, int low, int high) {
    if (low >= high) return;
    short pivot = values[(low + high) / 2];
    int i = low, j = high;
    while (i <= j) {
        while (values[i] < pivot) i++;
        while (values[j] > pivot) j--;
        if (i <= j) {
            short swap = values[i];
            values[i++] = values[j];
            values[j--] = swap;
        }
    }
    quicksort(values, low, j);
    quicksort(values, i, high);
}

__global__ void kernel(int *out) {
    int i = threadIdx.x, moves[9] = {};
    short values[40];
    for (int k = 0; k < 40; k++) values[k] = short((i * 7919 + k * 104729) % 1000);
    quicksort(values, 0, 39);
    bool sorted = true;
    for (int k = 1; k < 40; k++) sorted = sorted && values[k - 1] <= values[k];
    out[i * 4] = fibonacci(i % 13);
    out[i * 4 + 1] = ackermann(i % 3, i % 7);
    out[i * 4 + 2] = hanoi(i % 9, 0, 2, moves) * 100 + moves[2];
    out[i * 4 + 3] = sorted;
}

int main() {
    const int threads = 64;
    OK(cudaDeviceSetLimit(cudaLimitStackSize, 8192));
    size_t limit = 0;
    OK(cudaDeviceGetLimit(&limit, cudaLimitStackSize));
    CHECK(limit >= 8192, "the stack limit is %zu", limit);
    Array<int> d(threads * 4);
    kernel<<<1, threads>>>(d);
    RAN();
    auto got = d.host();
    const int fibonacci[] = {0, 1, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144};
    for (int i = 0; i < threads; i++) {
        int n = i % 7, disks = i % 9;
        int ackermann = i % 3 == 0 ? n + 1 : i % 3 == 1 ? n + 2 : 2 * n + 3;
        CHECK(got[i * 4] == fibonacci[i % 13], "fibonacci(%d) = %d", i % 13, got[i * 4]);
        CHECK(got[i * 4 + 1] == ackermann, "ackermann(%d, %d) = %d", i % 3, n, got[i * 4 + 1]);
        CHECK(got[i * 4 + 2] / 100 == (1 << disks) - 1, "hanoi(%d) takes %d moves", disks, got[i * 4 + 2] / 100);
        CHECK(got[i * 4 + 3] == 1, "thread %d did not sort", i);
    }
    printf("%016llx\n", (unsigned long long)check::hash(got));
    return check::pass();
}
