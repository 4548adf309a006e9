# needs: plain
"""CUDA's driver API from Python (cuda-bindings): NVRTC compiles to PTX, cuModuleLoadData loads it.

Checks its own results with NumPy; the last line is PASS.
"""

import numpy as np
from cuda.bindings import driver, nvrtc

SOURCE = b"""
extern "C" __global__ void add(const float *a, const float *b, float *sum, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) sum[i] = a[i] + b[i];
}

extern "C" __global__ void reduce(const int *values, unsigned long long *total, int count) {
    __shared__ unsigned long long part[256];
    unsigned long long own = 0;
    for (int i = blockIdx.x * 256 + threadIdx.x; i < count; i += gridDim.x * 256) own += values[i];
    part[threadIdx.x] = own;
    for (int half = 128; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
    }
    if (threadIdx.x == 0) atomicAdd(total, part[0]);
}

extern "C" __global__ void multiply(const double *a, const double *b, double *c, int n) {
    __shared__ double tile_a[16][16], tile_b[16][16];
    int row = blockIdx.y * 16 + threadIdx.y, column = blockIdx.x * 16 + threadIdx.x;
    double sum = 0;
    for (int k = 0; k < n; k += 16) {
        tile_a[threadIdx.y][threadIdx.x] = a[row * n + k + threadIdx.x];
        tile_b[threadIdx.y][threadIdx.x] = b[(k + threadIdx.y) * n + column];
        __syncthreads();
        for (int i = 0; i < 16; i++) sum += tile_a[threadIdx.y][i] * tile_b[i][threadIdx.x];
        __syncthreads();
    }
    c[row * n + column] = sum;
}

extern "C" __global__ void step(unsigned *state, unsigned key, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) state[i] = state[i] * 1664525u + key;
}
"""


def call(function, *arguments):
    """What a call gave, without its error code; ends the program where there was an error."""
    error, *results = function(*arguments)
    assert error.value == 0, f"{function.__name__}: {error!r}"
    return results[0] if len(results) == 1 else tuple(results)


def compile_to_ptx(source):
    program = call(nvrtc.nvrtcCreateProgram, source, b"kernels.cu", 0, [], [])
    # compute_75 is a virtual architecture: so the outcome is PTX, not code for one GPU.
    options = [b"--gpu-architecture=compute_75"]
    call(nvrtc.nvrtcCompileProgram, program, len(options), options)
    ptx = b" " * call(nvrtc.nvrtcGetPTXSize, program)
    call(nvrtc.nvrtcGetPTX, program, ptx)
    call(nvrtc.nvrtcDestroyProgram, program)
    return ptx


class Device:
    """An array of device memory that knows its NumPy shape."""

    def __init__(self, host):
        self.shape, self.dtype, self.bytes = host.shape, host.dtype, host.nbytes
        self.pointer = call(driver.cuMemAlloc, self.bytes)
        call(driver.cuMemcpyHtoD, self.pointer, np.ascontiguousarray(host).ctypes.data, self.bytes)

    def host(self):
        copy = np.empty(self.shape, self.dtype)
        call(driver.cuMemcpyDtoH, copy.ctypes.data, self.pointer, self.bytes)
        return copy

    def free(self):
        call(driver.cuMemFree, self.pointer)


def launch(kernel, grid, block, *arguments, stream=0):
    """Launches a kernel; device arrays pass as pointers, NumPy scalars as what they are."""
    values = tuple(a.pointer if isinstance(a, Device) else a.item() for a in arguments)
    types = tuple(
        None if isinstance(a, Device) else np.ctypeslib.as_ctypes_type(a.dtype) for a in arguments
    )
    call(driver.cuLaunchKernel, kernel, *grid, *block, 0, stream, (values, types), 0)


def vector_add(kernel):
    count = 10_007
    a = np.arange(count, dtype=np.float32)
    b = np.float32(0.5) * a[::-1]
    on_a, on_b, out = Device(a), Device(b), Device(np.zeros_like(a))
    launch(kernel["add"], (count // 256 + 1, 1, 1), (256, 1, 1), on_a, on_b, out, np.int32(count))
    assert np.array_equal(out.host(), a + b)
    for array in (on_a, on_b, out):
        array.free()


def reduction(kernel):
    values = np.random.default_rng(1).integers(0, 1 << 30, 100_003, dtype=np.int32)
    device, total = Device(values), Device(np.zeros(1, np.uint64))
    launch(kernel["reduce"], (40, 1, 1), (256, 1, 1), device, total, np.int32(len(values)))
    assert int(total.host()[0]) == sum(map(int, values))


def matrix_product(kernel):
    n = 64
    # Whole numbers: sums in any order are the same.
    a, b = np.random.default_rng(2).integers(-9, 9, (2, n, n)).astype(np.float64)
    product = Device(np.zeros((n, n)))
    blocks = (n // 16, n // 16, 1)
    launch(kernel["multiply"], blocks, (16, 16, 1), Device(a), Device(b), product, np.int32(n))
    assert np.array_equal(product.host(), a @ b)


def streams_and_events(kernel):
    """Eight streams, each with a chain of steps; an event makes each wait for the one before it."""
    count, steps = 1000, 10
    state = Device(np.arange(count, dtype=np.uint32))
    expected = np.arange(count, dtype=np.uint32)
    flags = driver.CUstream_flags.CU_STREAM_NON_BLOCKING
    streams = [call(driver.cuStreamCreate, flags) for _ in range(8)]
    begin, end = (call(driver.cuEventCreate, 0) for _ in range(2))
    call(driver.cuEventRecord, begin, streams[0])
    before = begin
    for number, stream in enumerate(streams):
        call(driver.cuStreamWaitEvent, stream, before, 0)
        for turn in range(steps):
            key = np.uint32(number * 100 + turn)
            launch(kernel["step"], (4, 1, 1), (256, 1, 1), state, key, np.int32(count), stream=stream)
            expected = expected * np.uint32(1664525) + key
        before = call(driver.cuEventCreate, 0)
        call(driver.cuEventRecord, before, stream)
    call(driver.cuEventRecord, end, streams[-1])
    call(driver.cuEventSynchronize, end)
    assert call(driver.cuEventElapsedTime, begin, end) > 0
    assert np.array_equal(state.host(), expected)
    for stream in streams:
        call(driver.cuStreamDestroy, stream)


def wrong_calls(context):
    error, _ = driver.cuModuleLoadData(b"this is no image\0")
    assert error == driver.CUresult.CUDA_ERROR_INVALID_IMAGE, error
    error, _ = driver.cuMemAlloc(1 << 50)
    assert error == driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY, error
    assert int(call(driver.cuCtxGetCurrent)) == int(context)


def main():
    call(driver.cuInit, 0)
    device = call(driver.cuDeviceGet, 0)
    context = call(driver.cuDevicePrimaryCtxRetain, device)
    call(driver.cuCtxSetCurrent, context)
    module = call(driver.cuModuleLoadData, compile_to_ptx(SOURCE))
    names = ("add", "reduce", "multiply", "step")
    kernel = {name: call(driver.cuModuleGetFunction, module, name.encode()) for name in names}
    for test in (vector_add, reduction, matrix_product, streams_and_events):
        test(kernel)
        print(f"{test.__name__}: right")
    wrong_calls(context)
    call(driver.cuModuleUnload, module)
    call(driver.cuDevicePrimaryCtxRelease, device)
    print("PASS")


main()
