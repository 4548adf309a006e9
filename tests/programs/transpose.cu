// needs: plain
// Tiled transpose through padded shared memory, sizes that are no multiple of the tile, types of
// 1, 2, 4, 8 and 16 bytes.
#include "check.h"

const int tile = 32, rows = 8;

template <class T> __global__ void transpose(const T *in, T *out, int width, int height) {
    __shared__ T block[tile][tile + 1];
    int x = blockIdx.x * tile + threadIdx.x, y = blockIdx.y * tile + threadIdx.y;
    for (int k = 0; k < tile; k += rows)
        if (x < width && y + k < height) block[threadIdx.y + k][threadIdx.x] = in[(y + k) * width + x];
    __syncthreads();
    x = blockIdx.y * tile + threadIdx.x;
    y = blockIdx.x * tile + threadIdx.y;
    for (int k = 0; k < tile; k += rows)
        if (x < height && y + k < width) out[(y + k) * height + x] = block[threadIdx.x][threadIdx.y + k];
}

template <class T> void test(const char *name, int width, int height) {
    std::vector<T> matrix(width * height);
    Random random(width);
    for (size_t i = 0; i < matrix.size() * sizeof(T); i++)
        reinterpret_cast<unsigned char *>(matrix.data())[i] = random.bits();
    Array<T> in(matrix), out(matrix.size());
    transpose<<<dim3(blocks(width, tile), blocks(height, tile)), dim3(tile, rows)>>>((const T *)in, (T *)out,
                                                                                    width, height);
    RAN();
    auto got = out.host();
    for (int y = 0; y < height; y++)
        for (int x = 0; x < width; x++)
            CHECK(!memcmp(&got[x * height + y], &matrix[y * width + x], sizeof(T)),
                  "%s %d × %d: element %d, %d", name, width, height, x, y);
    printf("%s %d x %d: %016llx\n", name, width, height, (unsigned long long)check::hash(got));
}

int main() {
    test<unsigned char>("u8", 65, 33);
    test<short>("s16", 64, 64);
    test<float>("f32", 201, 95);
    test<double>("f64", 31, 100);
    test<float4>("f32x4", 40, 70);
    return check::pass();
}
