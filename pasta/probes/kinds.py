"""Access kinds and the fields of an access. Numbers are as in pasta_trace.h."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Space = Literal["global", "shared", "local", "none"]


@dataclass(frozen=True)
class Kind:
    """An access kind; `name` is its name in `@probe.on`."""

    number: int
    name: str
    space: Space


KINDS: tuple[Kind, ...] = (
    Kind(1, "global", "global"),
    Kind(2, "shared", "shared"),
    Kind(3, "local", "local"),
    Kind(4, "remote_shared", "shared"),
    Kind(5, "async_copy", "global"),
    Kind(6, "bulk_load", "global"),
    Kind(7, "bulk_store", "global"),
    Kind(8, "bulk_reduction", "global"),
    Kind(9, "tensor_load", "global"),
    Kind(10, "tensor_store", "global"),
    Kind(11, "matrix", "shared"),
    Kind(12, "bulk_shared", "shared"),
    Kind(13, "async_store", "shared"),
    Kind(14, "barrier", "none"),
    Kind(15, "block_enter", "none"),
    Kind(16, "block_exit", "none"),
    Kind(17, "call", "none"),
)
KIND: dict[str, Kind] = {kind.name: kind for kind in KINDS}
NAMES: dict[int, str] = {kind.number: kind.name for kind in KINDS}


def kinds_of(*spaces: Space) -> tuple[str, ...]:
    """Names of the kinds of some address spaces, in order of their numbers."""
    return tuple(kind.name for kind in KINDS if kind.space in spaces)


#: Kinds of each decorator `probe.NAME`.
GROUPS: dict[str, tuple[str, ...]] = {
    "global_memory": kinds_of("global"),
    "shared_memory": kinds_of("shared"),
    "local_memory": kinds_of("local"),
    "memory": kinds_of("global", "shared", "local"),
    "barrier": ("barrier",),
    "block_enter": ("block_enter",),
    "block_exit": ("block_exit",),
    "call": ("call",),
}

# pasta_access.flags
READ, WRITE, ATOMIC, PREFETCH = 1, 2, 4, 8
#: First bit in `flags` of the number, from 1, of the Trace map that took the record on a GPU.
MAP_SHIFT = 4
# pasta_access.form
STRIDE, DELTAS, FULL, ROWS = range(4)
#: First bit in `form` of the number of words of a value that follow for each lane.
VALUES_SHIFT = 4
#: Bytes of an access up to which its values are known.
MAX_VALUE = 16

#: `sm` is recorded in 8 bits.
MULTIPROCESSORS = 256

#: Kinds whose records have a time instead of an address.
TIMED = ("barrier", "block_enter", "block_exit")

#: Kinds whose values can be known.
VALUED = ("global", "async_copy")

#: Kinds that have a field: all, those with an address, memory accesses, those to shared memory,
#: those with a time, or those with a value.
Needs = Literal["nothing", "address", "access", "shared", "time", "value"]


@dataclass(frozen=True)
class Field:
    """A field of `access`, a 64-bit integer; `lane` ones differ between the lanes of a warp."""

    name: str
    lane: bool
    needs: Needs
    text: str


FIELDS: dict[str, Field] = {
    field.name: field
    for field in (
        Field("address", True, "address", "of the first byte; of a call: its target"),
        Field("object", True, "access", "id of the live object that contains it; -1: none"),
        Field(
            "offset",
            True,
            "access",
            ("bytes from the object's start; without an object: the address"),
        ),
        Field("known", True, "access", "whether a live object contains it"),
        Field("lane", True, "nothing", "0 to 31"),
        Field("leader", True, "nothing", "whether it is the lowest active lane"),
        Field("value", True, "value", "low 64 bits of the value stored, or found in memory"),
        Field("value_high", True, "value", "next 64 bits of the value"),
        Field("has_value", False, "value", "whether the value is known"),
        Field("pc", False, "nothing", "address of the instruction"),
        Field("bytes", False, "access", "per lane; of a bulk or tensor transfer: all bytes"),
        Field("warp_bytes", False, "access", "sum of the active lanes' bytes"),
        Field("kind", False, "nothing", "number of the kind, as in pasta.probes.KINDS"),
        Field("is_read", False, "access", "whether it reads"),
        Field("is_write", False, "access", "whether it writes"),
        Field("is_atomic", False, "access", "whether it is atomic; if so, it reads and writes"),
        Field("mask", False, "nothing", "bit i: lane i is active"),
        Field("lanes", False, "nothing", "active lanes"),
        Field("sectors", False, "access", "distinct 32-byte sectors that the active lanes touch"),
        Field("ideal_sectors", False, "access", "fewest sectors that could hold those bytes"),
        Field(
            "ways",
            False,
            "shared",
            ("wavefronts: sum over lane groups of the most words in one bank"),
        ),
        Field("ideal_ways", False, "shared", "lane groups: wavefronts without a conflict"),
        Field("block", False, "nothing", "linear index in the grid"),
        Field("warp", False, "nothing", "in its block"),
        Field("sm", False, "nothing", "multiprocessor, low 8 bits"),
        Field("launch", False, "nothing", "ordinal of the launch"),
        Field("epoch", False, "nothing", "number of the launch, only for comparison with others"),
        Field("time", False, "time", "device clock in ns; 0: the source has none"),
        Field("rows", False, "access", "rows of a bulk or tensor transfer; otherwise 1"),
        Field("stride", False, "access", "bytes between rows of a transfer; otherwise 0"),
    )
}


def missing(field: Field, kinds: tuple[str, ...]) -> list[str]:
    """The kinds that do not have the field."""

    def has(kind: Kind) -> bool:
        if field.needs == "address":
            return kind.space != "none" or kind.name == "call"
        if field.needs == "time":
            return kind.name in TIMED
        if field.needs == "value":
            return kind.name in VALUED
        if field.needs == "access":
            return kind.space != "none"
        return field.needs == "nothing" or kind.space == "shared"

    return [name for name in kinds if not has(KIND[name])]
