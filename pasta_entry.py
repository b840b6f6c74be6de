"""Console scripts, outside the package `pasta`: google-pasta installs a package of that name too,
and nothing may be imported before it is certain that ours would be."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec

_MARK = "pasta-profiler"


def _foreign_pasta() -> str | None:
    """Where another project's `pasta` shadows ours, or None."""
    spec = find_spec("pasta")
    origin = spec.origin if spec else None
    if origin is None:
        return "PASTA is not completely installed: pip install --force-reinstall pasta-profiler"
    with open(origin, encoding="utf-8", errors="replace") as source:
        if _MARK in source.read(500):
            return None
    return (
        f"{origin} belongs to google-pasta (TensorFlow brings it), "
        "which takes PASTA's import name: "
        "install PASTA in an environment of its own (pipx install pasta-profiler); "
        "it profiles programs of any other environment from there"
    )


def _refuse_foreign() -> None:
    message = _foreign_pasta()
    if message:
        sys.exit(f"pasta: {message}")


def pasta() -> None:
    _refuse_foreign()
    from pasta.cli.main import main

    sys.exit(main())


def pasta_preload() -> None:
    _refuse_foreign()
    from pasta.cli.preload import main

    status = main()
    # Nothing is left to do, and taking the interpreter apart takes 10 ms of every program's time.
    os._exit(status)
