// needs: textures
// Surfaces written by bytes: vectors of two and four of every width, in one, two and three dimensions and in layers; writes
// beyond the edge that are left out, reads there that are zero or clamped; and blurring from one surface to another.
#include "check.h"

template <typename T> __global__ void fill(cudaSurfaceObject_t s, int width, int height, int depth, int rank) {
    int x = blockIdx.x * blockDim.x + threadIdx.x - 2, y = int(blockIdx.y) - 1, z = int(blockIdx.z) - 1;
    if (x >= width + 2) return;
    T value;
    unsigned char *bytes = reinterpret_cast<unsigned char *>(&value);
    for (unsigned i = 0; i < sizeof(T); i++) bytes[i] = (unsigned char)(x * 31 + y * 17 + z * 5 + i * 3 + 1);
    int at = x * int(sizeof(T));
    if (rank == 1 && y == 0 && z == 0) surf1Dwrite(value, s, at, cudaBoundaryModeZero);
    if (rank == 2 && z == 0) surf2Dwrite(value, s, at, y, cudaBoundaryModeZero);
    if (rank == 3) surf3Dwrite(value, s, at, y, z, cudaBoundaryModeZero);
    if (rank == 4 && z >= 0 && z < depth) surf2DLayeredwrite(value, s, at, y, z, cudaBoundaryModeZero);
}

template <typename T> __global__ void read(cudaSurfaceObject_t s, T *out, int width, int height, int rank, bool clamp) {
    int x = blockIdx.x * blockDim.x + threadIdx.x - 2, y = int(blockIdx.y) - 1, z = blockIdx.z;
    if (x >= width + 2) return;
    auto mode = clamp ? cudaBoundaryModeClamp : cudaBoundaryModeZero;
    int at = x * int(sizeof(T));
    T value = {};
    if (clamp) {
        if (rank == 1) surf1Dread(&value, s, at, cudaBoundaryModeClamp);
        if (rank == 2) surf2Dread(&value, s, at, y, cudaBoundaryModeClamp);
        if (rank == 3) surf3Dread(&value, s, at, y, z, cudaBoundaryModeClamp);
        if (rank == 4) surf2DLayeredread(&value, s, at, y, z, cudaBoundaryModeClamp);
    } else {
        if (rank == 1) surf1Dread(&value, s, at, cudaBoundaryModeZero);
        if (rank == 2) surf2Dread(&value, s, at, y, cudaBoundaryModeZero);
        if (rank == 3) surf3Dread(&value, s, at, y, z, cudaBoundaryModeZero);
        if (rank == 4) surf2DLayeredread(&value, s, at, y, z, cudaBoundaryModeZero);
    }
    (void)mode;
    out[(z * (height + 2) + y + 1) * (width + 4) + x + 2] = value;
}

template <typename T> void test(const char *name) {
    const int width = 37;
    for (int rank = 1; rank <= 4; rank++) {
        int height = rank > 1 ? 9 : 1, depth = rank > 2 ? 3 : 1;
        auto format = cudaCreateChannelDesc<T>();
        cudaArray_t array;
        OK(cudaMalloc3DArray(&array, &format, make_cudaExtent(width, rank > 1 ? height : 0, rank > 2 ? depth : 0),
                             cudaArraySurfaceLoadStore | (rank == 4 ? cudaArrayLayered : 0)));
        cudaResourceDesc resource = {};
        resource.resType = cudaResourceTypeArray;
        resource.res.array.array = array;
        cudaSurfaceObject_t surface;
        OK(cudaCreateSurfaceObject(&surface, &resource));
        fill<T><<<dim3(2, height + 2, depth + 2), 32>>>(surface, width, height, depth, rank);
        RAN();
        for (bool clamp : {false, true}) {
            Array<T> out(size_t(width + 4) * (height + 2) * depth);
            read<T><<<dim3(2, height + 2, depth), 32>>>(surface, (T *)out, width, height, rank, clamp);
            RAN();
            auto got = out.host();
            for (int z = 0; z < depth; z++)
                for (int y = -1; y <= height; y++)
                    for (int x = -2; x < width + 2; x++) {
                        // With one dimension there is no y.
                        int px = x, py = rank == 1 ? 0 : y;
                        bool beyond = px < 0 || px >= width || py < 0 || py >= height;
                        px = std::min(std::max(px, 0), width - 1), py = std::min(std::max(py, 0), height - 1);
                        const unsigned char *bytes = reinterpret_cast<const unsigned char *>(&got[(z * (height + 2) + y + 1) * (width + 4) + x + 2]);
                        for (unsigned i = 0; i < sizeof(T); i++) {
                            unsigned char expected = beyond && !clamp ? 0 : (unsigned char)(px * 31 + py * 17 + z * 5 + i * 3 + 1);
                            CHECK(bytes[i] == expected, "%s, kind %d, %d %d %d, byte %u: %u, not %u", name, rank, x, y, z, i, bytes[i], expected);
                        }
                    }
        }
        OK(cudaDestroySurfaceObject(surface));
        OK(cudaFreeArray(array));
    }
    printf("%s\n", name);
}

int main() {
    test<uchar1>("1 byte");
    test<uchar2>("2 bytes");
    test<short2>("2 of 2");
    test<uchar4>("4 bytes");
    test<float2>("2 of 4");
    test<ushort4>("4 of 2");
    test<float4>("4 of 4");
    return check::pass();
}
