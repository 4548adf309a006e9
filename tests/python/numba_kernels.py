# needs: jit
"""Kernels written in Python (Numba) under OpenMPS: Numba makes PTX, and the driver links it.

Checks its own results with NumPy; the last line is PASS.
"""

import numpy as np
from numba import cuda, float32, int64


@cuda.jit
def add(a, b, total):
    i = cuda.grid(1)
    if i < total.size:
        total[i] = a[i] + b[i]


@cuda.jit
def reduce(values, total):
    part = cuda.shared.array(256, int64)
    own = int64(0)
    for i in range(cuda.grid(1), values.size, cuda.gridsize(1)):
        own += values[i]
    part[cuda.threadIdx.x] = own
    half = 128
    while half > 0:
        cuda.syncthreads()
        if cuda.threadIdx.x < half:
            part[cuda.threadIdx.x] += part[cuda.threadIdx.x + half]
        half //= 2
    if cuda.threadIdx.x == 0:
        cuda.atomic.add(total, 0, part[0])


@cuda.jit
def multiply(a, b, c):
    tile_a = cuda.shared.array((16, 16), float32)
    tile_b = cuda.shared.array((16, 16), float32)
    column, row = cuda.grid(2)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    total = float32(0)
    for k in range(0, a.shape[0], 16):
        tile_a[y, x] = a[row, k + x]
        tile_b[y, x] = b[k + y, column]
        cuda.syncthreads()
        for i in range(16):
            total += tile_a[y, i] * tile_b[i, x]
        cuda.syncthreads()
    c[row, column] = total


@cuda.jit
def step(state, key):
    i = cuda.grid(1)
    if i < state.size:
        state[i] = state[i] * 3 + key


def vector_add():
    a = np.arange(10_007, dtype=np.float32)
    b = a[::-1] * np.float32(0.5)
    total = np.zeros_like(a)
    add[len(a) // 256 + 1, 256](a, np.ascontiguousarray(b), total)
    assert np.array_equal(total, a + b)


def reduction():
    values = np.random.default_rng(1).integers(-1000, 1000, 100_003, dtype=np.int64)
    total = np.zeros(1, np.int64)
    reduce[40, 256](values, total)
    assert total[0] == values.sum()


def matrix_product():
    n = 64
    a, b = np.random.default_rng(2).integers(-9, 9, (2, n, n)).astype(np.float32)
    c = np.zeros_like(a)
    multiply[(n // 16, n // 16), (16, 16)](a, b, c)
    assert np.array_equal(c, a @ b)


def streams_and_events():
    streams = [cuda.stream() for _ in range(8)]
    state = cuda.to_device(np.ones(1000, np.int64))
    begin, before = cuda.event(), cuda.event()
    begin.record()
    before.record()
    for number, stream in enumerate(streams):
        before.wait(stream)
        step[4, 256, stream](state, number)
        before = cuda.event()
        before.record(stream)
    before.synchronize()
    assert cuda.event_elapsed_time(begin, before) >= 0
    expected = 1
    for number in range(len(streams)):
        expected = expected * 3 + number
    assert np.all(state.copy_to_host() == expected)


def main():
    for test in (vector_add, reduction, matrix_product, streams_and_events):
        test()
        print(f"{test.__name__}: right")
    print("PASS")


main()
