"""Makes a profiled Python program end by SIGINT after a KeyboardInterrupt, as without PASTA.

CPython records an unhandled KeyboardInterrupt in a process-wide variable, which `exec` and `eval`
of text on any thread clear. Importing dataclasses and named tuples on PASTA's thread does so, and
the program would exit with 1 (`run_eval_code_obj`, `Py_RunMain` of CPython).
"""

from __future__ import annotations

import contextlib
import sys


def restore() -> None:
    """Records the interrupt again; for `atexit`, after which no code of PASTA runs.

    Does nothing in interactive programs, which continue after an interrupt.
    """
    if getattr(sys, "last_type", None) is KeyboardInterrupt and not hasattr(sys, "ps1"):
        with contextlib.suppress(KeyboardInterrupt):
            exec("raise KeyboardInterrupt")
