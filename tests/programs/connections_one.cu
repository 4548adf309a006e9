// needs: plain
// env: CUDA_DEVICE_MAX_CONNECTIONS=1
// With one connection, kernels launched stream by stream start in the order of their launches: a kernel
// behind another of a busy stream does not overlap with what runs.
#include "connections.h"

int main() {
    int seen = overlapping(4);
    CHECK(seen < 3, "%d of 3 kernels overlapped with the first", seen);
    printf("bounded\n");
    return check::pass();
}
