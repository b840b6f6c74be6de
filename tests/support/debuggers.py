"""Debuggers that can call functions of a program on this machine."""

from __future__ import annotations

import functools
import shutil
import subprocess

import pytest

from pasta.runtime.debugger import REGISTERS_UNKNOWN

DEBUGGERS = [name for name in ("gdb", "lldb") if shutil.which(name)]
_CALL = ("-ex", "print ((int (*)(void))getpid)()")


@functools.cache
def why_not() -> str:
    """Why none can; empty if one can."""
    if not DEBUGGERS:
        return "neither gdb nor lldb is installed"
    if "gdb" not in DEBUGGERS:
        return ""
    program = subprocess.Popen(["sleep", "100"])
    try:
        command = ["gdb", "--nx", "--nh", "--batch", "-p", str(program.pid), *_CALL]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    finally:
        program.kill()
        program.wait()
    refused = REGISTERS_UNKNOWN in done.stderr
    return f"gdb cannot call functions here: {REGISTERS_UNKNOWN}" if refused else ""


@pytest.fixture
def debugger() -> None:
    """Skips a test for which no debugger can be used."""
    if reason := why_not():
        pytest.skip(reason)
