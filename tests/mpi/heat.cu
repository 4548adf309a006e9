// Heat in a plate, cut into one strip of rows for each rank: the GPU computes a rank's strip, ranks
// exchange border rows with MPI_Sendrecv, and MPI_Allreduce adds up what each step changed.
//
// Rank 0 computes the whole plate on the CPU and compares bit by bit: the kernel uses the rounding of
// plain C. The ranks also compare what device they are on: under one daemon all share one.
//
//     nvcc -ccbin mpicxx heat.cu -o heat && mpirun -np 4 openmps run -- ./heat
#include <mpi.h>

#include "../programs/check.h"

const int ROWS = 240, COLUMNS = 256, STEPS = 60;

static __host__ __device__ double start(int row, int column) {
    return double((row * 37 + column * 101) % 1000) / 8;
}

// One step of a strip whose first and last row are the neighbours'; adds what changed, in eighths.
__global__ void step(const double *old, double *now, int rows, unsigned long long *changed) {
    int column = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y + 1;
    if (column >= COLUMNS || row > rows) return;
    const double *here = old + row * COLUMNS + column;
    double left = here[column ? -1 : 0], right = here[column + 1 < COLUMNS ? 1 : 0];
    double around = __dadd_rn(__dadd_rn(left, right), __dadd_rn(here[-COLUMNS], here[COLUMNS]));
    double value = __dadd_rn(__dmul_rn(*here, 0.5), __dmul_rn(around, 0.125));
    now[row * COLUMNS + column] = value;
    atomicAdd(changed, (unsigned long long)(fabs(__dadd_rn(value, -*here)) * 1024));
}

// The same on the CPU for the whole plate; rows beyond the edge are as the edge.
static unsigned long long step_on_cpu(std::vector<double> &plate) {
    std::vector<double> old = plate;
    unsigned long long changed = 0;
    for (int row = 0; row < ROWS; row++)
        for (int column = 0; column < COLUMNS; column++) {
            auto at = [&](int r, int c) {
                r = std::min(std::max(r, 0), ROWS - 1), c = std::min(std::max(c, 0), COLUMNS - 1);
                return old[r * COLUMNS + c];
            };
            double sides = at(row, column - 1) + at(row, column + 1);
            double around = sides + (at(row - 1, column) + at(row + 1, column));
            double value = at(row, column) * 0.5 + around * 0.125;
            plate[row * COLUMNS + column] = value;
            changed += (unsigned long long)(fabs(value - at(row, column)) * 1024);
        }
    return changed;
}

int main(int count, char **words) {
    MPI_Init(&count, &words);
    int rank, ranks;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    CHECK(ROWS % ranks == 0, "%d ranks do not divide %d rows", ranks, ROWS);
    const int rows = ROWS / ranks;
    const size_t row_bytes = COLUMNS * sizeof(double);

    cudaDeviceProp device;
    OK(cudaSetDevice(0));
    OK(cudaGetDeviceProperties(&device, 0));
    std::vector<cudaUUID_t> devices(ranks);
    MPI_Allgather(&device.uuid, sizeof device.uuid, MPI_BYTE, devices.data(), sizeof device.uuid, MPI_BYTE, MPI_COMM_WORLD);
    for (auto &other : devices) CHECK(!memcmp(&other, &device.uuid, sizeof other), "ranks are on different devices");

    // A strip: the upper neighbour's last row, our rows, the lower neighbour's first row.
    std::vector<double> strip((rows + 2) * COLUMNS);
    for (int row = 0; row < rows; row++)
        for (int column = 0; column < COLUMNS; column++)
            strip[(row + 1) * COLUMNS + column] = start(rank * rows + row, column);
    Array<double> one(strip), two(strip.size());
    Array<unsigned long long> changed(1);
    double *old = one, *now = two;

    // Page-locked, for the border rows: sent up, sent down, come from above, come from below.
    double *border;
    OK(cudaMallocHost(&border, 4 * row_bytes));
    double *up = border, *down = up + COLUMNS, *above = down + COLUMNS, *below = above + COLUMNS;
    int upper = rank ? rank - 1 : MPI_PROC_NULL, lower = rank + 1 < ranks ? rank + 1 : MPI_PROC_NULL;
    cudaStream_t stream;
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));

    unsigned long long total = 0;
    for (int n = 0; n < STEPS; n++) {
        OK(cudaMemcpyAsync(up, old + COLUMNS, row_bytes, cudaMemcpyDeviceToHost, stream));
        OK(cudaMemcpyAsync(down, old + rows * COLUMNS, row_bytes, cudaMemcpyDeviceToHost, stream));
        OK(cudaStreamSynchronize(stream));
        memcpy(above, up, row_bytes); // what stays where there is no neighbour
        memcpy(below, down, row_bytes);
        MPI_Sendrecv(up, COLUMNS, MPI_DOUBLE, upper, 0, below, COLUMNS, MPI_DOUBLE, lower, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Sendrecv(down, COLUMNS, MPI_DOUBLE, lower, 1, above, COLUMNS, MPI_DOUBLE, upper, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        OK(cudaMemcpyAsync(old, above, row_bytes, cudaMemcpyHostToDevice, stream));
        OK(cudaMemcpyAsync(old + (rows + 1) * COLUMNS, below, row_bytes, cudaMemcpyHostToDevice, stream));
        OK(cudaMemsetAsync(changed, 0, sizeof total, stream));
        step<<<dim3(blocks(COLUMNS, 128), rows), 128, 0, stream>>>(old, now, rows, changed);
        OK(cudaGetLastError());
        unsigned long long own;
        OK(cudaMemcpyAsync(&own, changed, sizeof own, cudaMemcpyDeviceToHost, stream));
        OK(cudaStreamSynchronize(stream));
        MPI_Allreduce(&own, &total, 1, MPI_UNSIGNED_LONG_LONG, MPI_SUM, MPI_COMM_WORLD);
        std::swap(old, now);
    }

    OK(cudaMemcpy(strip.data(), old, strip.size() * sizeof(double), cudaMemcpyDeviceToHost));
    std::vector<double> plate(rank ? 0 : ROWS * COLUMNS);
    MPI_Gather(strip.data() + COLUMNS, rows * COLUMNS, MPI_DOUBLE, plate.data(), rows * COLUMNS, MPI_DOUBLE, 0, MPI_COMM_WORLD);
    if (rank == 0) {
        std::vector<double> expected(ROWS * COLUMNS);
        for (int i = 0; i < ROWS * COLUMNS; i++) expected[i] = start(i / COLUMNS, i % COLUMNS);
        unsigned long long last = 0;
        for (int n = 0; n < STEPS; n++) last = step_on_cpu(expected);
        CHECK(total == last, "the last step changed %llu, not %llu", total, last);
        for (int i = 0; i < ROWS * COLUMNS; i++)
            CHECK(plate[i] == expected[i], "row %d, column %d: %a, not %a", i / COLUMNS, i % COLUMNS, plate[i], expected[i]);
        printf("%d ranks, one device, %d steps: %016llx\n", ranks, STEPS, (unsigned long long)check::hash(plate));
        check::pass();
    }
    OK(cudaStreamDestroy(stream));
    OK(cudaFreeHost(border));
    MPI_Finalize();
    return 0;
}
