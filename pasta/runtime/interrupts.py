"""How a Python program that PASTA joined ends after a KeyboardInterrupt: by SIGINT, as without us.

CPython notes an unhandled KeyboardInterrupt in a variable of the process, and `exec` and `eval`
of text clear it, on whatever thread. Importing dataclasses and named tuples on ours does just
that, and the program would end with status 1 (`run_eval_code_obj`, `Py_RunMain` of CPython).
"""

from __future__ import annotations

import contextlib
import sys


def restore() -> None:
    """Notes the interrupt again; for `atexit`, after which no code of ours runs.

    An interactive program goes on after an interrupt, and ends in another way.
    """
    if getattr(sys, "last_type", None) is KeyboardInterrupt and not hasattr(sys, "ps1"):
        with contextlib.suppress(KeyboardInterrupt):
            exec("raise KeyboardInterrupt")
