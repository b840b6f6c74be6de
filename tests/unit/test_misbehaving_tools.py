"""Misbehaving tools next to a correct one: they are disabled and named, and it has its results.

Each passes through all steps of a run: a pipeline, its state in another one, results that are
stored, read and printed.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pasta.plugins import find_tools
from pasta.processors import objects
from pasta.processors.filter import Filter
from pasta.report.text import text_report
from pasta.run.directory import RunDirectory
from pasta.run.results import read_results, read_table
from pasta.runtime.limits import failures_of, store_results, tool_call
from pasta.runtime.pipeline import Pipeline
from pasta.table import Figure, Table
from pasta.testing import Events
from pasta.tool import Finding, Result, Tool
from tests.support.examples import examples

TIMEOUT_MS = 300
GOOD = find_tools("kernel_freq")[0]
FINE = Result(summary="fine")


def events() -> Events:
    made = Events()
    made.add("process_start", source="refacc", version="1", pid=4242)
    made.alloc(0x1000, 4096)
    for name in ("a", "b", "a"):
        made.complete(made.launch(name), 10, 20)
    made.free(0x1000)
    return made


@dataclass(frozen=True)
class Store:
    """Outcome of a run."""

    run: RunDirectory
    failures: dict[str, dict[str, str]]
    log: str

    def kernels(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = read_table(
            self.run.results, "kernel_freq", "kernels"
        ).to_pylist()
        return rows


def run_beside(*bad: type[Tool], place: Path, hand_over: bool = True) -> Store:
    """Runs tools with kernel_freq between them, and stores the results."""
    kinds = [*bad[:1], GOOD, *bad[1:]]

    def limit() -> Any:
        return tool_call(TIMEOUT_MS)

    def made() -> list[Tool]:
        return [kind() for kind in kinds]

    stream = events()
    pipeline = Pipeline(Filter(), made(), stream.context(), limit if not hand_over else nullcontext)
    first, second = stream.batches([4])
    pipeline.feed(first)
    if hand_over:
        pipeline = Pipeline.restore(pipeline.state(), made(), stream.context(), limit)
    pipeline.feed(second)
    run, log = RunDirectory.create(place), []
    store_results(run, pipeline, ["refacc"], TIMEOUT_MS, log.append)
    failures = failures_of(pipeline)
    manifest = {
        "command": ["x"], "host": "h", "pid": 1, "devices": {}, "sources": {}, "observed_ns": 1,
        "start": {"realtime_ns": 1, "monotonic_ns": 1}, "ended": {"text": "ended"},
        "tools": pipeline.names, "failures": failures, "warnings": [],
    }  # fmt: skip
    run.write_manifest(manifest)
    text_report(run)
    return Store(run, failures, "\n".join(log))


def bad(**attributes: Any) -> type[Tool]:
    """A tool with these attributes, and a valid result unless they override it."""
    return type("Bad", (Tool,), {"result": lambda self: FINE, **attributes})


def raising(error: BaseException) -> Callable[..., Any]:
    def method(self: Tool, *arguments: Any) -> Any:
        raise error

    return method


def with_state(**state: Any) -> Callable[[Tool], None]:
    return lambda self: vars(self).update(state)


def giving(**result: Any) -> Callable[[Tool], Result]:
    return lambda self: Result(**{"summary": "", **result})


def table(**columns: Any) -> Callable[[Tool], Result]:
    return lambda self: Result("", {"t": Table(columns)})


def recursing(self: Tool, *arguments: Any) -> Any:
    return recursing(self, *arguments)


def endless(self: Tool, *arguments: Any) -> Any:
    while True:
        pass


def kills_text(*_: Any) -> str:
    raise RuntimeError("no text either")


class Unprintable(Exception):
    """An exception whose str() fails."""

    __str__ = __repr__ = kills_text  # type: ignore[assignment]


class Unpicklable:
    """Cannot be pickled or unpickled."""

    def __reduce__(self) -> Any:
        raise RuntimeError("not picklable")


class Unreadable:
    """Can be pickled but not unpickled."""

    def __reduce__(self) -> Any:
        return int, ("not a number",)


def finding(**values: Any) -> Callable[[Tool], Result]:
    usual: dict[str, Any] = {"what": "w", "where": "x", "evidence": "e", "remedy": "r"}
    return lambda self: Result("", findings=[Finding(**{**usual, **values})])


def deletes_from_context(self: Tool) -> None:
    del self.context.strings


def empties_batch(self: Tool, batch: Any) -> None:
    batch.records.clear()


def writes_into_batch(self: Tool, launches: Any) -> None:
    launches["name"] = 0


WRITING = "writing its result"
#: The fault, the tool class's attributes, and where it fails; None: it works nevertheless.
CASES: dict[str, tuple[Mapping[str, Any], str | None]] = {
    # instance attributes instead of the class's
    "own name": ({"start": with_state(name={})}, None),
    "own kinds": ({"start": with_state(kinds={}, handlers=5, wants=1, uses=2)}, None),
    "own needs": ({"start": with_state(needs=3, needed=4, processors=5)}, None),
    "own maps": ({"start": with_state(maps=1, probes=2, options=3, summary_line=4)}, None),
    "no context": ({"start": with_state(context=None)}, None),
    "result is no method": ({"start": with_state(result=5)}, "result"),
    "needs fail": ({"needed": classmethod(raising(ValueError("x")))}, "loading"),
    "handlers fail": ({"handlers": classmethod(raising(ValueError("x")))}, "loading"),
    "kinds fail": ({"kinds": classmethod(raising(SystemExit(3)))}, "loading"),
    "context cannot be set": ({"context": property(lambda self: None)}, "loading"),
    "uses what is not": ({"uses": ("nothing",)}, WRITING),
    "uses no names": ({"uses": 5}, WRITING),
    # raises
    "exits": ({"on_launches": raising(SystemExit(0))}, "on_launches"),
    "interrupts": ({"on_launches": raising(KeyboardInterrupt())}, "on_launches"),
    "generator exit": ({"on_launches": raising(GeneratorExit())}, "on_launches"),
    "no memory": ({"on_launches": raising(MemoryError())}, "on_launches"),
    "no text": ({"on_launches": raising(Unprintable())}, "on_launches"),
    "odd text": ({"result": raising(ValueError("\udc80\x1b[31m\n" * 9999))}, "result"),
    "recursion": ({"on_launches": recursing}, "on_launches"),
    "endless": ({"result": endless}, "result"),
    "abstract": ({"result": Tool.result}, "result"),
    # its state
    "not picklable": ({"start": with_state(kept=Unpicklable())}, "pickling"),
    "a lambda": ({"start": with_state(kept=lambda: None)}, "pickling"),
    "a lock": ({"start": with_state(kept=threading.Lock())}, "pickling"),
    "context in its state": ({"start": lambda self: setattr(self, "kept", self.context)},
                             "pickling"),
    "not readable": ({"start": with_state(kept=Unreadable())}, "unpickling"),
    "getstate raises": ({"__getstate__": raising(SystemExit(1))}, "pickling"),
    "getstate is none": ({"__getstate__": lambda self: None}, "unpickling"),
    "setstate raises": ({"__setstate__": raising(KeyboardInterrupt())}, "unpickling"),
    # its arguments
    "writes into batches": ({"on_launches": writes_into_batch}, "on_launches"),
    "empties batches": ({"on_batch": empties_batch}, "on_batch"),
    "deletes from the context": ({"start": deletes_from_context}, "start"),
    "replaces in the context": (
        {"start": lambda self: setattr(self.context, "strings", {})}, "start"),
    # the process
    "leaves": ({"on_launches": lambda self, _: os.chdir("/")}, None),
    "takes streams": ({"on_launches": lambda self, _: setattr(sys, "stderr", None)}, None),
    "takes signals": (
        {"on_launches": lambda self, _: signal.signal(signal.SIGTERM, signal.SIG_IGN)}, None),
    "makes errors of warnings": (
        {"on_launches": lambda self, _: (np.seterr(all="raise"),
                                         warnings.simplefilter("error"))[:0]}, None),
    "starts threads": (
        {"on_launches": lambda self, _: threading.Thread(target=lambda: None).start()}, None),
    # results
    "no result": ({"result": lambda self: None}, "result"),
    "a class": ({"result": lambda self: Result}, "result"),
    "summary is no text": ({"result": giving(summary=None)}, WRITING),
    "tables are a list": ({"result": giving(tables=["x"])}, WRITING),
    "no table": ({"result": giving(tables={"x": {"a": [1]}})}, WRITING),
    "objects": ({"result": table(a=[object()])}, WRITING),
    "mixed": ({"result": table(a=[1, "x", 2.5])}, WRITING),
    "sets": ({"result": table(a=[{1}, {2}])}, None),
    "huge integers": ({"result": table(a=[10**40])}, WRITING),
    "complex": ({"result": table(a=[1j])}, WRITING),
    "no columns": ({"result": giving(tables={"t": Table({})})}, None),
    "0-d": ({"result": table(a=np.array(3))}, "result"),
    "a generator": ({"result": table(a=(n for n in range(3)))}, "result"),
    "column name": ({"result": lambda self: Result("", {"t": Table({5: [1]})})}, WRITING),
    "shown": ({"result": lambda self: Result("", {"t": Table({"a": [1]}, shown="x")})}, WRITING),
    "title": ({"result": lambda self: Result("", {"t": Table({"a": [1]}, title=5)})}, WRITING),
    "not finite": ({"result": table(a=[float("nan"), float("inf")])}, None),
    "lists": ({"result": table(a=[[1, 2], [3]])}, None),
    "table name": ({"result": giving(tables={"../../x": Table({"a": [1]})})}, WRITING),
    "empty name": ({"result": giving(tables={"": Table({"a": [1]})})}, WRITING),
    "file name": ({"result": giving(files={"/tmp/x": lambda file: None})}, WRITING),
    "file of PASTA's": ({"result": giving(files={"result.json": lambda file: None})}, WRITING),
    "figure name": (
        {"result": giving(figures={"a/b": Figure("bar", "", [1], {"y": [1]})})}, WRITING),
    "no figure": ({"result": giving(figures={"a": 5})}, WRITING),
    "figure of objects": (
        {"result": giving(figures={"a": Figure("bar", "", [1], {"y": [object()]})})}, WRITING),
    "no file": ({"result": giving(files={"x": 5})}, WRITING),
    "no such file": ({"result": giving(files={"x": Path("/nowhere/x")})}, WRITING),
    "file exits": ({"result": giving(files={"x": lambda file: sys.exit(3)})}, WRITING),
    "no finding": ({"result": giving(findings=["x"])}, WRITING),
    "findings are none": ({"result": giving(findings=None)}, WRITING),
    "gain is text": ({"result": finding(gain="high")}, WRITING),
    "confidence": ({"result": finding(confidence="sure")}, WRITING),
    "evidence is an object": ({"result": finding(evidence=object())}, WRITING),
    "notes": ({"result": giving(notes=5)}, WRITING),
    "notes of objects": ({"result": giving(notes=[object()])}, WRITING),
}  # fmt: skip
#: Faults that are only detected when a state is handed over.
MOVED = ("pickling", "unpickling")


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return run_beside(place=tmp_path_factory.mktemp("alone")).kernels()


@pytest.mark.parametrize("case", CASES)
def test_failing_tool_does_not_affect_others(
    case: str, tmp_path: Path, expected: list[dict[str, Any]]
) -> None:
    attributes, where = CASES[case]
    directory, streams = os.getcwd(), (sys.stdout, sys.stderr)
    done = run_beside(bad(**attributes), place=tmp_path, hand_over=where in MOVED)
    assert done.kernels() == expected
    assert {name: failure["where"] for name, failure in done.failures.items()} == (
        {} if where is None else {"bad": where}
    )
    stored = [each.name for each in read_results(done.run.results)]
    assert stored == (["bad", "kernel_freq"] if where is None else ["kernel_freq"])
    assert not list(tmp_path.glob(".*")), "nothing half-written stays"
    if where is not None:
        reason = done.failures["bad"]["reason"]
        assert reason and "\n" not in reason and len(reason) < 1000
        assert f"tool bad failed in {where}:" in done.log
        json.dumps(done.failures)
    assert (os.getcwd(), (sys.stdout, sys.stderr)) == (directory, streams)
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    assert np.geterr()["divide"] == "warn"


A_FINDING = {"what": "w", "where": "k", "evidence": "e", "remedy": "r"}


@pytest.mark.parametrize(
    ("result", "reason"),
    [
        ({"tables": Table({"a": [1]})}, "tables must be a dictionary: each name with a pas"),
        ({"tables": {"x": {"a": [1]}}}, "table x must be a pasta.tool.Table, not dict"),
        ({"tables": {"x": Table({"a": [1]}, units={"a": "MB"})}},
         "table x: 'MB' of a is not a unit: bytes, ns, address, count, share"),
        ({"tables": {"x": Table({"a": [1]}, shown=-1)}}, "x.parquet: cannot be read (pasta.layout"),
        ({"figures": [Figure("bar", "", [1], {"y": [1]})]}, "figures must be a dictionary: each"),
        ({"figures": {"f": Figure("pie", "", [1], {"y": [1]})}},
         "result.json: figures.f.kind: expected one of line, step, bar, area"),
        ({"files": {"a.txt": "text"}}, "file a.txt must be a function that writes to an open bin"),
        ({"findings": Finding(**A_FINDING)}, "findings must be a list of pasta.tool.Finding, no"),
        ({"findings": [Finding(**A_FINDING, confidence="sure")]},
         "result.json: findings.0.confidence: expected one of high, medium, low"),
        ({"notes": "one"}, "notes must be a list of str, not str"),
    ],
)  # fmt: skip
def test_reasons_name_the_part_of_the_result(
    result: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    done = run_beside(bad(result=giving(**result)), place=tmp_path, hand_over=False)
    assert done.failures["bad"]["reason"].partition(": ")[2].startswith(reason)


@examples(15)
@given(cases=st.lists(st.sampled_from(sorted(CASES)), min_size=2, max_size=5, unique=True))
def test_several_tools_fail(cases: list[str], expected: list[dict[str, Any]]) -> None:
    kinds = []
    for number, case in enumerate(cases):
        attributes, _ = CASES[case]
        kinds.append(type(f"Bad{number}", (Tool,), {"result": lambda self: FINE, **attributes}))
    with tempfile.TemporaryDirectory() as place:
        done = run_beside(*kinds, place=Path(place))
        assert done.kernels() == expected
        failing = {f"bad{number}" for number, case in enumerate(cases) if CASES[case][1]}
        assert failing == set(done.failures)


def test_failing_processor_disables_dependent_tools(
    tmp_path: Path, expected: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: Any, batch: Any) -> None:
        raise IndexError("no such object")

    monkeypatch.setattr(objects.ObjectTable, "feed", fail)
    needing = bad(needs=("objects",))
    done = run_beside(needing, place=tmp_path, hand_over=False)
    assert done.kernels() == expected
    (failure,) = done.failures.values()
    assert failure["where"] == "PASTA's own objects"
    assert failure["reason"] == "IndexError: no such object"


@pytest.mark.parametrize("name", ["../x", "", "a/b", 5, {}, "x" * 101, "a\nb", ".hidden"])
def test_tool_names_are_plain(name: Any) -> None:
    from pasta.errors import ToolError

    with pytest.raises(ToolError, match="the tool name"):
        bad(name=name)
