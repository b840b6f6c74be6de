"""What this host says of its clocks, for time lines of several hosts."""

from __future__ import annotations

import ctypes
from typing import Any

from pasta.runtime.processes import boot_id

_UNSYNCHRONIZED = 0x40  # STA_UNSYNC


class _Timex(ctypes.Structure):
    """`struct timex` (sys/timex.h, x86-64) up to the fields that are read."""

    _fields_ = [
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_char * 256),
    ]


def host_clock() -> dict[str, Any]:
    """`boot`: processes with the same one have the same CLOCK_MONOTONIC; `error_ns`: how far real
    time may be off, as the kernel was told by who synchronizes it. None is unknown."""
    return {"boot": boot_id() or None, "error_ns": _error()}


def _error() -> int | None:
    told = _Timex(modes=0)  # changes nothing
    try:
        state = ctypes.CDLL(None).adjtimex(ctypes.byref(told))
    except (OSError, AttributeError):
        return None
    if state < 0 or told.status & _UNSYNCHRONIZED:
        return None
    return int(told.maxerror) * 1000
