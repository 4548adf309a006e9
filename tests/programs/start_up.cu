// needs: plain
// The first calls of a program, in the order in which most make them: count devices (the runtime opens
// the driver, looks up its functions and asks all attributes), make a context, load a module and launch.
//
// `start_up measure` prints how many microseconds each took, and fails only at the end where there is no
// device; benches/start_up.py compares.
#include <chrono>

#include "check.h"

__global__ void answer(int *value) { *value = 42; }

int main(int count, char **words) {
    bool measure = count > 1 && !strcmp(words[1], "measure");
    auto last = std::chrono::steady_clock::now();
    auto lap = [&](const char *what) {
        auto now = std::chrono::steady_clock::now();
        if (measure) printf("%s: %.1f\n", what, std::chrono::duration<double, std::micro>(now - last).count());
        last = std::chrono::steady_clock::now();
    };
    int devices = 0;
    cudaError_t error = cudaGetDeviceCount(&devices);
    lap("devices");
    if (measure && error != cudaSuccess) return 1;
    OK(error);
    CHECK(devices > 0, "%d devices", devices);
    OK(cudaFree(nullptr));
    lap("context");
    Array<int> value(1);
    lap("allocation");
    answer<<<1, 1>>>(value);
    RAN();
    lap("launch");
    CHECK(value.host()[0] == 42, "%d", value.host()[0]);
    lap("copy");
    if (measure) return 0;
    printf("first calls work\n");
    return check::pass();
}
