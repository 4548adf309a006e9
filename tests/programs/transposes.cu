// needs: plain
// nvcc: -std=c++17
// Transposes without conflicts between banks: in a warp's registers by shuffles, 32 × 32 and 8 × 8; through shared memory whose
// columns are swizzled rather than padded; of vectors of four; rectangles of any size; in place by pairs of tiles.
#include "check.h"

// A lane has a row; afterwards it has a column. Five rounds of exchanges.
template <int SIDE> __global__ void in_registers(const unsigned *in, unsigned *out) {
    unsigned row[SIDE], lane = threadIdx.x % 32, r = lane % SIDE;
    const unsigned *from = in + (blockIdx.x * 32 / SIDE + lane / SIDE) * SIDE * SIDE;
    unsigned *to = out + (blockIdx.x * 32 / SIDE + lane / SIDE) * SIDE * SIDE;
    for (int i = 0; i < SIDE; i++) row[i] = from[r * SIDE + i];
#pragma unroll
    for (int half = SIDE / 2; half > 0; half /= 2)
#pragma unroll
        for (int i = 0; i < SIDE; i++) {
            if (i & half) continue;
            // The lower half gives its right part, the upper half its left one.
            bool upper = r & half;
            unsigned give = upper ? row[i] : row[i | half];
            unsigned got = __shfl_xor_sync(~0u, give, half);
            if (upper)
                row[i] = got;
            else
                row[i | half] = got;
        }
    for (int i = 0; i < SIDE; i++) to[r * SIDE + i] = row[i];
}

__global__ void swizzled(const float *in, float *out, int rows, int columns) {
    __shared__ float tile[32][32];
    int x = blockIdx.x * 32 + threadIdx.x, y = blockIdx.y * 32;
    for (int i = threadIdx.y; i < 32; i += blockDim.y)
        if (x < columns && y + i < rows) tile[i][threadIdx.x ^ i] = in[(y + i) * columns + x];
    __syncthreads();
    x = blockIdx.y * 32 + threadIdx.x, y = blockIdx.x * 32;
    for (int i = threadIdx.y; i < 32; i += blockDim.y)
        if (x < rows && y + i < columns) out[(y + i) * rows + x] = tile[threadIdx.x][i ^ threadIdx.x];
}

// Four by four in a thread, as vectors.
__global__ void vectors(const float4 *in, float4 *out, int side) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y, wide = side / 4;
    if (x >= wide || y >= wide) return;
    float4 r[4];
    for (int i = 0; i < 4; i++) r[i] = in[(y * 4 + i) * wide + x];
    out[(x * 4 + 0) * wide + y] = {r[0].x, r[1].x, r[2].x, r[3].x};
    out[(x * 4 + 1) * wide + y] = {r[0].y, r[1].y, r[2].y, r[3].y};
    out[(x * 4 + 2) * wide + y] = {r[0].z, r[1].z, r[2].z, r[3].z};
    out[(x * 4 + 3) * wide + y] = {r[0].w, r[1].w, r[2].w, r[3].w};
}

__global__ void in_place(double *data, int side) {
    __shared__ double a[16][17], b[16][17];
    if (blockIdx.x < blockIdx.y) return;
    int x = blockIdx.x * 16 + threadIdx.x, y = blockIdx.y * 16 + threadIdx.y;
    int tx = blockIdx.y * 16 + threadIdx.x, ty = blockIdx.x * 16 + threadIdx.y;
    a[threadIdx.y][threadIdx.x] = data[y * side + x];
    b[threadIdx.y][threadIdx.x] = data[ty * side + tx];
    __syncthreads();
    data[ty * side + tx] = a[threadIdx.x][threadIdx.y];
    data[y * side + x] = b[threadIdx.x][threadIdx.y];
}

template <int SIDE> void registers_test() {
    std::vector<unsigned> values(4 * 32 * SIDE);
    for (size_t i = 0; i < values.size(); i++) values[i] = unsigned(i) * 2654435761u;
    Array<unsigned> in(values), out(values.size());
    in_registers<SIDE><<<4, 32>>>(in, out);
    RAN();
    auto got = out.host();
    for (size_t i = 0; i < values.size(); i++) {
        size_t base = i / (SIDE * SIDE) * SIDE * SIDE, row = i % (SIDE * SIDE) / SIDE, column = i % SIDE;
        CHECK(got[i] == values[base + column * SIDE + row], "%d: element %zu", SIDE, i);
    }
    printf("in registers, %d: %016llx\n", SIDE, (unsigned long long)check::hash(got));
}

int main() {
    registers_test<32>();
    registers_test<8>();
    for (auto [rows, columns] : {std::pair(64, 96), {100, 33}, {1, 500}, {77, 77}}) {
        std::vector<float> values(rows * columns);
        for (size_t i = 0; i < values.size(); i++) values[i] = float(i);
        Array<float> in(values), out(values.size());
        swizzled<<<dim3(blocks(columns, 32), blocks(rows, 32)), dim3(32, 8)>>>(in, out, rows, columns);
        RAN();
        auto got = out.host();
        for (int r = 0; r < rows; r++)
            for (int c = 0; c < columns; c++) CHECK(got[c * rows + r] == values[r * columns + c], "%d by %d: %d, %d", rows, columns, r, c);
    }
    const int side = 144;
    std::vector<float> values(side * side);
    std::vector<double> wide(side * side);
    for (int i = 0; i < side * side; i++) wide[i] = values[i] = float(i * 3);
    Array<float> in(values), out(side * side);
    vectors<<<dim3(3, 9), dim3(16, 4)>>>((const float4 *)(float *)in, (float4 *)(float *)out, side);
    RAN();
    Array<double> square(wide);
    in_place<<<dim3(side / 16, side / 16), dim3(16, 16)>>>(square, side);
    RAN();
    auto got = out.host();
    auto turned = square.host();
    for (int r = 0; r < side; r++)
        for (int c = 0; c < side; c++)
            CHECK(got[c * side + r] == values[r * side + c] && turned[c * side + r] == wide[r * side + c], "%d, %d: %g and %g", r, c, got[c * side + r], turned[c * side + r]);
    printf("by tiles, by vectors, in place\n");
    return check::pass();
}
