// needs: plain
// Sparse matrix times vector in CSR form: a thread a row, and a warp a row; rows of 0 to 200
// entries, values small integers so that sums are exact in any order.
#include "check.h"

__global__ void thread_row(const int *rows, const int *columns, const float *values, const float *x, float *y, int count) {
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= count) return;
    float sum = 0;
    for (int k = rows[row]; k < rows[row + 1]; k++) sum += values[k] * __ldg(&x[columns[k]]);
    y[row] = sum;
}

__global__ void warp_row(const int *rows, const int *columns, const float *values, const float *x, float *y, int count) {
    int row = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
    if (row >= count) return;
    float sum = 0;
    for (int k = rows[row] + lane; k < rows[row + 1]; k += 32) sum += values[k] * x[columns[k]];
    for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(~0u, sum, offset);
    if (lane == 0) y[row] = sum;
}

int main() {
    const int count = 3001;
    Random random(13);
    std::vector<int> rows(1), columns;
    std::vector<float> values, x(count), expected(count);
    for (float &v : x) v = float(int(random.below(201)) - 100);
    for (int row = 0; row < count; row++) {
        int entries = row % 50 == 0 ? 200 : random.below(12);
        for (int k = 0; k < entries; k++) {
            columns.push_back(random.below(count));
            values.push_back(float(int(random.below(41)) - 20));
            expected[row] += values.back() * x[columns.back()];
        }
        rows.push_back(int(columns.size()));
    }
    Array<int> drows(rows), dcolumns(columns);
    Array<float> dvalues(values), dx(x), y(count);
    for (int kind = 0; kind < 2; kind++) {
        OK(cudaMemset(y, 0xff, y.bytes()));
        if (kind == 0) thread_row<<<blocks(count, 128), 128>>>(drows, dcolumns, dvalues, dx, y, count);
        else warp_row<<<blocks(count, 4), 128>>>(drows, dcolumns, dvalues, dx, y, count);
        RAN();
        auto got = y.host();
        for (int i = 0; i < count; i++) CHECK(got[i] == expected[i], "kind %d, row %d: %g, not %g", kind, i, got[i], expected[i]);
        printf("kind %d: %016llx\n", kind, (unsigned long long)check::hash(got));
    }
    return check::pass();
}
