"""The process that joins two passes: a request in JSON as its argument, the answer on stdout."""

from __future__ import annotations

import io
import json
import sys
import traceback
from pathlib import Path
from typing import Any

from pasta import private
from pasta.errors import PastaError
from pasta.progress import display_progress
from pasta.run.directory import RunDirectory
from pasta.run.passes import join_all
from pasta.runtime.rejoin import rejoin
from pasta.table import plain

#: Columns of the prefix "pasta: " of every line on the terminal.
_PREFIX_COLUMNS = 7


def joined(request: dict[str, Any]) -> dict[str, Any]:
    """Joins the runs of two passes; what `Joining` has."""
    from pasta.report.text import write_text_report

    times, accesses = (
        [RunDirectory(Path(path)) for path in request[name]] for name in ("times", "accesses")
    )
    try:
        with display_progress("joining the passes", quiet=request["quiet"]):
            whole = Path(request["whole"])
            runs, lines = join_all(times, accesses, whole, write_text_report, rejoin)
    except PastaError as error:
        return {"lines": [f"the passes are not joined: {error}"], "runs": [], "report": ""}
    alone = runs[0] if len(runs) == 1 else None
    report = _report(alone, request["width"]) if alone and not request["quiet"] else ""
    return {"lines": lines, "runs": [str(run.path) for run in runs], "report": report}


def _report(run: RunDirectory, width: int | None) -> str:
    if width is None:
        return run.report.read_text(encoding="utf-8")
    from rich.console import Console

    from pasta.report.text import print_report

    text = io.StringIO()
    columns = max(20, width - _PREFIX_COLUMNS)
    print_report(run, Console(file=text, width=columns, force_terminal=True, emoji=False))
    return text.getvalue()


def main() -> int:
    """Entry point; the exit status."""
    private.set_umask()
    try:
        answer = joined(json.loads(sys.argv[1]))
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        why = f"{type(error).__name__}: {error} in {place.name}"
        answer = {"lines": [f"the passes are not joined: {plain(why)}"], "runs": [], "report": ""}
    print(json.dumps(answer))
    return 0
