"""Intrinsics of patches: their arithmetic against Python's, their instructions in PTX."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numba import njit

from pasta.probes import intrinsics
from pasta.probes.intrinsics import (
    ctz,
    load_u8,
    load_u16,
    load_u32,
    load_u64,
    lshr,
    popc,
    store_u8,
    store_u16,
    store_u32,
    store_u64,
    ult,
)
from pasta.probes.nvptx import PatchFunction, to_ptx

I64 = st.integers(-(2**63), 2**63 - 1) | st.sampled_from(
    [0, 1, -1, -(2**63), 2**63 - 1, 2**32, 2**32 - 1]
)


def unsigned(value: int) -> int:
    return value & (2**64 - 1)


def signed(value: int) -> int:
    return (value + 2**63) % 2**64 - 2**63


# What these make is the same IR for every target, so the processor can run it.


@njit
def arithmetic(a, b, count):
    return ult(a, b), lshr(a, count)


@njit
def of_lanes(mask):
    return popc(mask), ctz(mask)


@njit
def copy(source, target):
    store_u8(target, load_u8(source))
    store_u16(target + 8, load_u16(source))
    store_u32(target + 16, load_u32(source))
    store_u64(target + 24, load_u64(source))
    return load_u8(source), load_u16(source), load_u32(source), load_u64(source)


@given(a=I64, b=I64, count=st.integers(0, 63))
def test_arithmetic_is_that_of_unsigned_numbers(a: int, b: int, count: int) -> None:
    assert arithmetic(a, b, count) == (unsigned(a) < unsigned(b), signed(unsigned(a) >> count))


@given(mask=st.integers(1, 2**32 - 1) | st.sampled_from([1, 2**31, 2**32 - 1]))
def test_lanes_are_counted_and_the_lowest_is_found(mask: int) -> None:
    assert of_lanes(mask) == (bin(mask).count("1"), (mask & -mask).bit_length() - 1)


@given(value=I64)
def test_memory_is_read_without_sign_and_written_no_further_than_asked(value: int) -> None:
    source = np.array([value], np.int64)
    target = np.full(4, 0x5555555555555555, np.int64)
    bits = unsigned(value)
    read = copy(source.ctypes.data, target.ctypes.data)
    assert read == (bits & 0xFF, bits & 0xFFFF, bits & 0xFFFFFFFF, value)
    kept = [(0x5555555555555555 >> width << width) for width in (8, 16, 32, 64)]
    expected = [above & (2**64 - 1) | low & (2**64 - 1) for above, low in zip(kept, read)]  # noqa: B905
    expected[3] = bits
    assert target.view(np.uint64).tolist() == expected


# ---- each one's instruction ------------------------------------------------------------------

INSTRUCTIONS = {
    "load_u8": "ld.global.b8",
    "load_u16": "ld.global.b16",
    "load_u32": "ld.global.b32",
    "load_u64": "ld.global.b64",
    "load_u64_volatile": "ld.relaxed.gpu.global.u64",
    "load_u64_generic": "ld.b64",
    "load_u64_system": "ld.relaxed.sys.global.u64",
    "store_u8": "st.global.b8",
    "store_u16": "st.global.b16",
    "store_u32": "st.global.b32",
    "store_u64": "st.global.b64",
    "atomic_add_u64": "red.relaxed.gpu.global.add.u64",
    "atomic_add_u64_system": "red.relaxed.sys.global.add.u64",
    "fetch_add_u64": "atom.relaxed.gpu.global.add.u64",
    "atomic_cas_u32": "atom.relaxed.gpu.global.cas.b32",
    "atomic_cas_u64": "atom.relaxed.gpu.global.cas.b64",
    "fence_system": "fence.acq_rel.sys;",
    "nanosleep": "nanosleep.u32",
    "globaltimer": "%globaltimer;",
    "ult": "setp.lt.u64",
    "lshr": "shr.u64",
    "popc": "popc.b",
    "activemask": "activemask.b32",
    "match_any_sync": "match.any.sync.b32",
    "match_any_sync_64": "match.any.sync.b64",
    "ballot_sync": "vote.sync.ballot.b32",
    "any_sync": "vote.sync.any.pred",
    "shfl_sync": "shfl.sync.idx.b32",
    "lane_id": "%laneid;",
    "smid": "%smid;",
    "tid_x": "%tid.x;",
    "tid_y": "%tid.y;",
    "tid_z": "%tid.z;",
    "ntid_x": "%ntid.x;",
    "ntid_y": "%ntid.y;",
    "ntid_z": "%ntid.z;",
    "ctaid_x": "%ctaid.x;",
    "ctaid_y": "%ctaid.y;",
    "ctaid_z": "%ctaid.z;",
    "nctaid_x": "%nctaid.x;",
    "nctaid_y": "%nctaid.y;",
    "nctaid_z": "%nctaid.z;",
}


def calling(name: str) -> Callable[..., Any]:
    """A patch that passes its parameters to an intrinsic and stores what that gives."""
    function = getattr(intrinsics, name)
    arity = len(inspect.signature(function._defn).parameters) - 1
    call = f"{name}({', '.join('abc'[:arity])})"
    gives = name.startswith(("store_", "atomic_add_", "fence_", "nanosleep"))
    body = call if gives else f"store_u64(place + 64, {call})"
    namespace = {name: function, "store_u64": store_u64}
    exec(f"def patch(place, a, b, c):\n    {body}\n    return 0", namespace)
    return namespace["patch"]


@pytest.mark.parametrize("name", INSTRUCTIONS)
def test_an_intrinsic_is_its_instruction(name: str) -> None:
    ptx = to_ptx([PatchFunction("patch", calling(name), ("u64", "u64", "u64", "u64"))], 90)
    assert INSTRUCTIONS[name] in ptx.replace("\t", " ").replace(" ;", ";")
