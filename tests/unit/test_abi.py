"""The header is the single definition: Python and the docs must agree with it."""

from __future__ import annotations

import numpy as np
import pytest

from pasta import abi
from pasta._native import ffi, lib
from shim import reference
from tests.support.places import ROOT

HEADER = reference.HEADER.read_text(encoding="utf-8")
EVENTS = {event.kind: event for event in reference.events(HEADER)}


def test_event_reference_is_up_to_date() -> None:
    assert (ROOT / "docs" / "events.md").read_text() == reference.render(HEADER), (
        "run: python -m shim.reference > docs/events.md"
    )


def test_python_declares_every_event_kind() -> None:
    numbers = {kind: event.number for kind, event in EVENTS.items()}
    assert list(numbers.items()) == list(abi.KINDS.items())
    assert len(numbers) == lib.PASTA_EVENT_count
    assert list(numbers.values()) == sorted(set(numbers.values()) & set(range(1, lib.PASTA_KINDS)))
    assert {kind: abi.payload_of(kind) for kind in EVENTS} == {
        kind: event.payload for kind, event in EVENTS.items()
    }


def test_handlers_are_called_in_the_order_of_the_header() -> None:
    """The order is part of the tools' API: an allocation precedes a launch that uses it."""
    order = [
        "on_contexts", "on_streams", "on_modules", "on_memory", "on_tensors", "on_ranges",
        "on_operators", "on_frames", "on_launches", "on_launch_ends", "on_completions",
        "on_samples", "on_counters", "on_graph_launches", "on_graphs", "on_copies", "on_sets",
        "on_copy_completions", "on_uvm", "on_syncs", "on_events",
    ]  # fmt: skip
    assert [name for name in abi.HANDLERS if name in order] == order
    assert abi.HANDLERS["on_operators"] == ("operator_begin", "operator_tensors", "operator_end")
    assert {kind: name for name, kinds in abi.HANDLERS.items() for kind in kinds} == {
        kind: event.handler for kind, event in EVENTS.items() if event.handler
    }


def test_categories_and_labels() -> None:
    assert abi.kinds_of("launch") == ("kernel_launch",)
    assert abi.kinds_of("launch_return", "launch_result") == (
        "kernel_launch_end", "kernel_complete", "pc_sample", "counter", "kernel_details",
        "instruction_count", "tensor_map",
    )  # fmt: skip
    for kind in abi.kinds_of("launch_return", "launch_result"):
        assert "ordinal" in (abi.dtype(kind).names or ())
    assert abi.kinds_of("copy_result") == ("copy_complete",)
    assert {"memory_copy", "sync", "mark"} <= set(abi.kinds_of("activity"))
    assert {"pad"} == abi.UNRECORDED
    assert {"uvm_attach", "memory_alloc"} <= abi.RETAINED and "range_push" not in abi.RETAINED
    assert abi.label("context_destroy") == "context destroys"
    assert len({abi.label(kind) for kind in abi.KINDS}) == len(abi.KINDS)


@pytest.mark.parametrize("kind", abi.KINDS)
def test_record_layouts_match_c(kind: str) -> None:
    dtype = abi.dtype(kind)
    assert dtype.itemsize == lib.pasta_kind_slots(abi.KINDS[kind]) * abi.SLOT
    header = ffi.sizeof("pasta_header")
    fields = {name: field.offset for name, field in ffi.typeof("pasta_header").fields}
    struct = ffi.typeof(f"pasta_{EVENTS[kind].payload}")
    fields |= {name: header + field.offset for name, field in struct.fields}
    fields["index"] = fields.pop("commit")
    assert dtype.fields is not None
    for name, (_, offset) in ((n, f[:2]) for n, f in dtype.fields.items()):
        assert offset == fields[name], name


@pytest.mark.parametrize("kind", abi.KINDS)
def test_string_and_enum_fields_match_the_header(kind: str) -> None:
    types = {field.name: field.type for field in reference.structs(HEADER)[EVENTS[kind].payload]}
    strings = {name for name, type in types.items() if type == "pasta_string_id"}
    assert set(abi.string_fields(kind)) == strings
    own = {name for name, type in types.items() if type.startswith("pasta_")}
    assert set(abi.enum_fields(kind)) == own - strings - {"priority", "stack", "throttle"}
    for field in strings | set(abi.enum_fields(kind)):
        assert abi.dtype(kind)[field] == np.uint32


def test_names_of_enum_values() -> None:
    assert set(abi.enums()) == {
        "memory", "copy", "sync", "origin", "role", "uvm", "collective",
    }  # fmt: skip
    assert abi.enums()["sync"] == {1: "stream", 2: "context", 3: "device", 4: "event"}
    assert abi.enum_fields("memory_copy") == {"direction": abi.enums()["copy"]}
    assert (abi.THROTTLE["power"], abi.THROTTLE["thermal"], abi.THROTTLE["idle"]) == (1, 2, 16)


def test_types_can_declare_their_sentinel() -> None:
    """All ones are absent in other fields; -1 is a priority that streams have."""
    dtype = abi.dtype("stream_create")
    assert abi.absent("priority", dtype["priority"]) == np.iinfo(np.int32).min
    (record,) = abi.absent_records(1, dtype, "stream_create")
    assert (record["priority"], record["correlation"]) == (np.iinfo(np.int32).min, 0)
    assert record["id"] == np.iinfo(np.uint64).max
    (record,) = abi.absent_records(1, abi.dtype("operator_begin"), "operator_begin")
    assert (record["name"], record["stack"]) == (0, 0)
    (record,) = abi.absent_records(1, abi.dtype("kernel_launch"), "kernel_launch")
    assert (record["name"], record["module"]) == (0, np.iinfo(np.uint64).max)  # a handle
