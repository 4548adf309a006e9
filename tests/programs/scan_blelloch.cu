// needs: plain
// Exclusive prefix sums: up- and down-sweep inside a block, blocks' totals scanned recursively.
#include "check.h"

const int threads = 128, span = 2 * threads;

__global__ void scan_block(const unsigned *in, unsigned *out, unsigned *totals, int count) {
    __shared__ unsigned tree[span];
    int base = blockIdx.x * span, a = threadIdx.x, b = threadIdx.x + threads;
    tree[a] = base + a < count ? in[base + a] : 0;
    tree[b] = base + b < count ? in[base + b] : 0;
    int stride = 1;
    for (int active = threads; active > 0; active /= 2, stride *= 2) {
        __syncthreads();
        if (threadIdx.x < active) {
            int right = stride * (2 * threadIdx.x + 2) - 1;
            tree[right] += tree[right - stride];
        }
    }
    if (threadIdx.x == 0) {
        totals[blockIdx.x] = tree[span - 1];
        tree[span - 1] = 0;
    }
    for (int active = 1; active <= threads; active *= 2) {
        stride /= 2;
        __syncthreads();
        if (threadIdx.x < active) {
            int right = stride * (2 * threadIdx.x + 2) - 1;
            unsigned left = tree[right - stride];
            tree[right - stride] = tree[right];
            tree[right] += left;
        }
    }
    __syncthreads();
    if (base + a < count) out[base + a] = tree[a];
    if (base + b < count) out[base + b] = tree[b];
}

__global__ void add_totals(unsigned *out, const unsigned *totals, int count) {
    int i = blockIdx.x * span + threadIdx.x;
    for (int k = 0; k < 2; k++, i += threads)
        if (i < count) out[i] += totals[blockIdx.x];
}

void scan(const unsigned *in, unsigned *out, int count) {
    int grid = blocks(count, span);
    Array<unsigned> totals(grid), offsets(grid);
    scan_block<<<grid, threads>>>(in, out, totals, count);
    if (grid > 1) {
        scan(totals, offsets, grid);
        add_totals<<<grid, threads>>>(out, offsets, count);
    }
    RAN();
}

int main() {
    for (int count : {1, 255, 256, 257, 5000, 70000}) {
        Random random(count);
        std::vector<unsigned> values(count);
        for (unsigned &value : values) value = random.bits();
        Array<unsigned> in(values), out(count);
        scan(in, out, count);
        auto got = out.host();
        unsigned sum = 0;
        for (int i = 0; i < count; sum += values[i++])
            CHECK(got[i] == sum, "count %d: element %d is %u, not %u", count, i, got[i], sum);
        printf("%5d elements: last %u\n", count, got[count - 1]);
    }
    return check::pass();
}
