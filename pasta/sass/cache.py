"""Texts of instructions on disk: a file for each module, by the hash of its content.

A line of JSON, the instructions' words, and their texts, compressed. Files of another version of
nvdisasm or of this format are ignored and rewritten. Only the texts are stored, not data derived
from them, so that a newer PASTA can use old files.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import zlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from pasta.lazy import np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_FORMAT: Final = 2


class Texts(NamedTuple):
    """Distinct instructions, (n, 2) uint64 without control bits, and their texts."""

    words: NDArray[np.uint64]
    texts: Sequence[str]


def path_of(directory: Path, image: bytes) -> Path:
    """The file of a module."""
    return directory / f"{hashlib.sha256(image).hexdigest()}.sass"


def load(path: Path, nvdisasm: str) -> Texts | None:
    """What is cached; None if there is nothing of this format and version of nvdisasm.

    With an empty `nvdisasm`, of any version.
    """
    try:
        with open(path, "rb") as file:
            header = json.loads(file.readline(1 << 12))
            if header["format"] != _FORMAT or nvdisasm not in ("", header["nvdisasm"]):
                return None
            count = int(header["instructions"])
            words = np.frombuffer(file.read(16 * count), "<u8").reshape(count, 2)
            texts = zlib.decompress(file.read()).decode("utf-8").split("\n")
    except (OSError, ValueError, KeyError, TypeError, zlib.error):
        return None
    return Texts(words, texts) if len(texts) == count else None


def store(path: Path, nvdisasm: str, content: Texts) -> None:
    """Write the cached texts of a module atomically: another process may read them at any time.
    Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    header = {"format": _FORMAT, "nvdisasm": nvdisasm, "instructions": len(content.texts)}
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".sass-", delete=False) as file:
        try:
            file.write(json.dumps(header).encode() + b"\n")
            file.write(np.ascontiguousarray(content.words, "<u8").tobytes())
            file.write(zlib.compress("\n".join(content.texts).encode(), 1))
            file.close()
            os.replace(file.name, path)
        except BaseException:
            with suppress(OSError):
                os.unlink(file.name)
            raise
