# needs: plain
"""How busy processes keep the device, by NVIDIA's Python bindings and by nvitop, beside the accounts of `openmps top`.

Two programs work, one of them with pauses, and this one watches; the last line is PASS.
"""

import ctypes
import json
import os
import pathlib
import subprocess
import sys
import time

PTX = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry spin(.param .u64 out, .param .u32 rounds)
{
  .reg .pred %p; .reg .b32 %r<3>; .reg .b64 %a;
  ld.param.u32 %r1, [rounds];
  ld.param.u64 %a, [out];
  mov.u32 %r0, 0;
again:
  add.u32 %r0, %r0, 1;
  setp.lt.u32 %p, %r0, %r1;
  @%p bra again;
  st.global.u32 [%a], %r0;
  ret;
}
"""

OPENMPS = pathlib.Path(__file__).parents[2] / "target/debug/openmps"


def work(pause):
    """Keeps the device busy until it is ended, with pauses of so many seconds."""
    cuda = ctypes.CDLL("libcuda.so.1")
    handle = ctypes.c_void_p
    context, module, kernel, out = handle(), handle(), handle(), ctypes.c_uint64()
    assert cuda.cuInit(0) == 0
    assert cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0) == 0
    assert cuda.cuModuleLoadData(ctypes.byref(module), PTX) == 0
    assert cuda.cuModuleGetFunction(ctypes.byref(kernel), module, b"spin") == 0
    assert cuda.cuMemAlloc_v2(ctypes.byref(out), ctypes.c_size_t(1 << 20)) == 0
    rounds = ctypes.c_uint32(200_000)
    pointers = [ctypes.cast(ctypes.byref(it), handle) for it in (out, rounds)]
    parameters = (handle * 2)(*pointers)
    said = False
    while True:
        assert cuda.cuLaunchKernel(kernel, 4, 1, 1, 32, 1, 1, 0, None, parameters, None) == 0
        assert cuda.cuCtxSynchronize() == 0
        if not said:
            print("works", flush=True)
            said = True
        time.sleep(pause)


if "--work" in sys.argv:
    work(float(sys.argv[-1]))

import pynvml  # noqa: E402
from nvitop import Device  # noqa: E402

programs = [
    subprocess.Popen([sys.executable, __file__, "--work", pause], stdout=subprocess.PIPE)
    for pause in ("0", "0.05")
]
try:
    for program in programs:
        assert program.stdout.readline() == b"works\n"
    pids = {program.pid for program in programs}

    def had():
        """The multiprocessors' seconds that each program has had, and how many multiprocessors there are."""
        environment = dict(os.environ, OPENMPS_VIEW="machine")
        shown = subprocess.check_output([OPENMPS, "top", "--json", "--interval=0.1"], env=environment)
        (device,) = json.loads(shown)["devices"]
        total = {it["pid"]: it["total"]["multiprocessor_seconds"] for it in device["clients"]}
        assert pids <= total.keys(), (pids, total)
        return total, device["multiprocessors"]

    def samples(since):
        got = pynvml.nvmlDeviceGetProcessUtilization(device, since)
        assert {sample.pid for sample in got} == pids, (got, pids)
        return {sample.pid: sample for sample in got}

    pynvml.nvmlInit()
    device = pynvml.nvmlDeviceGetHandleByIndex(0)
    # What NVML tells of lies between what the accounts say inside of its span and around it.
    (before, all_of_them), first = had(), samples(0)
    (began, _), _ = had(), time.sleep(2)
    (ended, _), last, (after, _) = had(), samples(next(iter(first.values())).timeStamp), had()
    for pid in pids:
        seconds = (last[pid].timeStamp - first[pid].timeStamp) / 1e6
        # A look within a twentieth of a second of another is not kept; and what is told is rounded up.
        slack = all_of_them * (0.05 + 0.01 * seconds)
        told = last[pid].smUtil / 100 * seconds * all_of_them
        assert ended[pid] - began[pid] - slack <= told <= after[pid] - before[pid] + slack, (
            pid, told, before[pid], began[pid], ended[pid], after[pid],
        )
        print(pid, "smUtil", last[pid].smUtil, "memUtil", last[pid].memUtil, "in", seconds, "s")
    rates = pynvml.nvmlDeviceGetUtilizationRates(device)
    assert 0 < rates.gpu <= 100 and rates.memory <= 100, rates
    print("gpu", rates.gpu, "memory", rates.memory)

    (gpu,) = Device.all()
    assert 0 < gpu.gpu_utilization() <= 100, gpu.gpu_utilization()
    processes = gpu.processes()
    assert pids <= processes.keys(), processes
    for pid in pids:
        utilization = processes[pid].gpu_sm_utilization()
        assert 0 < utilization <= 100, (pid, utilization)
        print("nvitop:", pid, utilization)
finally:
    for program in programs:
        program.kill()
        program.wait()

# Nobody works any more.
deadline = time.monotonic() + 60
while True:
    try:
        pynvml.nvmlDeviceGetProcessUtilization(device, 0)
    except pynvml.NVMLError_NotFound:
        break
    assert time.monotonic() < deadline, "processes that have ended still work"
pynvml.nvmlShutdown()
print("PASS")
