"""The header is the one description: what Python and the docs say of it must agree."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pasta import abi
from pasta._native import ffi, lib
from shim import reference

ROOT = Path(__file__).resolve().parents[2]
HEADER = reference.HEADER.read_text(encoding="utf-8")
PAYLOADS = {kind: payload for _, kind, payload, _, _ in reference.events(HEADER)}


def test_event_reference_is_up_to_date() -> None:
    assert (ROOT / "docs" / "events.md").read_text() == reference.render(HEADER), (
        "run: python -m shim.reference > docs/events.md"
    )


def test_every_event_kind_is_known_to_python() -> None:
    numbers = {kind: number for number, kind, *_ in reference.events(HEADER)}
    assert numbers == abi.KINDS
    assert sorted(numbers.values()) == list(range(1, len(numbers) + 1))


@pytest.mark.parametrize("kind", abi.KINDS)
def test_records_fill_whole_slots_and_fields_are_where_c_has_them(kind: str) -> None:
    dtype = abi.dtype(kind)
    assert dtype.itemsize == lib.pasta_kind_slots(abi.KINDS[kind]) * abi.SLOT
    header = ffi.sizeof("pasta_header")
    fields = {name: field.offset for name, field in ffi.typeof("pasta_header").fields}
    struct = ffi.typeof(f"pasta_{PAYLOADS[kind]}")
    fields |= {name: header + field.offset for name, field in struct.fields}
    fields["index"] = fields.pop("commit")
    assert dtype.fields is not None
    for name, (_, offset) in ((n, f[:2]) for n, f in dtype.fields.items()):
        assert offset == fields[name], name


@pytest.mark.parametrize("kind", abi.KINDS)
def test_string_fields_are_those_the_header_calls_strings(kind: str) -> None:
    fields = reference.structs(HEADER)[PAYLOADS[kind]]
    assert set(abi.string_fields(kind)) == {field.name for field in fields if field.is_string}


@pytest.mark.parametrize("kind", abi.KINDS)
def test_named_numbers_are_integers_of_their_kind(kind: str) -> None:
    for field, names in abi.enum_fields(kind).items():
        assert abi.dtype(kind)[field] == np.uint32
        assert names and all(isinstance(name, str) for name in names.values())
