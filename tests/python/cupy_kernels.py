# needs: plain
"""CuPy under OpenMPS: its own kernels, and one of ours, compiled to PTX (CUPY_COMPILE_WITH_PTX=1).

Checks its own results with NumPy; the last line is PASS.
"""

import cupy as cp
import numpy as np

# CUDA C++ of our own.
MULTIPLY = r"""
extern "C" __global__ void multiply(const float *a, const float *b, float *c, int n) {
    __shared__ float tile_a[16][16], tile_b[16][16];
    int row = blockIdx.y * 16 + threadIdx.y, column = blockIdx.x * 16 + threadIdx.x;
    float sum = 0;
    for (int k = 0; k < n; k += 16) {
        tile_a[threadIdx.y][threadIdx.x] = a[row * n + k + threadIdx.x];
        tile_b[threadIdx.y][threadIdx.x] = b[(k + threadIdx.y) * n + column];
        __syncthreads();
        for (int i = 0; i < 16; i++) sum += tile_a[threadIdx.y][i] * tile_b[i][threadIdx.x];
        __syncthreads();
    }
    c[row * n + column] = sum;
}
"""


def vector_add():
    a = cp.arange(10_007, dtype=cp.float32)
    b = a[::-1] * cp.float32(0.5)
    host = np.arange(10_007, dtype=np.float32)
    assert np.array_equal(cp.asnumpy(a + b), host + host[::-1] * np.float32(0.5))


def reduction():
    values = np.random.default_rng(1).integers(-1000, 1000, (300, 70), dtype=np.int64)
    device = cp.asarray(values)
    assert int(device.sum()) == values.sum()
    assert np.array_equal(cp.asnumpy(device.max(axis=1)), values.max(axis=1))
    assert np.array_equal(cp.asnumpy(device.argmin(axis=0)), values.argmin(axis=0))


def compiled_by_nvcc():
    """CUB and Thrust, which are in CuPy's package as machine code of some GPUs and PTX for sm_120."""
    values = np.random.default_rng(5).integers(-1000, 1000, 5000, dtype=np.int32)
    device = cp.asarray(values)
    assert np.array_equal(cp.asnumpy(cp.sort(device)), np.sort(values))
    assert np.array_equal(cp.asnumpy(cp.cumsum(device)), np.cumsum(values))


def own_reduction():
    norm = cp.ReductionKernel("T x", "T y", "x * x", "a + b", "y = sqrt(a)", "0", "own_norm")
    values = np.random.default_rng(2).random(5000)
    assert np.allclose(float(norm(cp.asarray(values))), np.sqrt((values * values).sum()))


def elementwise():
    kernel = cp.ElementwiseKernel("T x, T y", "T z", "z = x > y ? x - y : y * 2", "choose")
    x, y = np.random.default_rng(3).random((2, 1000))
    assert np.array_equal(cp.asnumpy(kernel(cp.asarray(x), cp.asarray(y))), np.where(x > y, x - y, y * 2))


def matrix_product():
    n = 64
    a, b = np.random.default_rng(4).integers(-9, 9, (2, n, n)).astype(np.float32)
    product = cp.zeros((n, n), cp.float32)
    multiply = cp.RawKernel(MULTIPLY, "multiply")
    multiply((n // 16, n // 16), (16, 16), (cp.asarray(a), cp.asarray(b), product, np.int32(n)))
    assert np.array_equal(cp.asnumpy(product), a @ b)


def streams_and_events():
    streams = [cp.cuda.Stream(non_blocking=True) for _ in range(8)]
    value = cp.full(1000, 1, cp.int64)
    before = cp.cuda.get_current_stream().record()
    for number, stream in enumerate(streams):
        with stream:
            stream.wait_event(before)
            value = value * 3 + number
            before = stream.record()
    before.synchronize()
    expected = 1
    for number in range(len(streams)):
        expected = expected * 3 + number
    assert before.done and np.all(cp.asnumpy(value) == expected)


def main():
    for test in (
        vector_add,
        reduction,
        compiled_by_nvcc,
        own_reduction,
        elementwise,
        matrix_product,
        streams_and_events,
    ):
        test()
        print(f"{test.__name__}: right")
    print("PASS")


main()
