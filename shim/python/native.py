"""The cffi extension modules: pasta._native._ring, the ABI's types, and the consumer's and the
launcher's side of a ring; pasta._native._sampler, samples of a program's call stacks."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import cffi

SHIM = Path(__file__).resolve().parent.parent


def declarations(compiler: list[str], header: Path) -> str:
    """C declarations of a header without preprocessor lines, as cffi reads them."""
    command = [*compiler, "-E", "-P", "-DPASTA_CFFI", "-I", str(SHIM / "include"), str(header)]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return re.sub(r"__attribute__\(\(.*?\)\)", "", text)


def builder(compiler: list[str]) -> cffi.FFI:
    ffi = cffi.FFI()
    ffi.cdef("#define PASTA_SCHEMA ...\n#define PASTA_SLOT ...\n")
    ffi.cdef(declarations(compiler, SHIM / "include" / "pasta_abi.h"))
    ffi.cdef(declarations(compiler, SHIM / "python" / "reader.h"))
    ffi.cdef(declarations(compiler, SHIM / "python" / "writer.h"))
    ffi.cdef(declarations(compiler, SHIM / "include" / "pasta_trace.h"))
    ffi.cdef(declarations(compiler, SHIM / "python" / "trace_reader.h"))
    ffi.cdef(declarations(compiler, SHIM / "include" / "pasta_probes.h"))
    headers = ("pasta_abi.h", "reader.h", "writer.h", "trace_reader.h", "pasta_probes.h")
    ffi.set_source("pasta._native._ring", "".join(f'#include "{header}"\n' for header in headers))
    return ffi


def sampler(compiler: list[str]) -> cffi.FFI:
    ffi = cffi.FFI()
    ffi.cdef(declarations(compiler, SHIM / "sampler" / "sampler.h"))
    ffi.set_source("pasta._native._sampler", '#include "../sampler/sampler.h"\n')
    return ffi
