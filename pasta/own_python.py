"""Python processes of PASTA: their command, environment and priority."""

from __future__ import annotations

import _thread  # a thread of PASTA must not be the first to import `threading`
import json
import os
import sys
from collections.abc import Mapping
from contextlib import suppress

from pasta import paths

#: Imports PASTA from its installation and other modules as an isolated Python finds them, so that
#: the program's path cannot shadow modules. An installation that relies on PYTHONPATH, as with
#: environment modules on clusters, needs this process's path, in its order.
_ISOLATED = """
import json, sys
from importlib.util import find_spec
own, others = json.loads(sys.argv.pop(1))
sys.path.insert(0, own)
import pasta
del sys.path[0]
if not all(map(find_spec, ("numpy", "pyarrow", "cffi"))):
    sys.path[:] = others
sys.path += [path for path in (own, *others) if path not in sys.path]
"""


def own_python(module: str) -> list[str]:
    """Command that runs `main()` of a module in this Python and installation, independent of the
    environment and the current directory; append its arguments."""
    code = f"{_ISOLATED}from {module} import main; sys.exit(main())"
    path = json.dumps([str(paths.PACKAGE.parent), paths.module_path()])
    return [sys.executable, "-I", "-u", "-c", code, path]


#: Prefixes of variables that configure the program's Python and its Numba.
_PROGRAM_PREFIXES = ("PYTHON", "NUMBA_")


def own_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """An environment without the variables for the program's Python."""
    return {
        name: value for name, value in environment.items() if not name.startswith(_PROGRAM_PREFIXES)
    }


def lowest_priority() -> None:
    """Let this thread, and processes and threads that it starts, use only time of processors that
    the program leaves. A thread cannot raise its priority again."""
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, _thread.get_native_id(), 19)
