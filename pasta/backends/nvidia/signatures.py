"""Arguments that NVIDIA's Sanitizer library passes to patches, by kind of access and version.

From sanitizer_patching.h of the wheels 12.9 to 13.5. Other versions are rejected: their arguments
may differ.
"""

from __future__ import annotations

from dataclasses import dataclass

from pasta.errors import PastaError


class ApiError(PastaError):
    """The arguments of patches are unknown for this version of the Sanitizer library."""


@dataclass(frozen=True)
class Signature:
    """Instruction id, and the arguments after `user` and `pc`: name and type."""

    instruction: int
    arguments: tuple[tuple[str, str], ...]


def _signature(instruction: int, text: str) -> Signature:
    pairs = [item.split() for item in text.split(",")] if text else []
    return Signature(instruction, tuple((name, kind) for kind, name in pairs))


#: Versions in order, and signatures of a kind, each with the first version that has it.
VERSIONS = ("12.9", "13.0", "13.1", "13.2", "13.3", "13.4", "13.5")
_TENSOR = (
    "u64 map, u32 shared, u32 barrier, i32 c0, i32 c1, i32 c2, i32 c3, i32 c4, "
    "u32 dim, u32 multicast, u32 offsets, u32 mode"
)
_MEMORY = "u64 address, u32 size, u32 flags, u64 data"
_SINCE: dict[str, tuple[tuple[str, Signature], ...]] = {
    "block_enter": (("12.9", _signature(1, "")),),
    "block_exit": (("12.9", _signature(2, "")),),
    "global": (("12.9", _signature(3, _MEMORY)),),
    "shared": (("12.9", _signature(4, _MEMORY)),),
    "local": (("12.9", _signature(5, _MEMORY)),),
    "barrier": (("12.9", _signature(6, "u32 index, u32 threads, u32 flags")),),
    "call": (("12.9", _signature(9, "u64 address, u32 flags")),),
    "async_copy": (
        ("12.9", _signature(14, "u64 address, u32 shared, u32 size")),
        ("13.5", _signature(14, "u64 address, u32 shared, u32 size, u32 filled")),
    ),
    "remote_shared": (("12.9", _signature(17, _MEMORY)),),
    "matrix": (("12.9", _signature(19, "u32 address, u32 size, u32 flags, u32 count, u64 data")),),
    "bulk_load": (
        ("12.9", _signature(30, "u64 address, u32 shared, u32 barrier, u32 blocks, u32 multicast")),
    ),
    "bulk_store": (
        ("12.9", _signature(35, "u64 address, u32 shared, u32 blocks")),
        ("13.3", _signature(35, "u64 address, u32 shared, u32 blocks, u32 masked")),
    ),
    "bulk_reduction": (("12.9", _signature(37, "u64 address, u32 shared, u32 blocks")),),
    "bulk_shared": (("12.9", _signature(36, "u32 shared, u32 address, u32 barrier, u32 blocks")),),
    "async_store": (("12.9", _signature(26, "u32 address, u32 barrier, u64 data, u32 size")),),
    # Its counterpart for stores, 44, is in the headers since 13.3 too, without a signature, and is
    # never called (13.5 on driver 580.159): tensor_store cannot be seen.
    "tensor_load": (("13.3", _signature(43, _TENSOR)),),
}
#: A second instruction of the same kind: st.async and red.async, bulk copies and reductions.
_ALSO: dict[str, tuple[tuple[str, Signature], ...]] = {
    "async_store": (("12.9", _signature(27, "u32 address, u32 barrier, u32 size")),),
    "bulk_shared": (("12.9", _signature(38, "u32 shared, u32 address, u32 barrier, u32 blocks")),),
}


def signatures(kind: str, version: str) -> tuple[Signature, ...]:
    """Signatures of a kind; none if this version does not report it. Raises ApiError."""
    if version not in VERSIONS:
        raise ApiError(
            f"probes do not support version {version} of NVIDIA's Sanitizer library",
            remedy=f"install one of {', '.join(VERSIONS)}: "
            f"pip install 'nvidia-cuda-sanitizer-api=={VERSIONS[-1]}.*'",
        )
    found = []
    for table in (_SINCE, _ALSO):
        latest = None
        for since, signature in table.get(kind, ()):
            if VERSIONS.index(since) <= VERSIONS.index(version):
                latest = signature
        if latest is not None:
            found.append(latest)
    return tuple(found)
