"""Placement of counts on devices, as requested by maps and implemented by backends.

A map declares it once (`MapSpec.placement`); its memory layout, and the code that adds to it and
reads it back, belong to the backend. A backend rejects maps with unsupported placements.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Placement:
    """Base of placements."""


@dataclass(frozen=True)
class PerLaunch(Placement):
    """Sums of each launch, by the map's index if it has one. `contended`: many warps add to the
    same sum concurrently."""

    contended: bool = True


@dataclass(frozen=True)
class PerObject(Placement):
    """Sums for each object that a launch touches."""


@dataclass(frozen=True)
class PerPc(Placement):
    """Sums of the run for each instruction, and by the map's other index if it has one."""


@dataclass(frozen=True)
class PerLaunchPc(Placement):
    """Sums of each launch for at most `pcs` instructions, and by the map's other index if it has
    one; and the sum of all others."""

    pcs: int


@dataclass(frozen=True)
class PerPair(Placement):
    """Sums of each launch for at most `pairs` pairs of an object and an instruction, and the sum of
    all others."""

    pairs: int


@dataclass(frozen=True)
class PerKey(Placement):
    """A sum of the run for each of `capacity` keys, and one for all other keys."""

    capacity: int


@dataclass(frozen=True)
class PerBin(Placement):
    """Sums of the run for each bin of `bytes` bytes of the objects."""

    bytes: int


@dataclass(frozen=True)
class PerGranule(Placement):
    """A bit for each granule of `bytes` bytes of the objects, by launch or of the run."""

    bytes: int
    by_object: bool
    by_launch: bool


@dataclass(frozen=True)
class PerAddress(Placement):
    """A value of the run for each of `capacity` granules of `bytes` bytes of the address space,
    which probes exchange; accesses to further granules are counted as lost."""

    capacity: int
    bytes: int


@dataclass(frozen=True)
class Recorded(Placement):
    """No counts on the device: it writes the accesses as records, which the host counts."""
