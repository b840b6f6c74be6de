"""Merges the traces of all runs of a root on the root's time line."""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from pasta.errors import RunError
from pasta.run.files import unpacked_limit
from pasta.run.results import trace_of
from pasta.run.root import RankRun, Root

#: First process number of devices in a merged trace; they are numbered by rank.
_DEVICES = 1_000_000
#: Maximum length of a line of a trace.
_LINE = 1 << 20
_PID = re.compile(r'"pid":(\d+)')
_TS = re.compile(r'"ts":(-?)(\d+)\.(\d{3})')
_FLOW = re.compile(r'(?<=^\{"ph":"[sf]","id":)\d+')
_ASYNC = re.compile(r'(?<="id":")0x[0-9a-f]+(?=")')


class _Trace:
    """A run's trace, with times and numbers converted for the merged one."""

    def __init__(self, run: RankRun, number: int, of: int, label: str, shift: int) -> None:
        self.run, self.number, self.of, self.label, self.shift = run, number, of, label, shift
        self._pids = {run.pid: number}

    def lines(self, file: IO[str], max_length: int) -> Iterator[str]:
        """Converted events of a trace, one per line. Raises ValueError if event_trace did not write
        it, or it has more than `max_length` characters."""
        file.readline(_LINE)
        if file.readline(_LINE) != '"traceEvents":[\n':
            raise ValueError("not written by event_trace")
        while line := file.readline(_LINE):
            max_length -= len(line)
            if max_length < 0:
                raise ValueError("its decompressed size exceeds the limit")
            event = line.rstrip("\n").removesuffix(",")
            if event == "]}":
                return
            if not (event.startswith('{"ph":"') and event.endswith("}")):
                raise ValueError("truncated")
            yield self._moved(event)
        raise ValueError("truncated")

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


def merge_traces(root: Root, target: Path, problems: list[str]) -> bool:
    """Writes the merged trace; False if no run has a trace. Errors are added to `problems`."""
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
                problems.append(f"{path}: damaged trace, merged only up to the damage ({error})")
        out.write("\n]}\n")
    return True


def _opened(path: Path) -> IO[str]:
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8")
    return path.open(encoding="utf-8")


def _numbers(root: Root) -> dict[str, int]:
    """Process number of each run in the trace: its rank, unless another run uses it."""
    numbers: dict[str, int] = {}
    free = max(root.ranks, default=-1) + 1
    for run in root.runs:
        if run.rank is not None and run.rank not in numbers.values():
            numbers[run.name] = run.rank
        else:
            numbers[run.name], free = free, free + 1
    return numbers
