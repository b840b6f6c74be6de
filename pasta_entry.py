"""Entry points of the commands, outside of the package `pasta`: google-pasta installs a package of
the same name, which must not be imported.

shim/command.c calls them in a Python started with -I, so that PYTHON* variables and the current
directory do not affect imports.
"""

from __future__ import annotations

import gc
import os
import sys
from importlib.util import find_spec
from pathlib import Path

_MARK = "pasta-profiler"
_INTERRUPTED = 130
_APART = (
    "install PASTA in an environment of its own (pipx install . in its checkout); "
    "it profiles programs of any other environment from there"
)


def _foreign_pasta() -> str | None:
    """Error message if the package `pasta` on the path is not PASTA's, otherwise None."""
    spec = find_spec("pasta")
    origin = spec.origin if spec else None
    if origin is None:
        return "PASTA is not completely installed: pip install --force-reinstall pasta-profiler"
    with open(origin, encoding="utf-8", errors="replace") as source:
        if _MARK in source.read(500):
            return None
    google = any(Path(origin).parent.parent.glob("google_pasta-*.dist-info"))
    owner = "google-pasta (TensorFlow brings it)" if google else "another project"
    return f"{origin} belongs to {owner} and takes PASTA's import name: {_APART}"


def _refuse_foreign() -> None:
    message = _foreign_pasta()
    if message:
        sys.exit(f"pasta: {message}")


def _forget_numba() -> None:
    """Remove settings of Numba, which are for the user's programs: NUMBA_DISABLE_JIT would break
    PASTA."""
    for name in [name for name in os.environ if name.startswith("NUMBA_")]:
        del os.environ[name]


def pasta() -> None:
    """The command `pasta`; exits with its status."""
    _refuse_foreign()
    _forget_numba()
    try:
        from pasta.cli.main import main

        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)


def pasta_preload() -> None:
    """The command `pasta-preload`; exits with the status of the program."""
    _refuse_foreign()
    gc.disable()  # what imports create lives on; `main` enables it once the program has started
    try:
        from pasta.cli.preload import main

        status = main()
    except KeyboardInterrupt:
        status = _INTERRUPTED
    # Skip the interpreter's shutdown, which would add 10 ms to every profiled program.
    os._exit(status)


def pasta_python() -> None:
    """Prints the path of the Python that PASTA is installed in."""
    print(sys.executable)
