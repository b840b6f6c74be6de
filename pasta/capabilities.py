"""Capabilities of sources of events, and their declaration by a source.

A capability is an event kind ("kernel_complete") or another name ("registers", "accesses"). Kinds
that PASTA itself records are not capabilities: any process may have them. Each source lists its
capabilities in the folder of its backend or framework; pasta/sources.py combines them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from pasta import abi

#: The capability that probes need.
ACCESSES = "accesses"
#: What tools with the handlers `on_samples`, `on_counters` and `on_instruction_counts` ask for.
PC_SAMPLES, COUNTERS, INSTRUCTIONS = "pc_sample", "counter", "instruction_count"


class Capability(NamedTuple):
    """Data that some sources record and others do not.

    `field` of `kind` has a value in at least some records of a source with the capability; None:
    the kind itself, or a capability without a field.
    """

    name: str
    kind: str
    field: str | None
    text: str  # as in "not given by …: cluster sizes"

    @property
    def is_kind(self) -> bool:
        """Whether the capability is an event kind."""
        return self.name == self.kind


_OTHERS = (
    Capability(ACCESSES, "kernel_launch", None, "memory accesses inside kernels"),
    Capability("device_name", "context_create", "name", "names of devices"),
    Capability("stream_id", "stream_create", "id", "unique ids of streams"),
    Capability("stream_priority", "stream_create", "priority", "priorities of streams"),
    Capability("module_hash", "module_load", "hash", "hashes of modules"),
    Capability("module_of_launch", "kernel_launch", "module", "modules of kernels"),
    Capability("cluster", "kernel_launch", "cluster", "cluster sizes"),
    Capability("registers", "kernel_launch", "registers", "registers"),
    Capability("shared_static", "kernel_launch", "shared_static", "static shared memory"),
    Capability("shared_dynamic", "kernel_launch", "shared_dynamic", "dynamic shared memory"),
    Capability("local", "kernel_launch", "local", "local memory"),
    Capability(
        "graph_node_of_launch", "kernel_launch", "graph_node", "graph nodes of launches"
    ),
    Capability("graph_node_of_copy", "memory_copy", "graph_node", "graph nodes of copies"),
    Capability("entry_pc", "kernel_launch", "entry_pc", "addresses of kernels' code"),
    Capability("vendor_flags", "memory_alloc", "vendor_flags", "vendors' flags of allocations"),
    Capability("copy_addresses", "memory_copy", "source", "addresses of copies"),
    Capability("copy_devices", "memory_copy", "source_device", "devices of copies"),
    Capability("copy_stream", "memory_copy", "destination_stream", "second streams of copies"),
    Capability("uvm_source", "uvm_prefetch", "source", "origin of prefetched managed memory"),
    Capability("wait_times", "sync", "duration", "duration of host waits"),
)  # fmt: skip

#: Capabilities by name: kinds, then the others.
CAPABILITIES: dict[str, Capability] = {
    each.name: each
    for each in (
        *(Capability(kind, kind, None, abi.label(kind)) for kind in abi.KINDS),
        *_OTHERS,
    )
    if each.name not in abi.OWN
}


class Source:
    """A source of events by its name in process_start, and its capabilities.

    `is_accelerator`: False for sources of frameworks. `is_buffered`: device times, and nodes of
    graphs, are recorded up to seconds after they ran, in any order. `notes`: remarks on
    capabilities, given or not, for docs/backends.md. Raises ValueError for an unknown capability.
    """

    def __init__(
        self,
        name: str,
        title: str,
        gives: frozenset[str],
        is_accelerator: bool = True,
        notes: Mapping[str, str] = MappingProxyType({}),
        is_buffered: bool = False,
    ) -> None:
        self.name = name
        self.title = title
        self.gives = gives
        self.is_accelerator = is_accelerator
        self.is_buffered = is_buffered
        self.notes = notes
        unknown = sorted((gives | notes.keys()) - CAPABILITIES.keys())
        if unknown:
            raise ValueError(f"source {name}: {unknown[0]!r} is not a capability")


def names(text: str) -> frozenset[str]:
    """Names in a text, separated by blanks."""
    return frozenset(text.split())


_NOT_GIVEN = "not given by "


def not_given(source: str, texts: Sequence[str]) -> str:
    """A note about data that a source does not record, from the texts of the capabilities."""
    return f"{_NOT_GIVEN}{source}: {', '.join(texts)}"


def read_not_given(note: str) -> tuple[str, list[str]] | None:
    """Source and texts of a note from `not_given`; None for other notes."""
    source, colon, texts = note.removeprefix(_NOT_GIVEN).partition(": ")
    return (source, texts.split(", ")) if note.startswith(_NOT_GIVEN) and colon else None
