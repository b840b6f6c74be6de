"""What vendors document of architectures of devices."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

#: More than any amount.
NO_LIMIT = 1 << 40
#: Roofs of a device in bytes per second; all others are the units of `Architecture.operations`.
MEMORY, CACHE = "memory", "L2"


def is_bandwidth(roof: str) -> bool:
    """Whether the rate of a roof is in bytes per second, not operations."""
    return roof.startswith((MEMORY, CACHE))


def matrix_unit(type: str) -> str:
    """The units that multiply matrices of a type of numbers."""
    return f"{type} matrix"


def units_of(type: str) -> tuple[str, ...]:
    """The units that operations on a type of numbers may use."""
    more = (matrix_unit("tf32"),) if type == "float32" else ()
    return (type, matrix_unit(type), *more)


class Architecture(NamedTuple):
    """Documented limits and rates of an architecture; `Backend.architecture` returns it by name.

    The limits of a multiprocessor are used where the device itself does not report them.
    """

    threads: int | None = None  # resident ones per multiprocessor
    blocks: int | None = None  # resident ones per multiprocessor
    registers: int | None = None  # per multiprocessor
    shared: int | None = None  # bytes per multiprocessor
    block_registers: int = NO_LIMIT  # most of a block
    register_unit: int = 1  # registers of a warp are allocated in multiples of it
    partitions: int = 1  # of a multiprocessor, with a part of its registers each
    shared_unit: int = 1  # bytes; a block's shared memory is allocated in multiples of it
    shared_reserved: int = 0  # bytes of each block that the system uses
    #: Most floating-point operations per clock of a multiprocessor by the units that do them:
    #: "float16", or "float16 matrix" for units that multiply matrices.
    operations: Mapping[str, int] = MappingProxyType({})
