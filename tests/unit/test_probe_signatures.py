"""Arguments of patches against the vendor's headers: every kind and version."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pasta.backends.nvidia.signatures import VERSIONS, signatures
from pasta.errors import PastaError
from pasta.probes.kinds import KIND
from tests.support.nvidia_headers import headers

#: Kind -> its instructions and their callbacks; ours are in this order.
CALLBACKS = {
    "block_enter": [("BLOCK_ENTER", "BlockEnter")],
    "block_exit": [("BLOCK_EXIT", "BlockExit")],
    "global": [("GLOBAL_MEMORY_ACCESS", "MemoryAccess")],
    "shared": [("SHARED_MEMORY_ACCESS", "MemoryAccess")],
    "local": [("LOCAL_MEMORY_ACCESS", "MemoryAccess")],
    "barrier": [("BARRIER", "Barrier")],
    "call": [("CALL", "Call")],
    "async_copy": [("MEMCPY_ASYNC", "MemcpyAsync")],
    "remote_shared": [("REMOTE_SHARED_MEMORY_ACCESS", "MemoryAccess")],
    "matrix": [("MATRIX_MEMORY_ACCESS", "MatrixMemoryAccess")],
    "bulk_load": [("BULK_COPY_GLOBAL_TO_SHARED", "BulkCopyGlobalToShared")],
    "bulk_store": [("BULK_COPY_SHARED_TO_GLOBAL", "BulkCopySharedToGlobal")],
    "bulk_reduction": [("BULK_REDUCTION_SHARED_TO_GLOBAL", "BulkReductionSharedToGlobal")],
    "bulk_shared": [
        ("BULK_COPY_SHARED_TO_SHARED", "BulkCopySharedToShared"),
        ("BULK_REDUCTION_SHARED_TO_SHARED", "BulkReductionSharedToShared"),
    ],
    "async_store": [("ASYNC_STORE", "AsyncStore"), ("ASYNC_REDUCTION", "AsyncReduction")],
    "tensor_load": [("TMA_LOAD", "TensorMemoryLoad")],
}
TYPES = {"uint64_t": "u64", "uint32_t": "u32", "int32_t": "i32", "int": "i32"}
HEADERS = headers("sanitizer_patching.h")


def typed(parameter: str) -> str:
    """The type of a parameter in our notation."""
    text = re.sub(r"\bconst\b", "", parameter).strip()
    if "*" in text or "[" in text:
        return "u64"
    return TYPES.get(text.split()[0], "u32")  # enumerations are 32 bits wide


class Header:
    """Instructions and callbacks of one vendor header."""

    def __init__(self, path: Path) -> None:
        text = re.sub(r"/\*.*?\*/|//[^\n]*|\\\n", "", path.read_text(), flags=re.DOTALL)
        self.ids = {
            name: int(number)
            for name, number in re.findall(r"SANITIZER_INSTRUCTION_(\w+)\s*=\s*(\d+)", text)
        }
        callback = (
            r"typedef\s+SanitizerPatchResult\s*\(\s*SANITIZERAPI\s*\*\s*SanitizerCallback(\w+)\)"
            r"\s*\(([^)]*)\)"
        )
        self.callbacks = {
            name: [typed(each) for each in arguments.split(",")]
            for name, arguments in re.findall(callback, text)
        }

    def of(self, kind: str) -> list[tuple[int, list[str]]]:
        """Instructions of a kind, and the types of the parameters after `user` and `pc`."""
        return [
            (self.ids[name], self.callbacks[callback][2:])
            for name, callback in CALLBACKS[kind]
            if name in self.ids
        ]


def ours(version: str) -> dict[str, list[tuple[int, list[str]]]]:
    return {
        kind: [
            (each.instruction, [type for _, type in each.arguments])
            for each in signatures(kind, version)
        ]
        for kind in CALLBACKS
    }


def test_every_kind_is_checked() -> None:
    assert {kind for kind in KIND if signatures(kind, VERSIONS[-1])} == set(CALLBACKS)


@pytest.mark.skipif(not HEADERS, reason="no sanitizer_patching.h: pip install the dev extra")
@pytest.mark.parametrize("directory", HEADERS, ids=str)
def test_signatures_match_the_vendors_headers(directory: Path) -> None:
    """A header does not contain its version: it must match a known one in all kinds."""
    header = Header(directory / "sanitizer_patching.h")
    if "BULK_COPY_SHARED_TO_GLOBAL" not in header.ids:
        pytest.skip("older than 12.9: refused, whatever its patches are called with")
    theirs = {kind: header.of(kind) for kind in CALLBACKS}
    versions = [ours(version) for version in VERSIONS]
    assert theirs in versions, [
        (kind, found, versions[-1][kind])
        for kind, found in theirs.items()
        if all(found != version[kind] for version in versions)
    ]


def test_unknown_version_is_rejected() -> None:
    with pytest.raises(PastaError, match=r"do not support version 14\.0") as raised:
        signatures("global", "14.0")
    assert "nvidia-cuda-sanitizer-api" in str(raised.value)
