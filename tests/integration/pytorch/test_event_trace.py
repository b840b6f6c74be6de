"""event_trace compared with the trace of torch.profiler for the same program."""

from __future__ import annotations

import gzip
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.support.pytorch import native

PROGRAM = """
import sys, torch
from torch import nn
net = nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
x, index = torch.randn(4, 16), torch.arange(3)
def step():
    with torch.profiler.record_function("my step"):
        optimizer.zero_grad()
        net(x).sum().backward()
        optimizer.step()
        torch.cat([x, x])
        x.index_select(0, index)
        x.half() + x.half()
step()
if len(sys.argv) > 1:
    with torch.profiler.profile(
        record_shapes=True, profile_memory=True, with_stack=True, with_modules=True
    ) as profile:
        step()
        step()
    profile.export_chrome_trace(sys.argv[1])
else:
    import pasta
    pasta.start()
    step()
    step()
    pasta.stop()
"""

Event = dict[str, Any]


@pytest.fixture(scope="module")
def traces(tmp_path_factory) -> tuple[Event, Event]:
    """Traces of a program by torch and by PASTA."""
    from tests.support.preload import Preload

    directory = tmp_path_factory.mktemp("traces")
    program = directory / "program.py"
    program.write_text(PROGRAM)
    native(sys.executable, program, directory / "torch.json")
    options = ("-c", "event_trace", "--profile-from-start=off")
    done = Preload(directory)(sys.executable, program, options=options)
    assert done.exit_status == 0, done.stderr
    written: Path = done.run.path / "results" / "event_trace" / "trace.json.gz"
    ours: Event = json.loads(gzip.decompress(written.read_bytes()))
    theirs: Event = json.loads((directory / "torch.json").read_bytes())
    return theirs, ours


def shapes(trace: Event) -> dict[tuple[str, ...], dict[str, set[str]]]:
    """Types of the fields and arguments of each sort of event."""
    found: dict[tuple[str, ...], dict[str, set[str]]] = {}
    for event in trace["traceEvents"]:
        sort = (event["ph"], event.get("cat", event["name"]))
        fields = found.setdefault(sort, {})
        arguments = {f"args.{name}": value for name, value in event.get("args", {}).items()}
        for name, value in {**event, **arguments}.items():
            fields.setdefault(name, set()).add(type(value).__name__.replace("int", "float"))
    return found


def of(trace: Event, category: str) -> list[Event]:
    events = [each for each in trace["traceEvents"] if each.get("cat") == category]
    return sorted(events, key=lambda event: event["ts"])


#: Fields written by torch that PASTA cannot know, or that have no meaning without torch's profiler.
UNKNOWN = {"args.Concrete Inputs", "args.Record function id", "args.Ev Idx", "args.finished"}
#: Fields that torch writes only in some cases: stacks and modules of TorchScript, which do not
#: occur here.
MORE = {"args.Call stack", "args.Module Hierarchy"}


def test_events_have_the_format_of_torch(traces: tuple[Event, Event]) -> None:
    theirs, ours = map(shapes, traces)
    sorts = {
        ("X", "cpu_op"), ("X", "user_annotation"), ("i", "cpu_instant_event"), ("s", "fwdbwd"),
        ("f", "fwdbwd"), ("M", "process_name"), ("M", "process_labels"), ("M", "thread_name"),
        ("M", "process_sort_index"), ("M", "thread_sort_index"),
    }  # fmt: skip
    assert sorts <= theirs.keys() & ours.keys()
    ours["i", "cpu_instant_event"] = shapes(
        {"traceEvents": [each for each in traces[1]["traceEvents"] if each["name"] == "[memory]"]}
    )["i", "cpu_instant_event"]
    for sort in sorts:
        assert theirs[sort].keys() - ours[sort].keys() <= UNKNOWN, sort
        assert ours[sort].keys() - theirs[sort].keys() <= MORE, sort
        for name in theirs[sort].keys() & ours[sort].keys():
            assert ours[sort][name] <= theirs[sort][name], (sort, name)
    extra = {"traceName", "host_name", "trace_id"}
    assert traces[0].keys() - traces[1].keys() == extra
    for name in traces[0].keys() - extra:
        assert type(traces[0][name]) is type(traces[1][name]), name
    assert traces[0]["schemaVersion"] == traces[1]["schemaVersion"]
    assert traces[0]["displayTimeUnit"] == traces[1]["displayTimeUnit"]


def test_operators_match_torch(traces: tuple[Event, Event]) -> None:
    def summary(trace: Event) -> Counter[tuple[Any, ...]]:
        """Names, numbers (from 0) and tensors: torch also has entries for other arguments."""
        operators = of(trace, "cpu_op")
        numbers = [each["args"].get("Sequence number") for each in operators]
        first = min(number for number in numbers if number is not None)
        found: Counter[tuple[Any, ...]] = Counter()
        for each in operators:
            arguments = each["args"]
            number = arguments.get("Sequence number")
            taken = [
                (type, str(dims), str(strides))
                for type, dims, strides in zip(
                    arguments.get("Input type", ()), arguments.get("Input Dims", ()),
                    arguments.get("Input Strides", ()), strict=True,
                )
                if type not in ("Scalar", "ScalarList", "TensorList", "")
            ]  # fmt: skip
            if "TensorList" in arguments.get("Input type", ()) or each["name"] == "aten::cat":
                taken = []
            number = None if number is None else number - first
            of_gradient = bool(arguments.get("Fwd thread id"))
            found[(each["name"], number, of_gradient, *taken)] += 1
        return found

    theirs, ours = map(summary, traces)
    assert ours == theirs
    (cat, _) = (each["args"] for each in of(traces[1], "cpu_op") if each["name"] == "aten::cat")
    assert cat["Input Dims"] == [[4, 16], [4, 16]]


def test_slices_nest_as_in_torch(traces: tuple[Event, Event]) -> None:
    def paths(trace: Event) -> Counter[tuple[str, ...]]:
        found: Counter[tuple[str, ...]] = Counter()
        open_: list[tuple[float, str]] = []
        for each in sorted(
            of(trace, "cpu_op") + of(trace, "user_annotation"),
            key=lambda event: (event["ts"], -event["dur"]),
        ):
            while open_ and open_[-1][0] < each["ts"] + each["dur"]:
                open_.pop()
            open_.append((each["ts"] + each["dur"], each["name"]))
            found[tuple(name for _, name in open_)] += 1
        return found

    theirs, ours = map(paths, traces)
    assert ours == theirs
    assert any(path[:2] == ("my step", "aten::linear") for path in ours)


def test_gradients_are_linked_as_in_torch(traces: tuple[Event, Event]) -> None:
    def links(trace: Event) -> Counter[tuple[str, str]]:
        """Innermost operators at the start of each flow event, by the flow's id."""
        begun = {each["ts"]: each["name"] for each in of(trace, "cpu_op")}
        ends: dict[int, dict[str, str]] = {}
        for each in of(trace, "fwdbwd"):
            ends.setdefault(each["id"], {})[each["ph"]] = begun[each["ts"]]
        return Counter((each["s"], each["f"]) for each in ends.values())

    theirs, ours = map(links, traces)
    assert ours == theirs
    assert ("aten::addmm", "AddmmBackward0") in ours


def test_memory_matches_torch(traces: tuple[Event, Event]) -> None:
    def sizes(trace: Event) -> Counter[int]:
        summary = (
            each["args"] for each in of(trace, "cpu_instant_event") if "Addr" in each["args"]
        )
        return Counter(each["Bytes"] for each in summary if each["Bytes"] > 0)

    theirs, ours = map(sizes, traces)
    assert ours == theirs


def test_lines_and_modules(traces: tuple[Event, Event]) -> None:
    operators = [each for each in of(traces[1], "cpu_op") if each["name"] == "aten::linear"]
    assert {each["args"]["Module Hierarchy"] for each in operators} == {
        "Sequential.0 (Linear)", "Sequential.2 (Linear)",
    }  # fmt: skip
    assert all("program.py(10): step" in each["args"]["Call stack"] for each in operators)
