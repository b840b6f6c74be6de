"""Clock information of this host, for time lines of several hosts."""

from __future__ import annotations

import ctypes
from typing import Any

from pasta.runtime.processes import boot_id

_UNSYNCHRONIZED = 0x40  # STA_UNSYNC


class _Timex(ctypes.Structure):
    """`struct timex` (sys/timex.h, x86-64) up to the last field used."""

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
    """`boot`: boot id, equal for processes with the same CLOCK_MONOTONIC; `error_ns`: maximum error
    of real time, from the kernel (adjtimex). None if unknown."""
    return {"boot": boot_id() or None, "error_ns": _error()}


def _error() -> int | None:
    timex = _Timex(modes=0)  # read only
    try:
        state = ctypes.CDLL(None).adjtimex(ctypes.byref(timex))
    except (OSError, AttributeError):
        return None
    if state < 0 or timex.status & _UNSYNCHRONIZED:
        return None
    return int(timex.maxerror) * 1000
