"""Sources of events by name, of all backends and frameworks, and their capabilities."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from pasta.backends import BACKENDS
from pasta.backends.base import Backend
from pasta.capabilities import ACCESSES, CAPABILITIES, Capability, Source
from pasta.extensions import Extension
from pasta.frameworks import FRAMEWORKS


def known_sources() -> dict[str, Source]:
    """Sources by name, accelerators first; with those of packages if already loaded."""
    extensions: list[Extension] = [*BACKENDS.known(), *FRAMEWORKS.known()]
    return {source.name: source for each in extensions for source in each.sources}


def find_source(name: str) -> Source | None:
    """The source of a name; None if unknown to this PASTA."""
    found = known_sources().get(name)
    if found is None:
        BACKENDS.installed()
    return found or known_sources().get(name)


def backend_of(source: str) -> Backend | None:
    """The backend of a source; None for a source of a framework or an unknown one."""
    found = find_source(source)  # first: it may ask packages for backends
    return next((each for each in BACKENDS.known() if found in each.sources), None)


@dataclass(frozen=True)
class Capabilities:
    """Capabilities of the sources of a run: `"registers" in run.capabilities`."""

    sources: tuple[str, ...]

    @cached_property
    def _known(self) -> list[Source]:
        return [found for name in self.sources if (found := find_source(name))]

    @cached_property
    def names(self) -> frozenset[str]:
        """Capabilities that at least one of the sources has."""
        return frozenset().union(*(each.gives for each in self._known))

    @property
    def kinds(self) -> frozenset[str]:
        """Event kinds that at least one of the sources has."""
        return frozenset(name for name in self.names if CAPABILITIES[name].is_kind)

    @property
    def accelerators(self) -> tuple[str, ...]:
        """Known sources that are accelerators."""
        return tuple(each.name for each in self._known if each.is_accelerator)

    @property
    def blind(self) -> tuple[str, ...]:
        """The accelerators if none of them records memory accesses, otherwise empty."""
        return () if ACCESSES in self else self.accelerators

    def __contains__(self, name: object) -> bool:
        return name in self.names

    def missing(self, wanted: Iterable[str]) -> dict[str, list[Capability]]:
        """Wanted capabilities that an accelerator lacks, by accelerator, in the order of
        CAPABILITIES.

        Without capabilities that no accelerator has, or that a framework of the run has, and
        without other names.
        """
        asked = set(wanted).difference(*(s.gives for s in self._known if not s.is_accelerator))
        asked &= frozenset().union(*(s.gives for s in known_sources().values() if s.is_accelerator))
        gaps = {
            source.name: [
                each for name, each in CAPABILITIES.items() if name in asked - source.gives
            ]
            for source in self._known
            if source.is_accelerator
        }
        return {source: found for source, found in gaps.items() if found}
