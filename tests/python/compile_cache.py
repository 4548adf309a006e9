# needs: plain
"""NVRTC's compile cache: what is compiled again is found, in this process and in later ones.

Each compilation here is a process of its own, with a cache of its own; found or not, it must give the
bytes that NVRTC gives without a cache. That something was found shows in the cache's files: they are
touched and not written anew. The last line is PASS.
"""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

from cuda.bindings import nvrtc

SOURCE = b"""
extern "C" __global__ void scale(float *values, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) values[i] = sinf(values[i]) * FACTOR;
}
"""


def call(function, *arguments):
    """What a call gave, without its error code; ends the program where there was an error."""
    error, *results = function(*arguments)
    assert error.value == 0, f"{function.__name__}: {error!r}"
    return results[0] if len(results) == 1 else tuple(results)


def build(factor, *options):
    """PTX and machine code."""
    program = call(nvrtc.nvrtcCreateProgram, SOURCE, b"scale.cu", 0, [], [])
    options = [b"--gpu-architecture=sm_90", b"-DFACTOR=%d" % factor, *options]
    call(nvrtc.nvrtcCompileProgram, program, len(options), options)
    ptx = b" " * call(nvrtc.nvrtcGetPTXSize, program)
    call(nvrtc.nvrtcGetPTX, program, ptx)
    code = b" " * call(nvrtc.nvrtcGetCUBINSize, program)
    call(nvrtc.nvrtcGetCUBIN, program, code)
    call(nvrtc.nvrtcDestroyProgram, program)
    return ptx, code


def twice(folder):
    """In a child: the second time is found in memory, for the files are gone."""
    plain = build(2, b"--no-cache")
    assert not folder.exists(), "--no-cache keeps nothing"
    assert build(2) == plain
    assert len(files(folder)) == 2, "one for the PTX, one for the machine code"
    shutil.rmtree(folder)
    assert build(2) == plain
    assert not folder.exists(), "what was found is not stored again"
    other = build(3)
    assert other != plain and other == build(3, b"--no-cache")
    # NVRTC asks for its machine code by the same name, although the PTX is another.
    flushed = build(2, b"--ftz=true")
    assert flushed[1] != plain[1] and flushed == build(2, b"--ftz=true", b"--no-cache")


def once(_folder):
    """In a child: one compilation, which must give what it gives without a cache."""
    assert build(2) == build(2, b"--no-cache")


def files(folder):
    """Which files the cache has: number and time of change by name."""
    entries = folder.iterdir() if folder.exists() else ()
    return {entry.name: (entry.stat().st_ino, entry.stat().st_mtime) for entry in entries}


def child(what, cache, **variables):
    """Runs one of the functions above in a process of its own; gives the files that it leaves."""
    environment = os.environ | {"CUDA_CACHE_PATH": str(cache)} | variables
    environment.setdefault("CUDA_CACHE_DISABLE", "0")
    # With it NVRTC is asked for PTX alone, and this is about both.
    environment.pop("LD_AUDIT", None)
    subprocess.run([sys.executable, __file__, what], env=environment, check=True)
    return files(cache / "openmps")


def main():
    place = pathlib.Path(tempfile.mkdtemp())
    child("twice", place / "memory")

    cache = place / "files"
    first = child("once", cache)
    assert len(first) == 2, first
    for name in first:
        os.utime(cache / "openmps" / name, (1, 1))
    second = child("once", cache)
    for name, (number, _) in first.items():
        assert second[name][0] == number, "it is not written anew"
        assert second[name][1] > 1, "it was found"

    for name in first:
        path = cache / "openmps" / name
        whole = path.read_bytes()
        path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    damaged = {name: (cache / "openmps" / name).open("rb") for name in first}
    third = child("once", cache)
    for name, file in damaged.items():
        # Still open, so that its number is nobody else's.
        assert third[name][0] != os.fstat(file.fileno()).st_ino, "what is damaged is replaced"
        file.close()

    assert child("once", place / "none", CUDA_CACHE_DISABLE="1") == {}
    assert child("once", place / "small", CUDA_CACHE_MAXSIZE="100") == {}
    shutil.rmtree(place)
    print("PASS")


if len(sys.argv) > 1:
    {"twice": twice, "once": once}[sys.argv[1]](pathlib.Path(os.environ["CUDA_CACHE_PATH"], "openmps"))
else:
    main()
