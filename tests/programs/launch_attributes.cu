// needs: plain
// cudaLaunchKernelEx: a configuration without attributes, with a priority, with a cooperative
// attribute of false; unknown attributes are refused and not dropped.
#include "check.h"

__global__ void fill(int *p, int value, double scale) { p[blockIdx.x * blockDim.x + threadIdx.x] = int(value * scale); }

int main() {
    Array<int> p(256);
    cudaLaunchConfig_t config = {};
    config.gridDim = 2;
    config.blockDim = 128;
    OK(cudaLaunchKernelEx(&config, fill, (int *)p, 10, 1.5));
    RAN();
    CHECK(p.host()[255] == 15, "%d", p.host()[255]);
    cudaStream_t stream;
    OK(cudaStreamCreate(&stream));
    cudaLaunchAttribute attributes[2] = {};
    attributes[0].id = cudaLaunchAttributePriority;
    attributes[0].val.priority = 0;
    attributes[1].id = cudaLaunchAttributeCooperative;
    attributes[1].val.cooperative = 0;
    config.stream = stream;
    config.attrs = attributes;
    config.numAttrs = 2;
    OK(cudaLaunchKernelEx(&config, fill, (int *)p, 4, 2.0));
    OK(cudaStreamSynchronize(stream));
    CHECK(p.host()[0] == 8, "%d", p.host()[0]);
    attributes[0].id = cudaLaunchAttributeID(999);
    cudaError_t error = cudaLaunchKernelEx(&config, fill, (int *)p, 1, 1.0);
    CHECK(error == cudaErrorInvalidValue, "%s", cudaGetErrorName(error));
    cudaGetLastError();
    OK(cudaStreamDestroy(stream));
    printf("two launches, one refused\n");
    return check::pass();
}
