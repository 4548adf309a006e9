// needs: plain
// env: CUDA_DEVICE_MAX_CONNECTIONS=32 CUDA_MODULE_LOADING=EAGER
// With as many connections as streams, kernels of all streams overlap, in whatever order they are
// launched.
#include "connections.h"

int main() {
    for (int streams : {2, 4, 8, 16}) {
        int seen = overlapping(streams);
        CHECK(seen == streams - 1, "%d of %d kernels overlapped with the first", seen, streams - 1);
    }
    printf("all of them\n");
    return check::pass();
}
