"""Intrinsics of patches: their arithmetic against Python's, their instructions in PTX."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pasta.backends.nvidia import intrinsics
from pasta.backends.nvidia.intrinsics import load_u8, load_u32, load_u64, lshr, popc
from pasta.backends.nvidia.lowering import PatchFunction
from pasta.backends.nvidia.nvptx import to_ptx
from pasta.backends.nvidia.plan import functions_of
from tests.support.patch_intrinsics import store_u64
from tests.support.patches_on_cpu import stored

I64 = st.integers(-(2**63), 2**63 - 1) | st.sampled_from(
    [0, 1, -1, -(2**63), 2**63 - 1, 2**32, 2**32 - 1]
)


def unsigned(value: int) -> int:
    return value & (2**64 - 1)


def signed(value: int) -> int:
    return (value + 2**63) % 2**64 - 2**63


# Their IR is the same for every target, so the CPU can run it.


def arithmetic(place, a, count):
    store_u64(place, lshr(a, count))
    store_u64(place + 8, popc(a))
    return 0


def read(place, source):
    store_u64(place, load_u8(source))
    store_u64(place + 8, load_u32(source))
    store_u64(place + 16, load_u64(source))
    return 0


@given(a=I64, count=st.integers(0, 63))
def test_arithmetic_is_unsigned(a: int, count: int) -> None:
    found = stored(arithmetic, 2, a, count)
    assert found == [signed(unsigned(a) >> count), bin(unsigned(a)).count("1")]


@given(value=I64)
def test_loads_are_zero_extended(value: int) -> None:
    source = np.array([value], np.int64)
    bits = unsigned(value)
    assert stored(read, 3, source.ctypes.data) == [bits & 0xFF, bits & 0xFFFFFFFF, value]


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


def calling(name: str) -> PatchFunction:
    """A patch that passes its parameters to an intrinsic and stores the result."""
    call = f"{name}({', '.join('abc'[: getattr(intrinsics, name).arity])})"
    body = call if name.startswith("atomic_add_") else f"store_u64(place + 64, {call})"
    text = (
        "from pasta.backends.nvidia.intrinsics import *\n"
        "from tests.support.patch_intrinsics import store_u64\n"
        f"def patch(place, a, b, c):\n    {body}\n    return 0\n"
    )
    (made,) = functions_of(text, {"patch": ("u64", "u64")}, name)
    return made


@pytest.mark.parametrize("name", INSTRUCTIONS)
def test_intrinsics_compile_to_their_instruction(name: str) -> None:
    ptx = to_ptx([calling(name)], 90)
    assert INSTRUCTIONS[name] in ptx.replace("\t", " ").replace(" ;", ";")
