# needs: plain
"""Programs that ask NVRTC for machine code of the device's own architecture, and load it unmodified: by NVRTC's functions,
by cuda.core, by CuPy without CUPY_COMPILE_WITH_PTX.

Checks its own results with NumPy; the last line is PASS.
"""

import os
import subprocess
import sys
import threading

import numpy as np
from cuda.bindings import driver, nvrtc

SOURCE = b"""
extern "C" __global__ void scale(int *values, int factor) {
    values[blockIdx.x * blockDim.x + threadIdx.x] *= factor + OFFSET;
}
"""


def call(function, *arguments):
    """What a call gave, without its error code; ends the program where there was an error."""
    error, *results = function(*arguments)
    assert error.value == 0, f"{function.__name__}: {error!r}"
    return results[0] if len(results) == 1 else tuple(results)


def architecture():
    """The device's, as compilers name it: sm_121."""
    attribute = driver.CUdevice_attribute
    device = call(driver.cuDeviceGet, 0)
    numbers = (attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)
    return "sm_%d%d" % tuple(call(driver.cuDeviceGetAttribute, number, device) for number in numbers)


def machine_code(options, offset=0):
    """What NVRTC calls machine code, of a program that it compiled with these options."""
    program = call(nvrtc.nvrtcCreateProgram, SOURCE, b"scale.cu", 0, [], [])
    options = [option.encode() for option in options] + [b"-DOFFSET=%d" % offset]
    call(nvrtc.nvrtcCompileProgram, program, len(options), options)
    code = b" " * call(nvrtc.nvrtcGetCUBINSize, program)
    call(nvrtc.nvrtcGetCUBIN, program, code)
    call(nvrtc.nvrtcDestroyProgram, program)
    return code


def runs(code, factor, offset=0):
    """Whether an image that was compiled with this offset multiplies numbers as it should."""
    module = call(driver.cuModuleLoadData, code)
    kernel = call(driver.cuModuleGetFunction, module, b"scale")
    host = np.arange(256, dtype=np.int32)
    memory = call(driver.cuMemAlloc, host.nbytes)
    call(driver.cuMemcpyHtoD, memory, host.ctypes.data, host.nbytes)
    values = (np.array([int(memory)], np.uint64), np.array([factor], np.int32))
    pointers = np.array([value.ctypes.data for value in values], np.uint64)
    call(driver.cuLaunchKernel, kernel, 4, 1, 1, 64, 1, 1, 0, 0, pointers.ctypes.data, 0)
    got = np.empty_like(host)
    call(driver.cuMemcpyDtoH, got.ctypes.data, memory, host.nbytes)
    call(driver.cuMemFree, memory)
    call(driver.cuModuleUnload, module)
    return np.array_equal(got, host * (factor + offset))


def by_nvrtc(own):
    for options in ([f"--gpu-architecture={own}"], [f"-arch={own}", "--no-cache"], ["-arch", own, "-G"]):
        assert runs(machine_code(options), 3), options
    # PTX that is asked for by name is no machine code, as ever.
    assert machine_code(["--gpu-architecture=compute_80"]) == b""
    # An older architecture, which the device takes too.
    assert runs(machine_code(["-arch=sm_75"]), 5)


def in_threads(context, own):
    """Each with a program of its own; none gets another's."""
    right = []

    def work(number):
        call(driver.cuCtxSetCurrent, context)
        right.append(runs(machine_code([f"-arch={own}"], number), 2, number))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert right == [True] * 4, right


def by_cuda_core(own):
    from cuda.core import Device, LaunchConfig, Program, ProgramOptions, launch

    device = Device(0)
    device.set_current()
    stream = device.create_stream()
    program = Program(SOURCE.decode(), code_type="c++", options=ProgramOptions(arch=own, define_macro=("OFFSET", "1")))
    kernel = program.compile("cubin").get_kernel("scale")
    host = np.arange(256, dtype=np.int32)
    memory = call(driver.cuMemAlloc, host.nbytes)
    call(driver.cuMemcpyHtoD, memory, host.ctypes.data, host.nbytes)
    launch(stream, LaunchConfig(grid=4, block=64), kernel, int(memory), np.int32(6))
    stream.sync()
    got = np.empty_like(host)
    call(driver.cuMemcpyDtoH, got.ctypes.data, memory, host.nbytes)
    assert np.array_equal(got, host * 7)


def by_cupy():
    """In a child: CuPy reads the variable when it is imported."""
    import cupy

    values = cupy.arange(5000, dtype=cupy.float64)
    assert float((values * 2 + 1).sum()) == 5000.0**2
    kernel = cupy.RawKernel(SOURCE.decode(), "scale", options=("-DOFFSET=0",), backend="nvrtc")
    numbers = cupy.arange(64, dtype=cupy.int32)
    kernel((1,), (64,), (numbers, np.int32(9)))
    assert np.array_equal(cupy.asnumpy(numbers), np.arange(64) * 9)


def main():
    call(driver.cuInit, 0)
    own = architecture()
    context = call(driver.cuDevicePrimaryCtxRetain, call(driver.cuDeviceGet, 0))
    call(driver.cuCtxSetCurrent, context)
    by_nvrtc(own)
    in_threads(context, own)
    by_cuda_core(own)
    without = os.environ | {"CUPY_COMPILE_WITH_PTX": "0", "CUPY_CACHE_DIR": os.environ["CUPY_CACHE_DIR"] + "-code"}
    subprocess.run([sys.executable, __file__, "cupy"], env=without, check=True)
    print("PASS")


if sys.argv[1:] == ["cupy"]:
    by_cupy()
else:
    main()
