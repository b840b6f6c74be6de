"""NVIDIA's architectures by compute capability ("sm_90"), as documented.

Limits and units of allocation: "Compute Capabilities" in the CUDA C++ Programming Guide, and the
occupancy calculator's `cuda_occupancy.h`. Operations: dense rates of tensor cores (a multiplication
with its addition is two), from the whitepapers of V100, TU102, A100, GA102, AD102, H100, Blackwell
and RTX Blackwell: their peak rates divided by multiprocessors and boost clock; those of other units
from the guide's "Throughput of Native Arithmetic Instructions".
"""

from __future__ import annotations

from types import MappingProxyType

from pasta.processors.architecture import Architecture, matrix_unit

_KIB = 1024
_REGISTERS = 1 << 16


def _architecture(
    threads: int, blocks: int, shared: int, operations: dict[str, int], *, since_ampere: bool = True
) -> Architecture:
    """`shared`: KiB per multiprocessor."""
    return Architecture(
        threads,
        blocks,
        _REGISTERS,
        shared * _KIB,
        block_registers=_REGISTERS,
        register_unit=256,
        partitions=4,
        shared_unit=128 if since_ampere else 256,
        shared_reserved=_KIB if since_ampere else 0,
        operations=MappingProxyType(operations),
    )


def _rates(
    *,
    float64: int,
    float32: int,
    float16: int,
    bfloat16: int = 0,
    half: int,
    tf32: int = 0,
    double: int = 0,
    float8: int = 0,
) -> dict[str, int]:
    """Operations per clock; 0: not supported. `half` (of both types with 16 bits, if the ordinary
    units have both), `tf32`, `double` and `float8`: of tensor cores."""
    rates = {"float64": float64, "float32": float32, "float16": float16, "bfloat16": bfloat16}
    matrices = {
        "float64": double, "tf32": tf32, "float16": half, "bfloat16": half if bfloat16 else 0,
        "float8": float8,
    }  # fmt: skip
    rates |= {matrix_unit(name): rate for name, rate in matrices.items()}
    return {name: rate for name, rate in rates.items() if rate}


_VOLTA = _rates(float64=64, float32=128, float16=256, half=1024)
_TURING = _rates(float64=4, float32=128, float16=256, half=1024)
_A100 = _rates(float64=64, float32=128, float16=512, bfloat16=256, half=2048, tf32=1024, double=128)
_AMPERE = _rates(float64=4, float32=256, float16=256, bfloat16=256, half=1024, tf32=512)
_ADA = _rates(float64=4, float32=256, float16=256, bfloat16=256, half=1024, tf32=512, float8=2048)
_HOPPER = _rates(
    float64=128, float32=256, float16=512, bfloat16=512, half=4096, tf32=2048, double=256,
    float8=8192,
)  # fmt: skip
_B200 = _rates(
    float64=128, float32=256, float16=512, bfloat16=512, half=8192, tf32=4096, double=128,
    float8=16384,
)  # fmt: skip
_RTX_BLACKWELL = _ADA
#: By compute capability.
_KNOWN = {
    70: _architecture(2048, 32, 96, _VOLTA, since_ampere=False),
    72: _architecture(2048, 32, 96, {}, since_ampere=False),
    75: _architecture(1024, 16, 64, _TURING, since_ampere=False),
    80: _architecture(2048, 32, 164, _A100),
    86: _architecture(1536, 16, 100, _AMPERE),
    87: _architecture(1536, 16, 164, {}),
    89: _architecture(1536, 24, 100, _ADA),
    90: _architecture(2048, 32, 228, _HOPPER),
    100: _architecture(2048, 32, 228, _B200),
    103: _architecture(2048, 32, 228, {}),
    120: _architecture(1536, 24, 100, _RTX_BLACKWELL),
    121: _architecture(1536, 24, 100, {}),
}


def find_architecture(name: str) -> Architecture | None:
    """The architecture of a name such as "sm_90" or "sm_90a"; None if it is none of NVIDIA's, or
    not known to this PASTA."""
    number = name.removeprefix("sm_").rstrip("af")
    if number == name or not number.isdecimal():
        return None
    return _KNOWN.get(int(number))
