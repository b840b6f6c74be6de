"""Every injection method, and the message if nothing can be recorded."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from .conftest import CUDA, Build, Run


@pytest.mark.parametrize("way", ["preload", "vendor", "both"])
@pytest.mark.parametrize("cudart", ["shared", "static"])
def test_each_injection_method_alone(example: Build, profiled: Run, way: str, cudart: str) -> None:
    run = profiled(example("vadd", cudart), "--expect", PASTA_INJECT=way)
    assert run.status == 0, run.stderr
    run.counts.check(run.expected)


DRIVER_PROGRAM = """
#include <cuda.h>
#include <stdio.h>
int main(void) {
    CUdevice device; CUcontext context; CUdeviceptr memory;
    if (cuInit(0) || cuDeviceGet(&device, 0)) return 1;
    if (cuDevicePrimaryCtxRetain(&context, device)) return 1;
    if (cuCtxSetCurrent(context) || cuMemAlloc(&memory, 4096)) return 2;
    if (cuMemsetD32(memory, 5, 1024) || cuMemFree(memory)) return 3;
    puts("memory_alloc.device=1\\nmemory_set=1\\nmemory_set.bytes=4096");
    return 0;
}
"""


def driver_library() -> str:
    """Path of libcuda.so.1 as the loader finds it."""
    ctypes.CDLL("libcuda.so.1")
    paths = [line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines()]
    return next(path for path in paths if "/libcuda.so" in path)


@pytest.mark.parametrize("way", ["preload", "vendor"])
def test_program_linked_to_the_driver(tmp_path: Path, profiled: Run, way: str) -> None:
    compiler = shutil.which("cc") or shutil.which("gcc")
    assert compiler
    source, program = tmp_path / "driver.c", tmp_path / "driver"
    source.write_text(DRIVER_PROGRAM)
    library = driver_library()
    command = [compiler, f"-I{CUDA / 'include'}", str(source), "-o", str(program), library]
    subprocess.run([*command, f"-Wl,-rpath,{Path(library).parent}"], check=True)
    run = profiled(str(program), PASTA_INJECT=way)
    assert run.status == 0, run.stderr
    run.counts.check(run.expected)


def test_missing_library_is_reported_in_one_line(
    example: Build, native: Run, profiled: Run
) -> None:
    program = example("vadd")
    options = ("--set", "nvidia.source=sanitizer")
    library = "/no/such/libsanitizer-public.so"
    run = profiled(program, options=options, PASTA_SANITIZER_LIB=library)
    assert (run.status, run.stdout) == (0, native(program).stdout)
    lines = re.findall(r"^pasta: CUDA is not recorded: .*$", run.stderr, re.MULTILINE)
    assert len(lines) == 1
    assert "pip install 'nvidia-cuda-sanitizer-api>=13'" in lines[0]


def test_empty_subscription_records_nothing(example: Build, native: Run, profiled: Run) -> None:
    program = example("vadd")
    run = profiled(program, options=("--set", "nvidia.empty=true"))
    assert (run.status, run.stdout) == (0, native(program).stdout)
    assert run.counts["kernel_launch"] == 0


def test_child_that_forks_before_cuda_is_recorded(example: Build, profiled: Run) -> None:
    program = example("vadd")
    run = profiled("sh", "-c", f"{program} --expect & wait")
    assert run.status == 0, run.stderr
    run.counts.check(run.expected)
