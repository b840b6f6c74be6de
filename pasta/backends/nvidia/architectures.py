"""What NVIDIA documents of its architectures by compute capability ("sm_90").

Limits and units of allocation: "Compute Capabilities" in the CUDA C++ Programming Guide, and the
occupancy calculator's `cuda_occupancy.h`. Operations: dense rates of tensor cores (a multiplication
with its addition is two), from the whitepapers of V100, TU102, A100, GA102, AD102, H100, Blackwell
and RTX Blackwell: their peak rates divided by multiprocessors and boost clock. Types without tensor
cores have the rate of the ordinary units, from the guide's "Throughput of Native Arithmetic
Instructions".
"""

from __future__ import annotations

from types import MappingProxyType

from pasta.processors.architecture import Architecture

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
    half: int, tf32: int, *, float32: int, float64: int, float8: int = 0, bfloat16: bool = True
) -> dict[str, int]:
    """Operations per clock; 0: not supported. `tf32` is what single precision may use."""
    rates = {"float16": half, "float64": float64, "float32": tf32 or float32, "float8": float8}
    rates["bfloat16"] = half if bfloat16 else 0
    return {name: rate for name, rate in rates.items() if rate}


_VOLTA = _rates(1024, 0, float32=128, float64=64, bfloat16=False)
_TURING = _rates(1024, 0, float32=128, float64=4, bfloat16=False)
_A100 = _rates(2048, 1024, float32=128, float64=128)
_AMPERE = _rates(1024, 512, float32=256, float64=4)
_ADA = _rates(1024, 512, float32=256, float64=4, float8=2048)
_HOPPER = _rates(4096, 2048, float32=256, float64=256, float8=8192)
_B200 = _rates(8192, 4096, float32=256, float64=128, float8=16384)
_RTX_BLACKWELL = _rates(1024, 512, float32=256, float64=4, float8=2048)
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
