"""A program in Python that uses CUDA through ctypes, with nothing else installed: what a wheel's user runs."""

import ctypes

PTX = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry twice(.param .u64 data)
{
    .reg .b32 %r<3>;
    .reg .b64 %rd<4>;
    ld.param.u64 %rd1, [data];
    cvta.to.global.u64 %rd1, %rd1;
    mov.u32 %r1, %tid.x;
    mul.wide.u32 %rd2, %r1, 4;
    add.s64 %rd3, %rd1, %rd2;
    ld.global.u32 %r2, [%rd3];
    add.u32 %r2, %r2, %r2;
    st.global.u32 [%rd3], %r2;
    ret;
}
"""

cuda = ctypes.CDLL("libcuda.so.1")


def call(name, *arguments):
    result = getattr(cuda, name)(*arguments)
    assert result == 0, f"{name}: {result}"


device, context = ctypes.c_int(), ctypes.c_void_p()
module, function, memory = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_uint64()
numbers = (ctypes.c_uint32 * 64)(*range(64))
call("cuInit", 0)
call("cuDeviceGet", ctypes.byref(device), 0)
call("cuCtxCreate_v2", ctypes.byref(context), 0, device)
call("cuModuleLoadData", ctypes.byref(module), PTX)
call("cuModuleGetFunction", ctypes.byref(function), module, b"twice")
call("cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(ctypes.sizeof(numbers)))
call("cuMemcpyHtoD_v2", memory, numbers, ctypes.c_size_t(ctypes.sizeof(numbers)))
parameters = (ctypes.c_void_p * 1)(ctypes.addressof(memory))
call("cuLaunchKernel", function, 1, 1, 1, 64, 1, 1, 0, None, parameters, None)
call("cuMemcpyDtoH_v2", numbers, memory, ctypes.c_size_t(ctypes.sizeof(numbers)))
assert list(numbers) == [2 * number for number in range(64)], list(numbers)
print("twice")
