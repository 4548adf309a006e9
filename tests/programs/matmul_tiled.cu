// needs: plain
// Matrix product by 16 × 16 tiles in shared memory, float and double, odd sizes, small integers so
// that every sum is exact.
#include "check.h"

const int tile = 16;

template <class T> __global__ void multiply(const T *a, const T *b, T *c, int m, int n, int k) {
    __shared__ T as[tile][tile], bs[tile][tile];
    int row = blockIdx.y * tile + threadIdx.y, column = blockIdx.x * tile + threadIdx.x;
    T sum = 0;
    for (int t = 0; t < k; t += tile) {
        int x = t + threadIdx.x, y = t + threadIdx.y;
        as[threadIdx.y][threadIdx.x] = row < m && x < k ? a[row * k + x] : T(0);
        bs[threadIdx.y][threadIdx.x] = y < k && column < n ? b[y * n + column] : T(0);
        __syncthreads();
#pragma unroll
        for (int i = 0; i < tile; i++) sum += as[threadIdx.y][i] * bs[i][threadIdx.x];
        __syncthreads();
    }
    if (row < m && column < n) c[row * n + column] = sum;
}

template <class T> void test(const char *name, int m, int n, int k) {
    Random random(m + n);
    std::vector<T> a(m * k), b(k * n);
    for (T &x : a) x = T(int(random.below(19)) - 9);
    for (T &x : b) x = T(int(random.below(19)) - 9);
    Array<T> da(a), db(b), dc(m * n);
    multiply<<<dim3(blocks(n, tile), blocks(m, tile)), dim3(tile, tile)>>>((const T *)da, (const T *)db, (T *)dc, m,
                                                                          n, k);
    RAN();
    auto c = dc.host();
    for (int i = 0; i < m; i++)
        for (int j = 0; j < n; j++) {
            T sum = 0;
            for (int l = 0; l < k; l++) sum += a[i * k + l] * b[l * n + j];
            CHECK(c[i * n + j] == sum, "%s %d, %d: %g, not %g", name, i, j, double(c[i * n + j]), double(sum));
        }
    printf("%s %d x %d x %d: %016llx\n", name, m, n, k, (unsigned long long)check::hash(c));
}

int main() {
    test<float>("float", 96, 64, 128);
    test<float>("float", 33, 47, 51);
    test<double>("double", 50, 70, 40);
    test<int>("int", 17, 16, 15);
    return check::pass();
}
