"""What sources can give, read from shim/include/pasta_capabilities.h through cffi.

A capability is an event kind ("kernel_complete"), or has a name of its own ("registers",
"accesses"). Kinds that are none of them are PASTA's own: any process may have them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from pasta._native import ffi, lib

#: What probes need.
ACCESSES = "accesses"
_NO_FIELD = "none"


def _text(pointer: object) -> str:
    return str(ffi.string(pointer).decode())


@dataclass(frozen=True)
class Source:
    """A source of events, as process_start names it."""

    name: str
    title: str
    is_accelerator: bool  # else a framework


@dataclass(frozen=True)
class Capability:
    """Something that some sources give and others do not."""

    name: str
    kind: str
    field: str | None  # of the kind's records; None: the kind itself, or nothing that a field shows
    text: str
    sources: frozenset[str]  # that give it

    @property
    def is_kind(self) -> bool:
        return self.name == self.kind


def _sources() -> dict[str, Source]:
    found = (lib.pasta_sources[at] for at in range(lib.PASTA_SOURCE_count))
    sources = [Source(_text(s.name), _text(s.title), bool(s.accelerator)) for s in found]
    return {source.name: source for source in sources}


#: Sources by name, accelerators first.
SOURCES: dict[str, Source] = _sources()


def _capabilities() -> dict[str, Capability]:
    capabilities = {}
    for at in range(lib.PASTA_CAPABILITY_count):
        row = lib.pasta_capabilities[at]
        name, kind = _text(row.name), _text(row.kind)
        field = None if row.field == ffi.NULL else _text(row.field)
        given = frozenset(each for bit, each in enumerate(SOURCES) if row.sources >> bit & 1)
        capabilities[name] = Capability(
            name, kind, None if field == _NO_FIELD else field, _text(row.text), given
        )
    return capabilities


#: Capabilities by name: kinds, then the others.
CAPABILITIES: dict[str, Capability] = _capabilities()


@dataclass(frozen=True)
class Capabilities:
    """What the sources of a run can give together: `"registers" in run.capabilities`."""

    sources: tuple[str, ...]

    @cached_property
    def names(self) -> frozenset[str]:
        """Capabilities that at least one of the sources has."""
        return frozenset(
            name for name, each in CAPABILITIES.items() if each.sources.intersection(self.sources)
        )

    @property
    def kinds(self) -> frozenset[str]:
        """Event kinds among them."""
        return frozenset(name for name in self.names if CAPABILITIES[name].is_kind)

    @property
    def accelerators(self) -> tuple[str, ...]:
        """Sources that are accelerators, and known to this PASTA."""
        return tuple(
            name for name in self.sources if name in SOURCES and SOURCES[name].is_accelerator
        )

    @property
    def blind(self) -> tuple[str, ...]:
        """The accelerators, where none of them gives memory accesses; else none."""
        return () if ACCESSES in self else self.accelerators

    def __contains__(self, name: object) -> bool:
        return name in self.names

    def missing(self, wanted: Iterable[str]) -> dict[str, list[Capability]]:
        """By accelerator, what it does not give of what is wanted, in the order of the table.

        What no accelerator gives at all, or a framework of the run does, is nobody's gap. Names
        that are no capabilities are left out.
        """
        frameworks = set(self.sources).difference(self.accelerators)
        asked = set(wanted) - Capabilities(tuple(frameworks)).names
        given = [
            each
            for name, each in CAPABILITIES.items()
            if name in asked and any(SOURCES[source].is_accelerator for source in each.sources)
        ]
        gaps = {
            source: [each for each in given if source not in each.sources]
            for source in self.accelerators
        }
        return {source: found for source, found in gaps.items() if found}
