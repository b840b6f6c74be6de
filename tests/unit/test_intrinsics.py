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

from pasta.backends.nvidia import intrinsics
from pasta.backends.nvidia.intrinsics import load_u8, load_u32, load_u64, lshr, popc
from pasta.backends.nvidia.nvptx import PatchFunction, to_ptx
from tests.support.patch_intrinsics import store_u64

I64 = st.integers(-(2**63), 2**63 - 1) | st.sampled_from(
    [0, 1, -1, -(2**63), 2**63 - 1, 2**32, 2**32 - 1]
)


def unsigned(value: int) -> int:
    return value & (2**64 - 1)


def signed(value: int) -> int:
    return (value + 2**63) % 2**64 - 2**63


# Their IR is the same for every target, so the CPU can run it.


@njit
def arithmetic(a, count):
    return lshr(a, count), popc(a)


@njit
def read(source):
    return load_u8(source), load_u32(source), load_u64(source)


@given(a=I64, count=st.integers(0, 63))
def test_arithmetic_is_unsigned(a: int, count: int) -> None:
    assert arithmetic(a, count) == (signed(unsigned(a) >> count), bin(unsigned(a)).count("1"))


@given(value=I64)
def test_loads_are_zero_extended(value: int) -> None:
    source = np.array([value], np.int64)
    bits = unsigned(value)
    assert read(source.ctypes.data) == (bits & 0xFF, bits & 0xFFFFFFFF, value)


# ---- each one's instruction ------------------------------------------------------------------

INSTRUCTIONS = {
    "load_u8": "ld.global.b8",
    "load_u32": "ld.global.b32",
    "load_u64": "ld.global.b64",
    "load_u64_volatile": "ld.relaxed.gpu.global.u64",
    "atomic_add_u64": "red.relaxed.gpu.global.add.u64",
    "atomic_cas_u64": "atom.relaxed.gpu.global.cas.b64",
    "lshr": "shr.u64",
    "popc": "popc.b",
    "activemask": "activemask.b32",
    "match_any_sync": "match.any.sync.b32",
    "match_any_sync_64": "match.any.sync.b64",
    "all_equal": "match.all.sync.b32",
    "ballot_sync": "vote.sync.ballot.b32",
    "any_sync": "vote.sync.any.pred",
    "lane_id": "%laneid;",
    "smid": "%smid;",
    "clock": "%clock;",
    "before": "%lanemask_lt;",
    "first_lanes": "shr.u32",
    "bucket_of": "ld.global.v4.b32",
    "tid_x": "%tid.x;",
    "tid_y": "%tid.y;",
    "tid_z": "%tid.z;",
    "ntid_x": "%ntid.x;",
    "ntid_y": "%ntid.y;",
    "ctaid_x": "%ctaid.x;",
    "ctaid_y": "%ctaid.y;",
    "ctaid_z": "%ctaid.z;",
    "nctaid_x": "%nctaid.x;",
    "nctaid_y": "%nctaid.y;",
}


def calling(name: str) -> Callable[..., Any]:
    """A patch that passes its parameters to an intrinsic and stores the result."""
    function = getattr(intrinsics, name)
    arity = len(inspect.signature(function._defn).parameters) - 1
    call = f"{name}({', '.join('abc'[:arity])})"
    body = call if name.startswith("atomic_add_") else f"store_u64(place + 64, {call})"
    namespace = {name: function, "store_u64": store_u64}
    exec(f"def patch(place, a, b, c):\n    {body}\n    return 0", namespace)
    return namespace["patch"]


@pytest.mark.parametrize("name", INSTRUCTIONS)
def test_intrinsics_compile_to_their_instruction(name: str) -> None:
    ptx = to_ptx([PatchFunction("patch", calling(name), ("u64", "u64", "u64", "u64"))], 90)
    assert INSTRUCTIONS[name] in ptx.replace("\t", " ").replace(" ;", ";")
