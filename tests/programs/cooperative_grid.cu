// needs: cooperative
// Cooperative launch: the whole grid meets at a barrier, again and again; as many blocks as fit and
// one more, which is refused.
#include <algorithm>
#include <cooperative_groups.h>

#include "check.h"

namespace cg = cooperative_groups;

__global__ void ladder(int *data, int count, int steps) {
    auto grid = cg::this_grid();
    for (int s = 0; s < steps; s++) {
        int *in = data + s % 2 * count, *out = data + (s + 1) % 2 * count;
        for (int i = grid.thread_rank(); i < count; i += grid.size()) out[i] = in[(i + 1) % count] + in[i];
        grid.sync();
    }
}

int main() {
    int cooperative = 0;
    OK(cudaDeviceGetAttribute(&cooperative, cudaDevAttrCooperativeLaunch, 0));
    CHECK(cooperative == 1, "no cooperative launch");
    int count = 3000, steps = 24, fit = 0, sms = 0;
    std::vector<int> model(count), next(count), both(2 * count);
    for (int i = 0; i < count; i++) both[i] = model[i] = i % 17;
    Array<int> data(both);
    int *pointer = data;
    void *arguments[] = {&pointer, &count, &steps};
    OK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&fit, ladder, 128, 0));
    OK(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0));
    int grid = std::min(fit * sms, 8);
    OK(cudaLaunchCooperativeKernel(ladder, dim3(grid), dim3(128), arguments, 0, 0));
    RAN();
    for (int s = 0; s < steps; s++) {
        for (int i = 0; i < count; i++) next[i] = int(unsigned(model[(i + 1) % count]) + unsigned(model[i]));
        std::swap(model, next);
    }
    auto got = data.host();
    for (int i = 0; i < count; i++) CHECK(got[i] == model[i], "element %d is %d, not %d", i, got[i], model[i]);
    FAILS(cudaLaunchCooperativeKernel(ladder, dim3(fit * sms + 1), dim3(128), arguments, 0, 0), cudaErrorCooperativeLaunchTooLarge);
    FAILS(cudaGetLastError(), cudaErrorCooperativeLaunchTooLarge);
    printf("%d steps, %016llx\n", steps, (unsigned long long)check::hash(model));
    return check::pass();
}
