// needs: sm_90
// nvcc: -gencode arch=compute_90,code=compute_90
// Matrices of 8 × 8 between shared memory and the registers of a warp: ldmatrix and stmatrix of one, two and four, as they
// lie and turned, and movmatrix from registers to registers.
#include "check.h"

__device__ unsigned place(const void *p) { return unsigned(__cvta_generic_to_shared(p)); }

__global__ void load(const unsigned short *in, unsigned *out, bool turned) {
    // Rows of 8, 16 bytes, in an order of their own.
    __shared__ alignas(16) unsigned short tile[32][8];
    int lane = threadIdx.x;
    for (int i = 0; i < 8; i++) tile[(lane * 5 + 3) % 32][i] = in[lane * 8 + i];
    __syncwarp();
    unsigned at = place(tile[(lane * 5 + 3) % 32]), x[7];
    if (turned) {
        asm volatile("ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%0}, [%1];" : "=r"(x[0]) : "r"(at));
        asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];" : "=r"(x[1]), "=r"(x[2]) : "r"(at));
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];" : "=r"(x[3]), "=r"(x[4]), "=r"(x[5]), "=r"(x[6]) : "r"(at));
    } else {
        asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];" : "=r"(x[0]) : "r"(at));
        asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];" : "=r"(x[1]), "=r"(x[2]) : "r"(at));
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];" : "=r"(x[3]), "=r"(x[4]), "=r"(x[5]), "=r"(x[6]) : "r"(at));
    }
    for (int i = 0; i < 7; i++) out[i * 32 + lane] = x[i];
}

__global__ void store(const unsigned *in, unsigned short *out, bool turned) {
    __shared__ alignas(16) unsigned short tile[32][8];
    int lane = threadIdx.x;
    unsigned at = place(tile[(lane * 11 + 7) % 32]), x[4];
    for (int i = 0; i < 4; i++) x[i] = in[i * 32 + lane];
    if (turned)
        asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]) : "memory");
    else
        asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]) : "memory");
    __syncwarp();
    for (int i = 0; i < 8; i++) out[lane * 8 + i] = tile[(lane * 11 + 7) % 32][i];
    // One and two of them, over what is there.
    __syncwarp();
    asm volatile("stmatrix.sync.aligned.m8n8.x1.shared.b16 [%0], {%1};" ::"r"(at), "r"(x[3]) : "memory");
    __syncwarp();
    for (int i = 0; i < 8; i++) out[256 + lane * 8 + i] = tile[(lane * 11 + 7) % 32][i];
    __syncwarp();
    asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(at), "r"(x[2]), "r"(x[0]) : "memory");
    __syncwarp();
    for (int i = 0; i < 8; i++) out[512 + lane * 8 + i] = tile[(lane * 11 + 7) % 32][i];
}

__global__ void turn(const unsigned *in, unsigned *out) {
    unsigned x = in[threadIdx.x], y;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
    out[threadIdx.x] = y;
}

int main() {
    std::vector<unsigned short> values(256);
    for (int i = 0; i < 256; i++) values[i] = i * 257 + 3;
    Array<unsigned short> in(values), back(768);
    Array<unsigned> words(224), turned_words(32);
    for (bool turned : {false, true}) {
        load<<<1, 32>>>(in, words, turned);
        RAN();
        auto got = words.host();
        // Register `i` of a load is of the matrix `i`, whose rows the lanes from 8 i on name.
        const int matrix[7] = {0, 0, 1, 0, 1, 2, 3};
        for (int i = 0; i < 7; i++)
            for (int lane = 0; lane < 32; lane++)
                for (int half = 0; half < 2; half++) {
                    int row = lane / 4, column = lane % 4 * 2 + half;
                    if (turned) std::swap(row, column);
                    unsigned short seen = got[i * 32 + lane] >> half * 16, expected = values[(matrix[i] * 8 + row) * 8 + column];
                    CHECK(seen == expected, "load %d, lane %d: %04x, not %04x", i, lane, seen, expected);
                }
        printf("loads%s: %016llx\n", turned ? ", turned" : "", (unsigned long long)check::hash(got));

        std::vector<unsigned> registers(128);
        for (int i = 0; i < 128; i++) registers[i] = (i * 2 + 1) << 16 | i * 2;
        Array<unsigned> from(registers);
        store<<<1, 32>>>(from, back, turned);
        RAN();
        auto rows = back.host();
        auto wanted = [&](int i, int row, int column, bool turned) {
            if (turned) std::swap(row, column);
            return (unsigned short)(registers[i * 32 + row * 4 + column / 2] >> column % 2 * 16);
        };
        for (int row = 0; row < 32; row++)
            for (int column = 0; column < 8; column++) {
                int m = row / 8, r = row % 8;
                unsigned short first = wanted(m, r, column, turned), second = m == 0 ? wanted(3, r, column, false) : first;
                unsigned short third = m == 0 ? wanted(2, r, column, true) : m == 1 ? wanted(0, r, column, true) : second;
                CHECK(rows[row * 8 + column] == first, "store of four: row %d, column %d", row, column);
                CHECK(rows[256 + row * 8 + column] == second, "store of one: row %d, column %d", row, column);
                CHECK(rows[512 + row * 8 + column] == third, "store of two: row %d, column %d", row, column);
            }
        printf("stores%s: %016llx\n", turned ? ", turned" : "", (unsigned long long)check::hash(rows));
    }
    std::vector<unsigned> registers(32);
    for (int i = 0; i < 32; i++) registers[i] = i * 0x01010001u + 0x40000;
    Array<unsigned> from(registers);
    turn<<<1, 32>>>(from, turned_words);
    RAN();
    auto got = turned_words.host();
    auto element = [](const std::vector<unsigned> &of, int row, int column) { return (unsigned short)(of[row * 4 + column / 2] >> column % 2 * 16); };
    for (int row = 0; row < 8; row++)
        for (int column = 0; column < 8; column++) CHECK(element(got, row, column) == element(registers, column, row), "turned: %d, %d", row, column);
    printf("turned in registers\n");
    return check::pass();
}
