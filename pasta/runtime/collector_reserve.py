"""A collector process that imports its modules in advance, and waits for rings.

Nine tenths of the time of a run with few events are imports. The launcher starts this process while
the program runs (pasta.runtime.reserve). The imports run on a thread of the lowest priority, so
that they do not take time from a program that uses all processors.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from typing import NoReturn

from pasta.own_python import lowest_priority


def _import_modules() -> None:
    lowest_priority()
    from pasta.runtime import collector_process

    collector_process.import_slow_modules()


def main() -> NoReturn:
    """Read a collector's arguments (a line of JSON) from standard input and collect. At the end of
    standard input the process ends immediately."""
    importing = threading.Thread(target=_import_modules, daemon=True)
    importing.start()
    line = sys.stdin.readline()
    if not line:
        os._exit(0)
    importing.join()
    from pasta.runtime import collector_process

    sys.argv[1:] = json.loads(line)
    collector_process.main()


if __name__ == "__main__":
    main()
