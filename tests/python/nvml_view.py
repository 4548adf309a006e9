# needs: plain
"""NVIDIA's Python bindings of its management library, and nvitop, which is built on them.

They see this process as a client with a quota; the last line is PASS.
"""

import ctypes
import os
import pathlib
import subprocess
import sys

import pynvml

QUOTA = 64 << 20
TAKEN = 8 << 20

# The structures that the library fills have the sizes that the bindings give them.
SIZES = pathlib.Path(__file__).parents[2] / "nvml/tests/data/sizes.tsv"
NAMES = {
    "nvmlMemory_t": pynvml.c_nvmlMemory_t,
    "nvmlMemory_v2_t": pynvml.c_nvmlMemory_v2_t,
    "nvmlPciInfo_v2_t": pynvml.nvmlPciInfo_v2_t,
    "nvmlPciInfo_t": pynvml.nvmlPciInfo_t,
    "nvmlPciInfoExt_t": pynvml.nvmlPciInfoExt_v1_t,
    # The bindings have no class for the oldest form.
    "nvmlProcessInfo_v1_t": None,
    "nvmlProcessInfo_v2_t": pynvml.c_nvmlProcessInfo_v2_t,
    "nvmlProcessDetail_v1_t": pynvml.c_nvmlProcessDetail_v1_t,
    "nvmlProcessDetailList_t": pynvml.c_nvmlProcessDetailList_v1_t,
    "nvmlUtilization_t": pynvml.c_nvmlUtilization_t,
    "nvmlProcessUtilizationSample_t": pynvml.c_nvmlProcessUtilizationSample_t,
    "nvmlProcessUtilizationInfo_v1_t": pynvml.c_nvmlProcessUtilizationInfo_v1_t,
    "nvmlProcessesUtilizationInfo_t": pynvml.c_nvmlProcessesUtilizationInfo_v1_t,
    "nvmlUUID_t": pynvml.c_nvmlUUID_t,
    "nvmlConfComputeSystemState_t": pynvml.c_nvmlConfComputeSystemState_t,
    "nvmlSystemConfComputeSettings_t": pynvml.c_nvmlSystemConfComputeSettings_v1_t,
}
sizes = dict(line.split("\t") for line in SIZES.read_text().splitlines())
assert sizes.keys() == NAMES.keys(), sizes.keys() ^ NAMES.keys()
for name, structure in NAMES.items():
    if structure is not None:
        assert ctypes.sizeof(structure) == int(sizes[name]), name
VERSIONS = [
    (pynvml.nvmlMemory_v2, "nvmlMemory_v2_t", 2),
    (pynvml.nvmlPciInfoExt_v1, "nvmlPciInfoExt_t", 1),
    (pynvml.nvmlProcessDetailList_v1, "nvmlProcessDetailList_t", 1),
    # This one has no prefix there.
    (pynvml.ProcessesUtilizationInfo_v1, "nvmlProcessesUtilizationInfo_t", 1),
    (pynvml.nvmlUUID_v1, "nvmlUUID_t", 1),
    (pynvml.nvmlSystemConfComputeSettings_v1, "nvmlSystemConfComputeSettings_t", 1),
]
for version, name, number in VERSIONS:
    assert version == int(sizes[name]) | number << 24, name

# Every function of the bindings is there, whatever it answers.
library = ctypes.CDLL("libnvidia-ml.so.1")
source = pathlib.Path(pynvml.__file__).read_text()
called = {part.split('"')[0] for part in source.split('_nvmlGetFunctionPointer("')[1:]}
assert len(called) > 300, len(called)
missing = sorted(name for name in called if not hasattr(library, name))
# Newer than the drivers whose names the table has.
assert len(missing) < 20 and "nvmlDeviceGetMemoryInfo" not in missing, missing

# The quota is of a client: a process of its own, since this one's environment is the test's.
if "--client" not in sys.argv:
    environment = dict(os.environ, CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=f"0={QUOTA}")
    sys.exit(subprocess.run([sys.executable, __file__, "--client"], env=environment).returncode)

cuda = ctypes.CDLL("libcuda.so.1")
context, memory = ctypes.c_void_p(), ctypes.c_uint64()
assert cuda.cuInit(0) == 0
assert cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0) == 0
assert cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(TAKEN)) == 0

pynvml.nvmlInit()
assert pynvml.nvmlDeviceGetCount() == 1
device = pynvml.nvmlDeviceGetHandleByIndex(0)
first, second = (
    pynvml.nvmlDeviceGetMemoryInfo(device),
    pynvml.nvmlDeviceGetMemoryInfo(device, pynvml.nvmlMemory_v2),
)
assert first.total == second.total == QUOTA, first
assert TAKEN <= first.used == second.used < QUOTA, first
own = [
    process.usedGpuMemory
    for process in pynvml.nvmlDeviceGetComputeRunningProcesses(device)
    if process.pid == os.getpid()
]
assert own == [first.used], own
assert not pynvml.nvmlDeviceGetGraphicsRunningProcesses(device)
uuid = pynvml.nvmlDeviceGetUUID(device)
assert pynvml.nvmlDeviceGetIndex(pynvml.nvmlDeviceGetHandleByUUID(uuid)) == 0
address = pynvml.nvmlDeviceGetPciInfo(device).busId
assert pynvml.nvmlDeviceGetIndex(pynvml.nvmlDeviceGetHandleByPciBusId(address)) == 0
assert pynvml.nvmlSystemGetCudaDriverVersion() == 13000
assert pynvml.nvmlSystemGetProcessName(os.getpid())
for ask in (pynvml.nvmlDeviceGetPowerUsage, pynvml.nvmlDeviceGetUtilizationRates):
    try:
        print("measured:", ask(device))
    except pynvml.NVMLError_NotSupported:
        pass

from nvitop import Device  # noqa: E402

(gpu,) = Device.all()
assert gpu.uuid() == uuid
assert gpu.memory_total() == QUOTA, gpu.memory_total()
assert gpu.memory_used() == first.used
assert gpu.cuda_compute_capability() == pynvml.nvmlDeviceGetCudaComputeCapability(device)
processes = gpu.processes()
assert processes[os.getpid()].gpu_memory() == first.used, processes
pynvml.nvmlShutdown()
print("PASS")
