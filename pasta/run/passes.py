"""Joins two passes of a program: one run with device times, and one with memory accesses.

    WHOLE/                  the joined run, or a root of them if several processes were recorded
    WHOLE/passes/times      the runs of the passes, if pasta-preload made both
    WHOLE/passes/accesses

The joined run has the results of both passes, and the result `joined`. Events stay in the runs of
the passes.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from pasta import private
from pasta.errors import RunError
from pasta.findings import Result, Topic
from pasta.progress import report_progress
from pasta.run.directory import MANIFEST, SCHEMA, RunDirectory, staging_beside
from pasta.run.files import regular_file
from pasta.run.naming import name_in_root
from pasta.run.pass_launches import COUNTS, RecordedPass, read_launches
from pasta.run.pass_roofline import ROOFLINE, join_roofline
from pasta.run.pass_stalls import STALLS, has_stalls, joined_stalls
from pasta.run.pass_tables import ACCESSES, JOINED, TIMES, Joined
from pasta.run.results import document_of, result_documents, write_result
from pasta.run.root import PASSES, program_of
from pasta.table import counted, plain
from pasta.version import VERSION

#: Completes the report of a joined run, which is called before the run gets its final name.
Finish = Callable[[RunDirectory], object]


class Rejoined(NamedTuple):
    """A tool's result of both passes, with the tool's title and topic."""

    result: Result
    title: str
    topic: Topic


#: Makes the result of both passes of a tool with `both_passes`, by name; None for other tools.
#: Raises RunError.
Rejoin = Callable[[str, RecordedPass, RecordedPass, Joined], Rejoined | None]


def _none(*_: object) -> None:
    """No tool has a result of both passes."""


def in_order(one: RecordedPass, other: RecordedPass) -> tuple[RecordedPass, RecordedPass]:
    """The pass with device times, or executed instructions, and the one with accesses. Raises
    RunError if it is not clear."""
    both = f"{one.run.path} and {other.run.path}"
    if one.is_probed and other.is_probed:
        raise RunError(
            f"{both}: probes ran in both, so neither has usable device times",
            remedy="record one of them without tools that have probes",
        )
    if not one.is_probed and not other.is_probed:
        raise RunError(
            f"{both}: probes ran in neither, so there are no accesses",
            remedy=f"record one of them with -t {COUNTS}",
        )
    times, accesses = (other, one) if one.is_probed else (one, other)
    if not times.is_timed and not times.has_counts:
        raise RunError(
            f"{times.run.path}: no device times; {times.sources} did not provide them",
            remedy="record it with a source that has kernel_complete (docs/backends.md)",
        )
    return times, accesses


# ---- processes ----


@dataclass(frozen=True)
class Partners:
    """Runs of the same processes in two passes, and runs of processes in one pass only."""

    pairs: list[tuple[RunDirectory, RunDirectory]]
    alone: list[tuple[str, RunDirectory]]  # with the name of the pass


def partners(times: Sequence[RunDirectory], accesses: Sequence[RunDirectory]) -> Partners:
    """Matches processes by command and place in the job, those left by program and rank; equal ones
    by the order of their starts. Raises RunError for a damaged manifest."""
    sides = [
        sorted(
            ((each, each.manifest()) for each in runs),
            key=lambda entry: entry[1]["start"]["realtime_ns"],
        )
        for runs in (times, accesses)
    ]
    pairs: list[tuple[RunDirectory, RunDirectory]] = []
    for key in (_command_in_job, _program_and_rank):
        theirs: dict[object, deque[Any]] = {}
        for entry in sides[1]:
            theirs.setdefault(key(entry[1]), deque()).append(entry)
        left = []
        for entry in sides[0]:
            same = theirs.get(key(entry[1]))
            if same:
                pairs.append((entry[0], same.popleft()[0]))
            else:
                left.append(entry)
        sides = [left, [entry for same in theirs.values() for entry in same]]
    names = zip((TIMES, ACCESSES), sides, strict=True)
    return Partners(pairs, [(name, run) for name, side in names for run, _ in side])


def _command_in_job(manifest: dict[str, Any]) -> object:
    place = [manifest.get(name) for name in ("rank", "local_rank", "world_size")]
    return tuple(manifest["command"]), *place


def _program_and_rank(manifest: dict[str, Any]) -> object:
    executable = manifest.get("executable")
    return program_of(manifest["command"], executable), executable, manifest.get("rank")


# ---- the joined run ----


@dataclass(frozen=True)
class JoinedRun:
    """A joined run, and how many launches were joined and have no partner."""

    run: RunDirectory
    launches: int
    alone: tuple[int, int]


def join(
    one: RunDirectory,
    other: RunDirectory,
    staging: RunDirectory,
    place: Path,
    finish: Finish,
    rejoin: Rejoin = _none,
) -> JoinedRun:
    """Writes the joined run of two passes, in any order, to `staging`, which is moved to `place`.

    Raises RunError if nothing can be joined, or a run is damaged.
    """
    times, accesses = in_order(RecordedPass(one), RecordedPass(other))
    joined = Joined(*read_launches(times, accesses))
    if not len(joined.pairs):
        raise RunError(
            f"{times.run.path} and {accesses.run.path}: no launch of one is also in the other",
            remedy="join runs of one program with the same arguments and input",
        )
    warnings = list(_warnings(times, accesses))
    report_progress("writing tables")
    stalls = _stalls(times, accesses, joined, warnings)
    rejoined = _rejoined(times, accesses, joined, rejoin, warnings)
    without = [*rejoined, *([STALLS] if stalls else [])]
    _copy_results(times, accesses, staging, warnings, without)
    for name, each in rejoined.items():
        write_result(staging.results, name, each.result, title=each.title, topic=each.topic)
    if stalls is not None:
        write_result(
            staging.results, STALLS, stalls, title="Stalls charged to tensors", topic="time"
        )
    result = joined.result((times.sources, accesses.sources), list(_lost(times, accesses)))
    title = "Bandwidth: both passes joined"
    write_result(staging.results, JOINED, result, title=title, topic="accesses")
    roofline = join_roofline(accesses, joined)
    if roofline is not None:  # instead of the copied one, which has no times
        shutil.rmtree(staging.results / ROOFLINE)
        write_result(staging.results, ROOFLINE, roofline, topic="time")
    staging.write_manifest(_manifest(times, accesses, joined, place, warnings))
    report_progress("writing the report")
    finish(staging)
    return JoinedRun(staging, len(joined.pairs), joined.alone)


def join_as(
    one: RunDirectory,
    other: RunDirectory,
    out: Path,
    *,
    finish: Finish,
    rejoin: Rejoin = _none,
    force: bool = False,
) -> JoinedRun:
    """Joins two passes as the run `out`. Raises RunError as `join`."""
    staging = RunDirectory.create(staging_beside(out))
    try:
        done = join(one, other, staging, out, finish, rejoin)
        return JoinedRun(
            staging.move_to(out, force=force, suffix=str(os.getpid())), done.launches, done.alone
        )
    finally:
        shutil.rmtree(staging.path, ignore_errors=True)  # absent if it was renamed


def join_all(
    times: Sequence[RunDirectory],
    accesses: Sequence[RunDirectory],
    whole: Path,
    finish: Finish,
    rejoin: Rejoin = _none,
) -> tuple[list[RunDirectory], list[str]]:
    """Joins the processes of two passes whose runs are in `whole`: that becomes the joined run, or
    if a pass has several processes a root of joined runs. Returns the joined runs, and lines about
    runs that were not joined. Raises RunError for a damaged manifest."""
    found = partners(times, accesses)
    several = max(len(times), len(accesses)) > 1
    done, lines = [], []
    for one, other in found.pairs:
        try:
            if several:
                manifest = one.manifest()
                program = manifest.get("executable") or manifest["command"][0]
                name = name_in_root(program, manifest["pid"], manifest.get("rank"))
                done.append(join_as(one, other, whole / name, finish=finish, rejoin=rejoin).run)
            else:
                done.append(_join_within(one, other, whole, finish, rejoin))
        except RunError as error:
            lines.append(f"the passes are not joined: {error}")
    for name, run in found.alone:
        manifest = run.manifest()
        lines.append(
            f"process {manifest['pid']} ({plain(' '.join(manifest['command']), 100)}) was recorded"
            f" in the pass {name} only: {run.path}"
        )
    return done, lines


def _join_within(
    one: RunDirectory, other: RunDirectory, whole: Path, finish: Finish, rejoin: Rejoin
) -> RunDirectory:
    """Joins two passes in the directory that contains them; run.json is moved there last."""
    staging = RunDirectory.create(staging_beside(whole / "run"))
    try:
        join(one, other, staging, whole, finish, rejoin)
        private.tighten(staging.path)
        for name in sorted(os.listdir(staging.path), key=lambda name: name == MANIFEST):
            os.rename(staging.path / name, whole / name)
    finally:
        shutil.rmtree(staging.path, ignore_errors=True)
    return RunDirectory(whole)


def _named(times: RecordedPass, accesses: RecordedPass) -> Iterator[tuple[str, RecordedPass]]:
    yield TIMES, times
    yield ACCESSES, accesses


def _warnings(times: RecordedPass, accesses: RecordedPass) -> Iterator[str]:
    """Possible differences between the passes, and their own warnings."""
    commands = [each.manifest["command"] for each in (times, accesses)]
    if commands[0] != commands[1]:
        one, other = (plain(" ".join(command), 200) for command in commands)
        yield f"the passes ran different commands: {one}; {other}"
    for name, each in _named(times, accesses):
        for warning in each.manifest.get("warnings", []):
            yield f"pass {name}: {warning}"


def _lost(times: RecordedPass, accesses: RecordedPass) -> Iterator[str]:
    """Launches that were not recorded, and so have no partner."""
    for name, each in _named(times, accesses):
        for key, why in (("dropped", "lost"), ("left_out", "left out")):
            count = each.manifest.get(key, {}).get("kernel_launch", 0)
            if count:
                yield (
                    f"{counted(count, 'launch')} of {name} were {why} of the recording: later "
                    "launches may be joined with the wrong partners"
                )


# ---- results ----


def _stalls(
    times: RecordedPass, accesses: RecordedPass, joined: Joined, warnings: list[str]
) -> Result | None:
    """Stalls charged to tensors, if the passes have samples and accesses by load and tensor."""
    try:
        if has_stalls(times, accesses):
            return joined_stalls(times, accesses, joined)
    except RunError as error:
        warnings.append(f"stalls are not charged to tensors: {error}")
    return None


def _rejoined(
    times: RecordedPass,
    accesses: RecordedPass,
    joined: Joined,
    rejoin: Rejoin,
    warnings: list[str],
) -> dict[str, Rejoined]:
    """Results of both passes, by tool, of the tools that have tables in the pass with accesses."""
    found: dict[str, Rejoined] = {}
    try:
        names = [path.parent.name for path in result_documents(accesses.run.results)]
    except RunError:
        return found  # copying the results reports why
    for name in names:
        try:
            each = rejoin(name, times, accesses, joined)
        except RunError as error:
            warnings.append(f"{name} is not joined: {error}")
        else:
            if each is not None:
                found[name] = each
    return found


def _copy_results(
    times: RecordedPass,
    accesses: RecordedPass,
    staging: RunDirectory,
    warnings: list[str],
    without: Collection[str] = (),
) -> None:
    """Copies the results of both passes with a note about their origin; unreadable results are left
    out with a warning. `without`: tools whose results come from both passes."""
    for name, each in _named(times, accesses):
        try:
            documents = result_documents(each.run.results)
        except RunError as error:
            warnings.append(f"{error}: left out")
            continue
        for path in documents:
            target = staging.results / path.parent.name
            if target.name in without:
                continue
            if target.exists():
                warnings.append(
                    f"{target.name} ran in both passes; the report shows that of {TIMES}"
                )
                continue
            try:
                _copy_result(each, name, path, target)
            except RunError as error:
                warnings.append(f"{error}: left out")
                shutil.rmtree(target, ignore_errors=True)


def _copy_result(of: RecordedPass, name: str, path: Path, target: Path) -> None:
    document = document_of(path)
    target.mkdir(parents=True)
    for file in (*(f"{table}.parquet" for table in document["tables"]), *document.get("files", ())):
        shutil.copyfile(regular_file(path.parent / file, of.run.path), target / file)
    how = " with probes in kernels" if name == ACCESSES else ""
    origin = f"of the pass {name} ({of.sources}){how}"
    document["notes"] = [origin, *document.get("notes", ())]
    (target / "result.json").write_text(json.dumps(document, indent=1), encoding="utf-8")


# ---- the manifest ----


def _manifest(
    times: RecordedPass, accesses: RecordedPass, joined: Joined, place: Path, warnings: list[str]
) -> dict[str, Any]:
    """That of the pass with times, with what both passes have."""
    first, second = times.manifest, accesses.manifest
    kept = {key: value for key, value in first.items() if key != "replay"}
    ends = [each["ended"]["text"] for each in (first, second)]
    ended = ends[0] if ends[0] == ends[1] else f"{TIMES}: {ends[0]}; {ACCESSES}: {ends[1]}"
    return {
        **kept,
        "schema": SCHEMA,
        "pasta": VERSION,
        "ended": {**first["ended"], "text": ended},
        "sources": {**second["sources"], **first["sources"]},
        "devices": {**second["devices"], **first["devices"]},
        "tools": list(dict.fromkeys([*first.get("tools", []), *second.get("tools", []), JOINED])),
        "failures": {**second.get("failures", {}), **first.get("failures", {})},
        "recorded": {},
        "dropped": _sums(first.get("dropped", {}), second.get("dropped", {})),
        "warnings": warnings,
        "passes": {
            name: {
                "directory": _from(place, each.run.path),
                "pid": each.manifest["pid"],
                "command": each.manifest["command"],
                "ended": each.manifest["ended"]["text"],
                "sources": each.manifest["sources"],
                "gave": gave,
                "tools": each.manifest.get("tools", []),
                "launches": len(launches),
                "alone": alone,
            }
            for (name, each), gave, launches, alone in zip(
                _named(times, accesses),
                ("device times" if times.is_timed else "executed instructions", "memory accesses"),
                (joined.times, joined.accesses),
                joined.alone,
                strict=True,
            )
        },
        "joined": {"launches": len(joined.pairs), "realtime_ns": time.time_ns()},
    }


def _sums(one: dict[str, int], other: dict[str, int]) -> dict[str, int]:
    return {key: one.get(key, 0) + other.get(key, 0) for key in {**one, **other}}


def _from(place: Path, run: Path) -> str:
    """The path of a run: relative if it is in `passes` of the same whole, which can be moved."""
    place, run = place.absolute(), run.absolute()
    inside = any(run.is_relative_to(base / PASSES) for base in (place, place.parent))
    return os.path.relpath(run, place) if inside else str(run)
