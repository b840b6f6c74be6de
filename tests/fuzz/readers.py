"""All readers of runs, and checks of what they must not do."""

from __future__ import annotations

import contextlib
import io
import os
import re
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pasta.testing import Events
from tests.fuzz.hostile import OUTSIDE

#: Seconds after which a reader is considered hanging.
LIMIT = 20
#: Terminal control characters and bidirectional overrides: never printed from a run.
_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


@dataclass(frozen=True)
class Failure:
    """A reader's forbidden behaviour; `kind` is a column of the campaign's table."""

    kind: str
    detail: str


@dataclass(frozen=True)
class Scene:
    """A directory with a run, a good one, a root of both, and a place for output."""

    directory: Path

    @property
    def run(self) -> Path:
        return self.directory / "root" / "run"

    @property
    def good(self) -> Path:
        return self.directory / "root" / "good"

    @property
    def out(self) -> Path:
        return self.directory / "out"


def _report(*options: str) -> Callable[[Scene], list[str]]:
    def arguments(scene: Scene) -> list[str]:
        return ["report", str(scene.run), *(each.format(out=scene.out) for each in options)]

    return arguments


TOOLS = ("kernel_freq", "copies", "memory_timeline", "operators", "tensors", "event_trace")


def _replay(scene: Scene) -> list[str]:
    tools = [word for tool in TOOLS for word in ("-t", tool)]
    return ["replay", str(scene.run), *tools, "-o", str(scene.out / "replay")]


def _accesses(scene: Scene) -> list[str]:
    return ["replay", str(scene.run), "-t", "access_count", "-o", str(scene.out / "replay")]


def _passes(scene: Scene) -> list[str]:
    """Joins the run with a pass in which the launches of the schemas' runs have times."""
    from tests.support.passes import manifested
    from tests.support.runs import recorded
    from tests.support.streams import KERNELS, STEPS

    events = Events()
    for step in range(STEPS):
        for number, kernel in enumerate(KERNELS):
            ordinal = events.launch(kernel, grid=(step + 1, number + 1, 1), flags=0)
            events.complete(ordinal, 100, 200)
    times = manifested(recorded(events, scene.out / "times"))
    return ["merge", "--passes", str(scene.run), str(times.path), "-o", str(scene.out / "joined")]


#: Arguments of `pasta` by reader.
VERBS: dict[str, Callable[[Scene], list[str]]] = {
    "report": _report(),
    "report -n": _report("-n", "100000"),
    "report --html": _report("--html", "{out}/x.html"),
    "report --markdown": _report("--markdown", "{out}/x.md"),
    "report --json": _report("--json", "{out}/x.json"),
    "report --csv": _report("--csv", "{out}/csv"),
    "report --parquet": _report("--parquet", "{out}/parquet"),
    "report --flamegraph": _report("--flamegraph", "{out}/x.folded"),
    "report --speedscope": _report("--speedscope", "{out}/x.speedscope"),
    "report --perfetto": _report("--perfetto", "{out}/x.trace"),
    "report --memory-snapshot": _report("--memory-snapshot", "{out}/x.pickle"),
    "report ROOT": lambda scene: ["report", str(scene.run.parent)],
    "merge": lambda scene: ["merge", str(scene.run.parent), "-o", str(scene.out / "merged")],
    "merge --passes": _passes,
    "diff": lambda scene: ["diff", str(scene.run), str(scene.good), "--json", str(scene.out / "d"),
                           "--markdown", str(scene.out / "d.md")],
    "diff after": lambda scene: ["diff", str(scene.good), str(scene.run)],
    "diff --html": lambda scene: ["diff", str(scene.good), str(scene.run),
                                  "--html", str(scene.out / "diff.html")],
    "replay": _replay,
    "replay accesses": _accesses,
    "analyze": lambda scene: ["analyze", str(scene.run.parent), "-t", "kernel_freq", "-q",
                              "-o", str(scene.out / "analysis")],
}  # fmt: skip


def _load(scene: Scene) -> None:
    """Attributes that a notebook reads."""
    import pasta
    from pasta.errors import PastaError

    def quietly(read: Callable[[], Any]) -> Any:
        with contextlib.suppress(PastaError):
            return read()

    for path in (scene.run, scene.run.parent):
        run: Any = quietly(lambda path=path: pasta.load(path))
        if run is None:
            continue
        for tool, names in (quietly(run.tables) or {}).items():
            for name in names:
                quietly(lambda run=run, tool=tool, name=name: run.arrow(tool, name))
        quietly(lambda run=run: str(run))
        if path == scene.run:
            for read in ("findings", "event_counts", "_repr_mimebundle_"):
                quietly(getattr(run, read))
            quietly(lambda run=run: (run.capabilities, run.failures))
            for kind in quietly(run.event_counts) or {}:
                quietly(lambda run=run, kind=kind: run.events(kind))


READERS = (*VERBS, "pasta.load")


class Hang(BaseException):
    """A reader did not return within LIMIT."""


@contextlib.contextmanager
def _limited() -> Iterator[None]:
    def expired(*_: object) -> None:
        raise Hang

    # not SIGALRM of time_limit, which replay uses
    before = signal.signal(signal.SIGVTALRM, expired)
    signal.setitimer(signal.ITIMER_VIRTUAL, LIMIT)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def read(reader: str, scene: Scene) -> list[Failure]:
    """Calls a reader as a user would; returns its failures."""
    out, err = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.StringIO()
    before = contents(scene)
    failures: list[Failure] = []
    status: Any = 0
    try:
        with (
            _limited(),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("default")
            if reader == "pasta.load":
                _load(scene)
            else:
                from pasta.cli.main import main

                status = main(VERBS[reader](scene))
    except Hang:
        failures.append(Failure("hang", f"above {LIMIT} s\n{traceback.format_exc()}"))
    except SystemExit as error:
        failures.append(Failure("status", f"SystemExit {error.code}"))
    except BaseException:
        failures.append(Failure("traceback", traceback.format_exc()))
    out.flush()
    printed = out.buffer.getvalue().decode("utf-8", "backslashreplace")  # type: ignore[attr-defined]
    failures += check_output(reader, status, printed, err.getvalue())
    failures += [Failure("outside", each) for each in changed(before, contents(scene))]
    return failures


def check_output(reader: str, status: object, out: str, err: str) -> list[Failure]:
    failures = []
    for name, text in (("stdout", out), ("stderr", err)):
        found = _OBEYED.search(text)
        if found:
            near = text[max(found.start() - 60, 0) : found.end() + 60]
            failures.append(Failure("escape", f"{name}: {near!r}"))
    if "Traceback" in err or "Warning:" in err:
        failures.append(Failure("traceback", err))
    if status not in (0, 1, 2):
        failures.append(Failure("status", f"{status}: {err}"))
    lines = err.strip().splitlines()
    if status == 2 and (not lines or not all(line.startswith("pasta: ") for line in lines)):
        failures.append(Failure("message", repr(err[:500])))
    if status == 2 and len(lines) > 1 and reader != "analyze":  # one line per run
        failures.append(Failure("message", repr(err[:500])))
    return failures


def contents(scene: Scene) -> dict[str, tuple[int, int]]:
    """All files of a scene except its output, with size and modification time."""
    found = {}
    for place, directories, files in os.walk(scene.directory):
        if place == str(scene.directory):
            directories.remove(scene.out.name)
        for name in (*files, *directories):
            about = os.lstat(os.path.join(place, name))
            found[os.path.join(place, name)] = (about.st_size, about.st_mtime_ns)
    return found


def changed(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    names = sorted(before.keys() | after.keys())
    return [name for name in names if before.get(name) != after.get(name)]


def make_canary(directory: Path) -> None:
    """Files that must not be read or changed: a foreign table and run beside the run."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    outside = directory / OUTSIDE
    outside.mkdir()
    pq.write_table(pa.table({"secret": ["canary"]}), outside / "table.parquet")
    (outside / "run.json").write_text('{"schema": 1}')


def timed(reader: str, scene: Scene) -> tuple[float, list[Failure]]:
    start = time.monotonic()
    failures = read(reader, scene)
    sys.stdout.flush()
    return time.monotonic() - start, failures
