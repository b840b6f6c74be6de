"""The boundary to native code: cffi's view of the ring, and where the built libraries are."""

from __future__ import annotations

from pathlib import Path

from pasta._native._ring import ffi, lib

__all__ = ["DIRECTORY", "ffi", "lib"]

#: Holds libpasta.so, librefacc.so, include/ and bin/ (the demonstration programs).
DIRECTORY = Path(__file__).resolve().parent
