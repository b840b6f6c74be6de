"""Source lines and inlined calls of native code, by elfutils' libdw (0.170 or newer), loaded at run
time.

Only files of this machine are read: libdw is never asked for a file of a server (debuginfod).
"""

from __future__ import annotations

import ctypes
import os
from ctypes import POINTER, byref, c_bool, c_char_p, c_int, c_uint, c_uint64, c_void_p
from functools import cache
from pathlib import Path
from typing import Any, Final

_LIBRARY: Final = "libdw.so.1"
_INLINED: Final = 0x1D  # DW_TAG_inlined_subroutine
_SUBPROGRAM: Final = 0x2E
_CALL_LINE, _CALL_FILE, _LINKAGE_NAME = 0x59, 0x58, 0x6E
_MAX_INLINED: Final = 32


class _Die(ctypes.Structure):
    _fields_ = [
        ("address", c_void_p),
        ("unit", c_void_p),
        ("abbreviation", c_void_p),
        ("pad", c_uint64),
    ]


class _Attribute(ctypes.Structure):
    _fields_ = [("code", c_uint), ("form", c_uint), ("value", c_void_p), ("unit", c_void_p)]


class _Callbacks(ctypes.Structure):
    _fields_ = [
        (name, c_void_p)
        for name in ("find_elf", "find_debuginfo", "section_address", "debuginfo_path")
    ]


#: Functions that return other than int, and their parameters.
_FUNCTIONS: Final[dict[str, tuple[Any, tuple[Any, ...]]]] = {
    "dwfl_begin": (c_void_p, (c_void_p,)),
    "dwfl_end": (None, (c_void_p,)),
    "dwfl_report_elf": (c_void_p, (c_void_p, c_char_p, c_char_p, c_int, c_uint64, c_bool)),
    "dwfl_report_end": (c_int, (c_void_p, c_void_p, c_void_p)),
    "dwfl_module_getsrc": (c_void_p, (c_void_p, c_uint64)),
    "dwfl_lineinfo": (c_char_p, (c_void_p, c_void_p, POINTER(c_int), c_void_p, c_void_p, c_void_p)),
    "dwfl_module_addrdie": (c_void_p, (c_void_p, c_uint64, POINTER(c_uint64))),
    "dwarf_getscopes": (c_int, (c_void_p, c_uint64, POINTER(POINTER(_Die)))),
    "dwarf_getscopes_die": (c_int, (c_void_p, POINTER(POINTER(_Die)))),
    "dwarf_tag": (c_int, (c_void_p,)),
    "dwarf_diename": (c_char_p, (c_void_p,)),
    "dwarf_attr": (c_void_p, (c_void_p, c_uint, c_void_p)),
    "dwarf_attr_integrate": (c_void_p, (c_void_p, c_uint, c_void_p)),
    "dwarf_formudata": (c_int, (c_void_p, POINTER(c_uint64))),
    "dwarf_formstring": (c_char_p, (c_void_p,)),
    "dwarf_getsrcfiles": (c_int, (c_void_p, POINTER(c_void_p), POINTER(ctypes.c_size_t))),
    "dwarf_filesrc": (c_char_p, (c_void_p, ctypes.c_size_t, c_void_p, c_void_p)),
}


@cache
def _free() -> Any:
    return ctypes.CDLL(None).free


@cache
def _libdw() -> Any:
    """libdw with the types of its functions; None if it is not installed."""
    try:
        library = ctypes.CDLL(_LIBRARY)
        for name, (result, parameters) in _FUNCTIONS.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, parameters
        _free().argtypes = [c_void_p]
    except (OSError, AttributeError):
        return None
    return library


def is_available() -> bool:
    """Whether libdw is installed."""
    return _libdw() is not None


class DebugLines:
    """Lines of a file; empty without debug information, or without libdw."""

    def __init__(self, path: Path) -> None:
        self._libdw, self._session, self._module = _libdw(), None, None
        if self._libdw is None:
            return
        dw = self._libdw
        self._callbacks = _Callbacks(
            *(
                ctypes.cast(getattr(dw, name), c_void_p)
                for name in (
                    "dwfl_build_id_find_elf",
                    "dwfl_build_id_find_debuginfo",
                    "dwfl_offline_section_address",
                )
            ),
            None,
        )
        self._session = dw.dwfl_begin(byref(self._callbacks))
        if self._session:
            self._module = dw.dwfl_report_elf(self._session, b"", os.fsencode(path), -1, 0, True)
            dw.dwfl_report_end(self._session, None, None)

    def __del__(self) -> None:
        if self._session:
            self._libdw.dwfl_end(self._session)

    def at(self, address: int) -> list[tuple[str, str, int]]:
        """Function, file and line at an address, the innermost inlined call first; empty if
        unknown."""
        if not self._module:
            return []
        dw, line = self._libdw, c_int(0)
        found = dw.dwfl_module_getsrc(self._module, address)
        name = dw.dwfl_lineinfo(found, None, byref(line), None, None, None) if found else None
        if not name:
            return []
        places, file = [], os.fsdecode(name)
        for function, call_file, call_line in self._inlined(address):
            places.append((function, file, max(0, line.value)))
            file, line = call_file or file, c_int(call_line)
        return [*places, (self._subprogram, file, max(0, line.value))]

    def _inlined(self, address: int) -> list[tuple[str, str, int]]:
        """Inlined functions at an address, innermost first: name, and file and line of the call."""
        dw, bias = self._libdw, c_uint64(0)
        self._subprogram = ""
        unit = dw.dwfl_module_addrdie(self._module, address, byref(bias))
        lexical, scopes = POINTER(_Die)(), POINTER(_Die)()
        # those around an inlined function are of its definition: its calls are the parents in the
        # tree
        count = dw.dwarf_getscopes(unit, address - bias.value, byref(lexical)) if unit else 0
        if count > 0:
            count = dw.dwarf_getscopes_die(byref(lexical[0]), byref(scopes))
            _free()(lexical)
        found: list[tuple[str, str, int]] = []
        for number in range(max(0, count)):
            die = byref(scopes[number])
            tag = dw.dwarf_tag(die)
            if tag == _INLINED and len(found) < _MAX_INLINED:
                place = (
                    self._file(unit, self._number(die, _CALL_FILE)),
                    self._number(die, _CALL_LINE),
                )
                found.append((self._name(die), *place))
            elif tag == _SUBPROGRAM:
                self._subprogram = self._name(die)
                break
        if count > 0:
            _free()(scopes)
        return found

    def _name(self, die: Any) -> str:
        dw, attribute = self._libdw, _Attribute()
        found = dw.dwarf_attr_integrate(die, _LINKAGE_NAME, byref(attribute))
        name = dw.dwarf_formstring(byref(attribute)) if found else dw.dwarf_diename(die)
        return (name or b"").decode("utf-8", "replace")

    def _number(self, die: Any, code: int) -> int:
        attribute, value = _Attribute(), c_uint64(0)
        if not self._libdw.dwarf_attr(die, code, byref(attribute)):
            return 0
        failed = self._libdw.dwarf_formudata(byref(attribute), byref(value))
        return 0 if failed else value.value

    def _file(self, unit: int, number: int) -> str:
        files, count = c_void_p(), ctypes.c_size_t()
        if self._libdw.dwarf_getsrcfiles(unit, byref(files), byref(count)) or number >= count.value:
            return ""
        name = self._libdw.dwarf_filesrc(files, number, None, None)
        return os.fsdecode(name) if name else ""
