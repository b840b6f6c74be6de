"""Texts of instructions on disk: a file for each module, by the hash of its content.

A line of JSON, the instructions' words, the pattern of each, and compressed the register fields and
texts of the patterns (pasta.sass.patterns). Files of another version of
nvdisasm or of this format are ignored and rewritten. Only the texts are stored, not data derived
from them, so that a newer PASTA can use old files.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Final

from pasta.lazy import np
from pasta.sass.patterns import Listing

_FORMAT: Final = 3


def path_of(directory: Path, image: bytes) -> Path:
    """The file of a module."""
    return directory / f"{hashlib.sha256(image).hexdigest()}.sass"


def load(path: Path, nvdisasm: str) -> Listing | None:
    """What is cached; None if there is nothing of this format and version of nvdisasm.

    With an empty `nvdisasm`, of any version.
    """
    try:
        with open(path, "rb") as file:
            header = json.loads(file.readline(1 << 12))
            if header["format"] != _FORMAT or nvdisasm not in ("", header["nvdisasm"]):
                return None
            count, patterns = int(header["instructions"]), int(header["patterns"])
            words = np.frombuffer(file.read(16 * count), "<u8").reshape(count, 2)
            pattern = np.frombuffer(file.read(4 * count), "<i4")
            body = zlib.decompress(file.read())
            fields = np.frombuffer(body, np.uint8, patterns)
            texts = body[patterns:].decode("utf-8").split("\n")
    except (OSError, ValueError, KeyError, TypeError, zlib.error):
        return None
    found = Listing(words, pattern, texts, fields)
    return found if _is_valid(found, count, patterns) else None


def _is_valid(found: Listing, count: int, patterns: int) -> bool:
    return (
        len(found.pattern) == count
        and len(found.fields) == len(found.texts) == patterns
        and bool(((found.pattern >= 0) & (found.pattern < patterns)).all())
    )


def store(path: Path, nvdisasm: str, content: Listing) -> None:
    """Write the cached texts of a module atomically: another process may read them at any time.
    Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    header = {
        "format": _FORMAT,
        "nvdisasm": nvdisasm,
        "instructions": len(content.pattern),
        "patterns": len(content.texts),
    }
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".sass-", delete=False) as file:
        try:
            file.write(json.dumps(header).encode() + b"\n")
            file.write(np.ascontiguousarray(content.words, "<u8").tobytes())
            file.write(np.ascontiguousarray(content.pattern, "<i4").tobytes())
            texts = "\n".join(content.texts).encode()
            file.write(zlib.compress(content.fields.tobytes() + texts, 1))
            file.close()
            os.replace(file.name, path)
        except BaseException:
            with suppress(OSError):
                os.unlink(file.name)
            raise
