"""Intrinsics of patches: memory accesses, and communication between lanes of a warp.

Arguments and results are int64; `lshr` and others interpret their bits as unsigned. There is no
unsigned type: the mask of all ones is -1. Only for code that lowering.py compiles.
"""

from pasta.backends.nvidia.intrinsics.bins import bin_address, bin_of
from pasta.backends.nvidia.intrinsics.bits import again, lshr, popc, some
from pasta.backends.nvidia.intrinsics.memory import (
    atomic_add_u64,
    atomic_cas_u64,
    atomic_exchange_u64,
    atomic_fetch_add_u64,
    launch_of,
    load_u8,
    load_u32,
    load_u64,
    load_u64_volatile,
)
from pasta.backends.nvidia.intrinsics.objects import (
    bucket_of,
    direct_row_address,
    find,
    find_apart,
    find_offset,
    row_address,
    rows_of,
    slot_address,
)
from pasta.backends.nvidia.intrinsics.planes import bytes_of, touch_plane
from pasta.backends.nvidia.intrinsics.records import trace_lanes, trace_single
from pasta.backends.nvidia.intrinsics.tensor import tensor_box
from pasta.backends.nvidia.intrinsics.values import value_at
from pasta.backends.nvidia.intrinsics.warp import (
    activemask,
    all_equal,
    any_sync,
    ballot_sync,
    before,
    clock,
    ctaid_x,
    ctaid_y,
    ctaid_z,
    first_lanes,
    global_time,
    is_first,
    is_lowest,
    lane_id,
    match_any_sync,
    match_any_sync_64,
    nctaid_x,
    nctaid_y,
    ntid_x,
    ntid_y,
    smid,
    tid_x,
    tid_y,
    tid_z,
)

__all__ = [
    "activemask", "again", "all_equal", "any_sync", "atomic_add_u64", "atomic_cas_u64",
    "atomic_exchange_u64", "atomic_fetch_add_u64", "ballot_sync", "before", "bin_address", "bin_of",
    "bucket_of", "bytes_of", "clock", "ctaid_x", "ctaid_y", "ctaid_z", "direct_row_address", "find",
    "find_apart", "find_offset", "first_lanes", "global_time", "is_first", "is_lowest", "lane_id",
    "launch_of", "load_u8", "load_u32", "load_u64", "load_u64_volatile", "lshr", "match_any_sync",
    "match_any_sync_64", "nctaid_x", "nctaid_y", "ntid_x", "ntid_y", "popc",
    "row_address", "rows_of", "slot_address", "smid", "some", "tensor_box", "tid_x", "tid_y",
    "tid_z", "touch_plane", "trace_lanes", "trace_single", "value_at",
]  # fmt: skip
