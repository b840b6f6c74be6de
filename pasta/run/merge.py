"""Merges all runs of a root: tables with a column `rank`, one trace, one list of findings."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from pasta.errors import RunError
from pasta.findings import Finding
from pasta.names import title_of
from pasta.progress import report_progress
from pasta.run.directory import SCHEMA, RunDirectory, staging_beside
from pasta.run.merge_arrivals import ARRIVALS, CALLS, COLLECTIVES, TITLE, arrivals_of
from pasta.run.merge_tables import Part, merge_table
from pasta.run.merge_traces import merge_traces
from pasta.run.results import document_of, findings_of, result_documents, write_result
from pasta.run.root import RankRun, Root, ranks_text
from pasta.table import counted
from pasta.version import VERSION

_TRACE = "event_trace"


# ---- findings ----


@dataclass(frozen=True)
class RunFinding:
    """A finding of a tool in one run."""

    label: str
    rank: int | None
    tool: str
    finding: Finding


def merged_findings(found: Iterable[RunFinding]) -> list[tuple[str, Finding]]:
    """Findings with their tools, the most promising first.

    Findings of several runs about the same place are merged into the one with the largest gain,
    with the ranks that have it.
    """
    groups: dict[tuple[str, str, str], list[RunFinding]] = {}
    for each in found:
        key = (each.tool, each.finding.what, each.finding.where)
        groups.setdefault(key, []).append(each)
    merged = []
    for (tool, _, where), group in groups.items():
        best = max(group, key=lambda each: each.finding.rank)
        ranks = sorted({each.rank for each in group if each.rank is not None})
        source = ranks_text(ranks) if ranks else best.label
        evidence = best.finding.evidence
        if len(group) > 1:
            evidence = f"{best.label}: {evidence}"
        finding = replace(best.finding, where=f"{where} ({source})", evidence=evidence)
        merged.append((tool, finding))
    return sorted(merged, key=lambda each: -each[1].rank)


# ---- the merged run ----


def merge(
    root: Root, out: Path, *, finish: Callable[[RunDirectory], object], force: bool = False
) -> RunDirectory:
    """Writes all runs of a root as one run directory; the runs are not modified.

    `finish` writes the report: it is called with the complete run before the rename to `out`.
    Raises RunError.
    """
    if not root.runs:
        raise RunError(f"{root.path}: contains no finished run")
    staging = RunDirectory.create(staging_beside(out))
    try:
        problems: list[str] = []
        tools = _tools(root, problems)
        for number, (tool, results) in enumerate(tools.items(), 1):
            report_progress(f"results of {tool}", f"tool {number} of {len(tools)}")
            _merge_tool(root, tool, results, staging.results / tool, problems)
        arrivals = arrivals_of(root, _with_calls(tools), problems)
        if arrivals is not None:
            write_result(staging.results, ARRIVALS, arrivals, title=TITLE, topic="time")
        names = [*tools, *([ARRIVALS] if arrivals is not None else [])]
        staging.write_manifest(_manifest(root, names, problems))
        finish(staging)
        return staging.move_to(out, force=force, suffix=str(os.getpid()))
    except BaseException:
        shutil.rmtree(staging.path, ignore_errors=True)
        raise


#: Runs with a tool's result document.
_Documents = list[tuple[RankRun, dict[str, Any]]]


def _tools(root: Root, problems: list[str]) -> dict[str, _Documents]:
    """Runs with their result documents, by tool; errors are added to `problems`."""
    found: dict[str, _Documents] = {}
    for run in root.runs:
        try:
            paths = result_documents(run.directory.results)
        except RunError as error:
            problems.append(str(error))
            continue
        for path in paths:
            try:
                document = document_of(path)
            except RunError as error:
                problems.append(str(error))
                continue
            found.setdefault(path.parent.name, []).append((run, document))
    return dict(sorted(found.items()))


def _with_calls(tools: dict[str, _Documents]) -> list[RankRun]:
    """Runs whose collectives were recorded."""
    return [run for run, document in tools.get(COLLECTIVES, ()) if CALLS in document["tables"]]


def _merge_tool(
    root: Root, tool: str, results: _Documents, target: Path, problems: list[str]
) -> None:
    target.mkdir(parents=True)
    names = dict.fromkeys(name for _, document in results for name in document["tables"])
    tables = []
    for name in names:
        parts = [
            Part(run, run.directory.results / tool / f"{name}.parquet")
            for run, document in results
            if name in document["tables"]
        ]
        if merge_table(parts, target / f"{name}.parquet", problems):
            tables.append(name)
    files = []
    if tool == _TRACE and merge_traces(root, target / "trace.json.gz", problems):
        files.append("trace.json.gz")
    found = [
        RunFinding(root.label(run), run.rank, tool, finding)
        for run, document in results
        for finding in findings_of(document)
    ]
    first, summary = results[0][0], results[0][1]["summary"]
    notes = dict.fromkeys(note for _, document in results for note in document.get("notes", ()))
    document = {
        "tool": tool,
        "title": results[0][1].get("title", title_of(tool)),
        "topic": results[0][1].get("topic", "other"),
        "summary": f"{counted(len(results), 'run')}; {root.label(first)}: {summary}",
        "tables": tables,
        "files": files,
        "findings": [asdict(finding) for _, finding in merged_findings(found)],
        "figures": {},
        "notes": list(notes),
    }
    (target / "result.json").write_text(json.dumps(document, indent=1), encoding="utf-8")


def _manifest(root: Root, tools: list[str], problems: list[str]) -> dict[str, Any]:
    first = root.runs[0]
    ends = [root.since(run, run.start) + run.observed for run in root.runs]
    return {
        "schema": SCHEMA,
        "pasta": VERSION,
        "command": first.manifest["command"],
        "host": ", ".join(root.hosts),
        "pid": first.pid,
        "rank": None,
        "world_size": root.world_size,
        "start": {"realtime_ns": root.origin, "monotonic_ns": 0},
        "observed_ns": max(ends),
        "ended": {"text": _ended(root)},
        "sources": _joined(root, "sources"),
        "devices": _joined(root, "devices"),
        "link_bandwidth": _joined(root, "link_bandwidth"),
        "tools": tools,
        "failures": _joined(root, "failures"),
        "launches": _summed(root, "launches"),
        "events": _summed(root, "events"),
        "recorded": {},
        "dropped": _summed(root, "dropped"),
        "warnings": [*_warnings(root), *problems],
        "not_merged": problems,
        "merged": {"of": str(root.path.absolute()), "realtime_ns": time.time_ns()},
        "ranks": [_described(root, run) for run in root.runs],
        "missing": root.missing,
    }


def _described(root: Root, run: RankRun) -> dict[str, Any]:
    """The merged manifest's entry of a run. `start_ns` is relative to the first run's start; times
    in tables are relative to the start of their own run."""
    return {
        "rank": run.rank,
        "local_rank": run.local_rank,
        "run": run.name,
        "directory": str(run.directory.path.absolute()),
        "program": run.program,
        "host": run.host,
        "pid": run.pid,
        "start_ns": root.since(run, run.start),
        "start_error_ns": root.error(root.runs[0], run),
        "observed_ns": run.observed,
        "ended": run.manifest["ended"],
    }


def _warnings(root: Root) -> Iterator[str]:
    if root.missing:
        yield f"{ranks_text(root.missing)}: no run"
    for problem in root.problems:
        yield f"{problem.path.name}: {problem.why}"
    yield from root.doubts()
    for run in root.runs:
        for warning in run.manifest.get("warnings", []):
            yield f"{root.label(run)}: {warning}"


def _ended(root: Root) -> str:
    texts = list(dict.fromkeys(run.manifest["ended"]["text"] for run in root.runs))
    return texts[0] if len(texts) == 1 else "; ".join(texts)


def _joined(root: Root, key: str) -> dict[str, Any]:
    """The entries of all runs; the first rank wins if they differ."""
    found: dict[str, Any] = {}
    for run in root.runs:
        for name, value in run.manifest.get(key, {}).items():
            found.setdefault(name, value)
    return found


def _summed(root: Root, key: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for run in root.runs:
        for name, value in run.manifest.get(key, {}).items():
            found[name] = found.get(name, 0) + value
    return found
