"""Other versions of Python on this machine."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path


@cache
def other_pythons() -> list[str]:
    """Interpreters of other versions: on PATH (also behind version managers' shims), or pyenv's."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    found: dict[tuple[int, ...], str] = {}
    for minor in range(6, 20):
        name = f"python3.{minor}"
        path = next(map(str, pyenv.glob(f"3.{minor}.*/bin/{name}")), None) or shutil.which(name)
        if not path or minor == sys.version_info.minor:
            continue
        done = subprocess.run(
            [path, "-c", "import ctypes, sys; print(sys.executable)"],
            capture_output=True,
            text=True,
        )
        if done.returncode == 0:
            found[3, minor] = done.stdout.strip()
    return [found[version] for version in sorted(found)]
