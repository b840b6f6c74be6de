"""All runs of a root as one: tables with a column `rank`, one trace, one list of findings."""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import time
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import pasta
from pasta.errors import RunError
from pasta.progress import doing
from pasta.run.directory import SCHEMA, RunDirectory, staging_beside
from pasta.run.files import batches, open_parquet, plain_schema, reading, unpacked_limit, with_texts
from pasta.run.results import (
    LAYOUT,
    document_of,
    findings_of,
    layout_of,
    result_documents,
    trace_of,
)
from pasta.run.root import RankRun, Root, ranks_text
from pasta.table import counted
from pasta.tool import Finding

#: Rows that are held before they are written.
_ROWS = 1 << 16
#: Rows of each rank that come first, those of all ranks in turn: what reports show.
_SHOWN = 100
_TRACE = "event_trace"
#: Number of a merged trace's processes from which those of devices are counted, by rank.
_DEVICES = 1_000_000


# ---- findings ----


@dataclass(frozen=True)
class Told:
    """A finding of a tool in one run."""

    label: str
    rank: int | None
    tool: str
    finding: Finding


def merged_findings(told: Iterable[Told]) -> list[tuple[str, Finding]]:
    """Findings with their tools, the one to look at first before others.

    What several runs say of the same place is one finding: of the run in which there is most to
    gain, with the ranks that say it.
    """
    groups: dict[tuple[str, str, str], list[Told]] = {}
    for each in told:
        key = (each.tool, each.finding.what, each.finding.where)
        groups.setdefault(key, []).append(each)
    merged = []
    for (tool, _, where), group in groups.items():
        best = max(group, key=lambda each: each.finding.rank)
        ranks = sorted({each.rank for each in group if each.rank is not None})
        whose = ranks_text(ranks) if ranks else best.label
        evidence = best.finding.evidence
        if len(group) > 1:
            evidence = f"{best.label}: {evidence}"
        finding = replace(best.finding, where=f"{where} ({whose})", evidence=evidence)
        merged.append((tool, finding))
    return sorted(merged, key=lambda each: -each[1].rank)


# ---- tables ----


@dataclass(frozen=True)
class Part:
    """A run's share of a table."""

    run: RankRun
    path: Path


def merged_schema(parts: Sequence[Part]) -> pa.Schema:
    """Columns of all parts, behind `rank` and `run`; a tool's own `rank` is `rank_of_tool`.

    Raises RunError where a column has types that do not go together.
    """
    files = [open_parquet(part.path, part.run.directory.path) for part in parts]
    schemas = [_renamed(plain_schema(file.schema_arrow)) for file in files]
    try:
        merged = pa.unify_schemas(
            [schema.remove_metadata() for schema in schemas], promote_options="permissive"
        )
    except pa.ArrowException as error:
        raise RunError(f"its columns differ in type between ranks ({error})") from None
    ranks = [part.run.rank for part in parts]
    layout = layout_of(schemas[0].metadata, parts[0].path)
    if len(set(ranks)) == len(ranks) and None not in ranks:
        layout["hidden"] = [*layout.get("hidden", []), "run"]
    metadata = {**(schemas[0].metadata or {}), LAYOUT: json.dumps(layout).encode()}
    own = [pa.field("rank", pa.int32()), pa.field("run", pa.string())]
    return pa.schema([*own, *merged], metadata=metadata)


def _renamed(schema: pa.Schema) -> pa.Schema:
    for name in ("rank", "run"):
        at = schema.get_field_index(name)
        if at >= 0:
            schema = schema.set(at, schema.field(at).with_name(f"{name}_of_tool"))
    return schema


def readable(parts: Iterable[Part], problems: list[str]) -> list[Part]:
    """Parts whose files are there and whole; adds a line to `problems` for each that is not."""
    kept = []
    for part in parts:
        try:
            open_parquet(part.path, part.run.directory.path)
            kept.append(part)
        except RunError as error:
            problems.append(f"{error}: left out")
    return kept


def rows_of(
    part: Part, schema: pa.Schema, first: int = 0, last: int | None = None
) -> Iterator[pa.Table]:
    """Rows of a part with the merged columns, a bounded number at a time. Raises RunError for a
    damaged file."""
    at = 0
    file = open_parquet(part.path, part.run.directory.path)
    for coded in batches(file, part.path, rows=_ROWS, first=last):
        batch = with_texts(coded, part.path)
        begin, end = max(first - at, 0), len(batch) if last is None else min(last - at, len(batch))
        at += len(batch)
        if begin < end:
            with reading(part.path):
                table = _conformed(batch.slice(begin, end - begin), part.run, schema)
            yield table
        if last is not None and at >= last:
            return


def _conformed(batch: pa.RecordBatch, run: RankRun, schema: pa.Schema) -> pa.Table:
    own = _renamed(batch.schema)
    columns = []
    for field in schema:
        if field.name == "rank":
            columns.append(pa.repeat(pa.scalar(run.rank, field.type), len(batch)))
        elif field.name == "run":
            columns.append(pa.repeat(pa.scalar(run.name, field.type), len(batch)))
        else:
            at = own.get_field_index(field.name)
            column = batch.column(at) if at >= 0 else pa.nulls(len(batch))
            columns.append(column.cast(field.type))
    return pa.Table.from_arrays(columns, schema=schema)


def merged_rows(
    parts: Sequence[Part], schema: pa.Schema, problems: list[str]
) -> Iterator[pa.Table]:
    """Rows of all parts: the first of each in turn, since a table's first rows matter most, then
    the others part by part. A file that is damaged further on gives the rows before."""
    heads, order = [], []
    damaged = set()

    def guarded(part: Part, first: int, last: int | None) -> Iterator[pa.Table]:
        try:
            yield from rows_of(part, schema, first, last)
        except RunError as error:
            damaged.add(part.path)
            problems.append(f"{error}: left out")

    for number, part in enumerate(parts):
        at = 0
        for table in guarded(part, 0, _SHOWN):
            heads.append(table)
            order += [(at + row, number) for row in range(len(table))]
            at += len(table)
    if heads:
        keys = np.array(order)
        yield pa.concat_tables(heads).take(np.lexsort((keys[:, 1], keys[:, 0])))
    for part in parts:
        if part.path not in damaged:
            yield from guarded(part, _SHOWN, None)


def _merge_table(parts: Sequence[Part], target: Path, problems: list[str]) -> bool:
    """Writes a table of all parts; False where it cannot be made."""
    parts = readable(parts, problems)
    if not parts:
        return False
    try:
        schema = merged_schema(parts)
    except RunError as error:
        problems.append(f"{parts[0].path.parent.name}: table {target.stem}: left out, {error}")
        return False
    held: list[pa.Table] = []
    with pq.ParquetWriter(target, schema, compression="zstd") as writer:
        for table in merged_rows(parts, schema, problems):
            held.append(table)
            if sum(len(each) for each in held) >= _ROWS:
                writer.write_table(pa.concat_tables(held))
                held = []
        if held:
            writer.write_table(pa.concat_tables(held))
    return True


# ---- traces ----

#: Characters of a line of a trace.
_LINE = 1 << 20
_PID = re.compile(r'"pid":(\d+)')
_TS = re.compile(r'"ts":(-?)(\d+)\.(\d{3})')
_FLOW = re.compile(r'(?<=^\{"ph":"[sf]","id":)\d+')
_ASYNC = re.compile(r'(?<="id":")0x[0-9a-f]+(?=")')


class _Trace:
    """A run's trace on its way into the merged one: its lines with other times and numbers."""

    def __init__(self, run: RankRun, number: int, of: int, label: str, shift: int) -> None:
        self.run, self.number, self.of, self.label, self.shift = run, number, of, label, shift
        self._pids = {run.pid: number}

    def lines(self, file: IO[str], most: int) -> Iterator[str]:
        """Events of a trace of at most `most` characters that event_trace wrote, one a line.
        Raises ValueError for another."""
        file.readline(_LINE)
        if file.readline(_LINE) != '"traceEvents":[\n':
            raise ValueError("not as event_trace writes it")
        while line := file.readline(_LINE):
            most -= len(line)
            if most < 0:
                raise ValueError("it unpacks to much more than its size")
            event = line.rstrip("\n").removesuffix(",")
            if event == "]}":
                return
            if not (event.startswith('{"ph":"') and event.endswith("}")):
                raise ValueError("cut short")
            yield self._moved(event)
        raise ValueError("cut short")

    def _moved(self, event: str) -> str:
        # Quotes inside of texts are escaped, so these match keys only.
        if event.startswith('{"ph":"M"'):
            return self._described(json.loads(event))
        event = _PID.sub(self._pid, event, count=1)
        event = _TS.sub(self._ts, event, count=1)
        if event.startswith(('{"ph":"s"', '{"ph":"f"')):
            return _FLOW.sub(lambda m: str(int(m[0]) * self.of + self.number), event)
        if event.startswith(('{"ph":"b"', '{"ph":"e"')):
            return _ASYNC.sub(lambda m: hex(int(m[0], 16) * self.of + self.number), event, count=1)
        return event

    def _described(self, event: dict[str, Any]) -> str:
        pid = event["pid"]
        event["pid"] = self._number(pid)
        if event["name"] == "process_name":
            of = "" if pid == self.run.pid else f": {event['args']['name'].partition(' of ')[0]}"
            event["args"]["name"] = f"{self.label} ({self.run.host}){of}"
        elif event["name"] == "process_sort_index":
            event["args"]["sort_index"] = self.number * 256 + len(self._pids) - 1
        return json.dumps(event, separators=(",", ":"))

    def _number(self, pid: int) -> int:
        return self._pids.setdefault(pid, _DEVICES * len(self._pids) + self.number)

    def _pid(self, match: re.Match[str]) -> str:
        return f'"pid":{self._number(int(match[1]))}'

    def _ts(self, match: re.Match[str]) -> str:
        since = int(match[2]) * 1000 + int(match[3])
        micro, nano = divmod((-since if match[1] else since) + self.shift, 1000)
        if micro < 0 and nano:
            micro, nano = micro + 1, 1000 - nano
            return f'"ts":-{-micro}.{nano:03d}'
        return f'"ts":{micro}.{nano:03d}'


def _merge_traces(root: Root, target: Path, problems: list[str]) -> bool:
    """Writes the traces of all runs as one; False where no run has any."""
    found = []
    for run in root.runs:
        try:
            path = trace_of(run.directory.results)
        except RunError as error:
            problems.append(str(error))
            continue
        if path is not None:
            found.append((run, path))
    if not found:
        return False
    numbers = _numbers(root)
    head = {
        "schemaVersion": 1,
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": root.origin,
        "ranks": root.ranks,
    }
    with gzip.open(target, "wt", encoding="utf-8", compresslevel=1) as out:
        out.write(json.dumps(head)[:-1] + ',\n"traceEvents":[\n')
        separator = ""
        for run, path in found:
            trace = _Trace(
                run, numbers[run.name], 1 + max(numbers.values()), root.label(run),
                root.since(run, run.start),
            )  # fmt: skip
            try:
                with _opened(path) as file:
                    for line in trace.lines(file, unpacked_limit(path)):
                        out.write(separator + line)
                        separator = ",\n"
            except (
                OSError, EOFError, zlib.error, ValueError, LookupError, TypeError, AttributeError,
                RecursionError,
            ) as error:  # fmt: skip
                problems.append(
                    f"{path}: its trace is not merged from where it is damaged ({error})"
                )
        out.write("\n]}\n")
    return True


def _opened(path: Path) -> IO[str]:
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8")
    return path.open(encoding="utf-8")


def _numbers(root: Root) -> dict[str, int]:
    """Process number of each run in the trace: its rank, unless another run has that."""
    numbers: dict[str, int] = {}
    free = max(root.ranks, default=-1) + 1
    for run in root.runs:
        if run.rank is not None and run.rank not in numbers.values():
            numbers[run.name] = run.rank
        else:
            numbers[run.name], free = free, free + 1
    return numbers


# ---- the merged run ----


def merge(root: Root, out: Path, *, force: bool = False) -> RunDirectory:
    """Writes a run directory of all runs of a root; they stay as they are. Raises RunError."""
    if not root.runs:
        raise RunError(f"{root.path}: no finished run is in it")
    staging = RunDirectory.create(staging_beside(out))
    try:
        problems: list[str] = []
        tools = _tools(root, problems)
        for number, (tool, results) in enumerate(tools.items(), 1):
            doing(f"results of {tool}", f"tool {number} of {len(tools)}")
            _merge_tool(root, tool, results, staging.results / tool, problems)
        staging.write_manifest(_manifest(root, list(tools), problems))
        from pasta.report.text import write_text_report

        write_text_report(staging)
        return staging.move_to(out, force=force, suffix=str(os.getpid()))
    except BaseException:
        shutil.rmtree(staging.path, ignore_errors=True)
        raise


#: What runs say of a tool's result.
_Documents = list[tuple[RankRun, dict[str, Any]]]


def _tools(root: Root, problems: list[str]) -> dict[str, _Documents]:
    """Runs that have results, with these, by tool."""
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
        if _merge_table(parts, target / f"{name}.parquet", problems):
            tables.append(name)
    files = []
    if tool == _TRACE and _merge_traces(root, target / "trace.json.gz", problems):
        files.append("trace.json.gz")
    told = [
        Told(root.label(run), run.rank, tool, finding)
        for run, document in results
        for finding in findings_of(document)
    ]
    first, summary = results[0][0], results[0][1]["summary"]
    notes = dict.fromkeys(note for _, document in results for note in document.get("notes", ()))
    document = {
        "tool": tool,
        "summary": f"{counted(len(results), 'run')}; {root.label(first)}: {summary}",
        "tables": tables,
        "files": files,
        "findings": [asdict(finding) for _, finding in merged_findings(told)],
        "figures": {},
        "notes": list(notes),
    }
    (target / "result.json").write_text(json.dumps(document, indent=1), encoding="utf-8")


def _manifest(root: Root, tools: list[str], problems: list[str]) -> dict[str, Any]:
    first = root.runs[0]
    ends = [root.since(run, run.start) + run.observed for run in root.runs]
    return {
        "schema": SCHEMA,
        "pasta": pasta.__version__,
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
    """What the merged manifest says of a run; `start_ns` is since the first run's start, and times
    in tables are since the start of their run."""
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
    """The entries of all runs; of those that differ the first rank's."""
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
