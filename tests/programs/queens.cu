// needs: plain
// The n queens problem: a thread for each pair of first rows, backtracking on a stack of its own.
#include "check.h"

const int n = 9;

__global__ void count(unsigned long long *total) {
    int first = blockIdx.x, second = threadIdx.x;
    unsigned columns[n + 1], left[n + 1], right[n + 1], open[n + 1];
    const unsigned all = (1u << n) - 1;
    columns[1] = 1u << first, left[1] = columns[1] << 1, right[1] = columns[1] >> 1;
    if (((columns[1] | left[1] | right[1]) >> second & 1) == 0) {
        unsigned bit = 1u << second, found = 0;
        columns[2] = columns[1] | bit, left[2] = (left[1] | bit) << 1, right[2] = (right[1] | bit) >> 1;
        int row = 2;
        open[row] = all & ~(columns[2] | left[2] | right[2]);
        while (row >= 2) {
            if (open[row] == 0) {
                row--;
                continue;
            }
            bit = open[row] & -open[row];
            open[row] ^= bit;
            if (row == n - 1) {
                found++;
                continue;
            }
            columns[row + 1] = columns[row] | bit, left[row + 1] = (left[row] | bit) << 1, right[row + 1] = (right[row] | bit) >> 1;
            row++;
            open[row] = all & ~(columns[row] | left[row] | right[row]);
        }
        atomicAdd(total, found);
    }
}

int main() {
    Array<unsigned long long> total(1);
    total.clear();
    count<<<n, n>>>(total);
    RAN();
    CHECK(total.host()[0] == 352, "%llu ways", total.host()[0]);
    printf("%d queens stand in %llu ways\n", n, total.host()[0]);
    return check::pass();
}
