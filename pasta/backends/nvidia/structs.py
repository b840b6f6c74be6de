"""Offsets at which patches read the fields of structs in pasta_probes.h."""

from __future__ import annotations

#: Structs, each with the prefix of its offsets' names.
_STRUCTS = (
    ("pasta_probe_launch", "L"),
    ("pasta_object_table", "T"),
    ("pasta_object_cluster", "C"),
    ("pasta_object_range", "R"),
    ("pasta_probe_trace", "Q"),
    ("pasta_probe_places", "P"),
)


def field_offsets() -> dict[str, int]:
    """Offsets in bytes of all fields, by name: `L_ROWS` is `rows` of `pasta_probe_launch`."""
    from pasta._native import ffi

    return {
        f"{letter}_{name.upper()}": field.offset
        for struct, letter in _STRUCTS
        for name, field in ffi.typeof(struct).fields
    }


def constants() -> dict[str, int]:
    """Field offsets, sizes of structs in bytes, and the constants that patches share with C."""
    from pasta._native import ffi, lib

    return {
        "TRIES": lib.PASTA_PROBE_TRIES,
        "MIN_STRIPES": lib.PASTA_PROBE_MIN_STRIPES,
        "NODES": lib.PASTA_PROBE_NODES,
        "IS_NODE": lib.PASTA_PROBE_IS_NODE,
        "SLOTS": lib.PASTA_PROBE_SLOTS,
        "BATCHES": lib.PASTA_PROBE_BATCHES,
        "LAUNCH": ffi.sizeof("pasta_probe_launch"),
        "PC_BITS": lib.PASTA_PROBE_PC_BITS,
        "BASE_SHIFT": lib.PASTA_PROBE_BASE_SHIFT,
        "MORE_SHIFT": lib.PASTA_PROBE_MORE_SHIFT,
        "FIRST_RANGE": (1 << lib.PASTA_PROBE_MORE_SHIFT) - 1,
        "MANY": lib.PASTA_PROBE_MANY,
        "PARTS": lib.PASTA_PROBE_PARTS,
        "PARTS_SHIFT": lib.PASTA_PROBE_PARTS_SHIFT,
        "LAST_PART": (1 << lib.PASTA_PROBE_PARTS_SHIFT) - 1,
        "RANGE": ffi.sizeof("pasta_object_range"),
        "CLUSTER": ffi.sizeof("pasta_object_cluster"),
        **field_offsets(),
    }
