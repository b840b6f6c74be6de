"""Operators: nesting, links from gradients, times, launches and memory known from arithmetic."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pasta import abi
from pasta.plugins import find_tools
from pasta.processors.filter import Filter
from pasta.processors.operators import Operators as Follower
from pasta.testing import Events, run_tool
from pasta.tool import Result, Tool
from tests.support.examples import examples

(Operators,) = find_tools("operators")
STEP = 1000  # ns between events


def row(result: Result, table: str, **wanted: Any) -> dict[str, Any]:
    """The only row in which these columns have these values."""
    rows = result.tables[table].rows()
    (found,) = (each for each in rows if all(each[name] == wanted[name] for name in wanted))
    return found


def test_inclusive_and_own_time() -> None:
    events = Events(step=STEP)
    for _ in range(3):
        events.operator("outer")  # 5 steps to its end, 3 of them in the inner ones
        events.operator("inner", 2)
        events.operator_end(2)
        events.operator("inner", 2)
        events.launch("kernel")
        events.operator_end(2)
        events.operator_end(1)
    result = run_tool(Operators, events)
    outer, inner = (row(result, "operators", operator=name) for name in ("outer", "inner"))
    assert (outer["calls"], outer["host_time"], outer["own_time"]) == (3, 18 * STEP, 9 * STEP)
    assert (inner["calls"], inner["host_time"], inner["own_time"]) == (6, 9 * STEP, 9 * STEP)
    assert (outer["launches"], inner["launches"]) == (0, 3)
    # first calls are counted separately: 3 steps of the outer one, 1 of the inner one
    assert (outer["first_time"], inner["first_time"]) == (3 * STEP, STEP)
    assert (outer["share"], inner["share"]) == (6 / 15, 8 / 15)  # and one step is outside of both
    assert "9 operators, 3 of them outermost, 18.00 us of host time" in result.summary
    assert "3 launches, 100.00% of them by operators" in result.summary


def test_device_time_of_its_own_and_with_inner_operators() -> None:
    events = Events(step=STEP)
    for name, depth, time in (("outer", 1, 100), ("middle", 2, 0), ("outer", 3, 7)):
        events.operator(name, depth)
        if time:
            ordinal = events.launch("kernel")
            events.complete(ordinal, 1_000_000, 1_000_000 + time)
    for depth in (3, 2, 1):
        events.operator_end(depth)
    result = run_tool(Operators, events)
    outer, middle = (row(result, "operators", operator=name) for name in ("outer", "middle"))
    assert (outer["device_time"], outer["total_device_time"]) == (107, 107)
    assert (middle["device_time"], middle["total_device_time"]) == (None, 7)


def test_rows_are_ranked_by_device_time() -> None:
    """The first calls more, and takes more time of the host."""
    events = Events(step=STEP)
    for name, time in (("host", 1), ("host", 1), ("device", 100)):
        events.operator(name)
        ordinal = events.launch(name)
        events.operator_end(time=1_000_000 * (len(events) + (name == "host")))
        events.complete(ordinal, 1_000_000, 1_000_000 + time)
    found = [*run_tool(Operators, events).tables["operators"].rows()]
    assert [(each["operator"], each["share"]) for each in found[:2]] == [
        ("device", pytest.approx(100 / 102)),
        ("host", pytest.approx(2 / 102)),
    ]


def test_recursive_operator_counts_once() -> None:
    events = Events(step=STEP)
    for depth in (1, 2, 3):
        events.operator("again", depth)
    for depth in (3, 2, 1):
        events.operator_end(depth)
    again = row(run_tool(Operators, events), "operators", operator="again")
    assert (again["calls"], again["host_time"], again["own_time"]) == (1, 5 * STEP, 5 * STEP)


def test_gradients_inherit_module_and_line_of_the_forward_operator() -> None:
    events = Events(step=STEP)
    events.frames(7, ("/venv/site-packages/torch/nn/modules/linear.py", "forward", 3))
    events.frames(
        8, ("/venv/site-packages/torch/nn/x.py", "call", 4), ("/my/model.py", "forward", 9)
    )
    events.frames(9, ("/my/train.py", "<module>", 5))
    for step in range(2):
        events.operator("aten::linear", module="Net.fc (Linear)", stack=8, sequence=step)
        events.operator("aten::mm", 2, module="Net.fc (Linear)", sequence=step)
        events.operator_end(2)
        events.operator_end()
        # the autograd thread: the engine's enclosing operator has no link
        events.operator("engine", thread=2, framework_thread=2, stack=9)
        events.operator(
            "MmBackward0", 2, thread=2, framework_thread=2, forward_thread=1, scope=1, sequence=step
        )
        events.operator("aten::mm", 3, thread=2, framework_thread=2, sequence=1000)
        ordinal = events.launch("gemm", thread=2)
        events.complete(ordinal, 10_000_000, 10_000_400)
        for depth in (3, 2, 1):
            events.operator_end(depth, thread=2)
    result = run_tool(Operators, events)
    backward = row(result, "modules", module="Net.fc (Linear)", phase="backward")
    assert (backward["calls"], backward["launches"], backward["device_time"]) == (2, 2, 800)
    forward = row(result, "modules", module="Net.fc (Linear)", phase="forward")
    assert (forward["calls"], forward["launches"], forward["device_time"]) == (2, 0, None)
    assert (forward["gradient_time"], backward["gradient_time"]) == (800, None)
    for name in ("aten::linear", "aten::mm"):  # and called from it
        found = row(result, "operators", operator=name, phase="forward")
        assert (found["gradient_time"], found["total_device_time"]) == (800, None), name
    engine = row(result, "operators", operator="engine")
    assert (engine["gradient_time"], engine["total_device_time"]) == (None, 800)
    line = row(result, "lines", line="model.py:9 forward")
    assert (line["file"], line["launches"]) == ("/my/model.py", 2)
    assert row(result, "lines", line="train.py:5 <module>")["launches"] == 0
    assert row(result, "operators", operator="aten::mm", phase="backward")["device_time"] == 800


def test_framework_line_is_the_fallback() -> None:
    events = Events()
    events.frames(1, ("/venv/lib/python3/dist-packages/torch/nn/init.py", "ones_", 2))
    events.operator("aten::fill_", stack=1)
    events.operator_end()
    assert row(run_tool(Operators, events), "lines", line="init.py:2 ones_")["calls"] == 1


def test_optimizer_steps() -> None:
    events = Events()
    for name in ("aten::mul", "aten::add"):
        if name == "aten::add":
            events.push("Optimizer.step#SGD.step", domain="torch")
        events.operator(name)
        events.operator_end()
    events.pop(domain="torch")
    result = run_tool(Operators, events)
    phases = {row["operator"]: row["phase"] for row in result.tables["operators"].rows()}
    assert (phases["aten::mul"], phases["aten::add"]) == ("forward", "optimizer")


def test_memory_and_launches_outside_operators() -> None:
    events = Events()
    events.operator("aten::empty", thread=5)
    events.tensor_alloc(0x1000, 512, thread=5)
    events.tensor_alloc(0x2000, 100, thread=6)
    events.launch("kernel", thread=6)
    events.operator_end(thread=5)
    events.launch("kernel", thread=5)
    result = run_tool(Operators, events)
    assert row(result, "operators", operator="aten::empty")["allocated"] == 512
    nowhere = row(result, "operators", operator="(outside operators)")
    assert (nowhere["allocated"], nowhere["launches"]) == (100, 2)
    assert "0.00% of them by operators" in result.summary


def test_missing_begins_and_ends() -> None:
    events = Events(step=STEP)
    events.operator_end(4)  # never begun
    events.operator("deep", 3)  # two begins around it were lost
    events.operator_end(3)
    events.operator("first", 1)
    events.operator("second", 1)  # the first one's end was lost
    events.operator_end(1)
    events.operator("endless", 1)
    result = run_tool(Operators, events)
    for name, time in (("deep", STEP), ("first", 0), ("second", STEP), ("endless", 0)):
        assert row(result, "operators", operator=name)["host_time"] == time


def test_what_the_autograd_engine_does_around_gradients_is_of_the_backward_pass() -> None:
    """It sums the gradient of a bias in an operator that has no forward operator."""
    events = Events()
    events.operator("aten::sum")
    events.operator_end()
    events.operator("autograd::engine::evaluate_function: AddmmBackward0")
    events.operator("AddmmBackward0", 2, scope=1)
    events.operator_end(2)
    events.operator("aten::sum", 2)
    events.launch("reduce")
    events.operator_end(2)
    events.operator_end()
    rows = run_tool(Operators, events).tables["operators"].rows()
    found = {(each["operator"], each["phase"]): each["launches"] for each in rows}
    assert found["aten::sum", "forward"] == 0 and found["aten::sum", "backward"] == 1
    assert ("autograd::engine::evaluate_function: AddmmBackward0", "backward") in found


def test_no_events() -> None:
    assert run_tool(Operators, Events()).summary == "no framework operators were recorded"


# ---- against a model --------------------------------------------------------------------------


def model(
    calls: list[tuple[int, str, int]],
) -> tuple[Events, dict[tuple[str, ...], int], list[Any]]:
    """Events of calls and returns, calls by path, and the path open at each of some records."""
    events, counts = Events(), {}
    opened: dict[int, list[str]] = {}
    paths = []
    for thread, name, ends in calls:
        stack = opened.setdefault(thread, [])
        stack.append(name)
        counts[tuple(stack)] = counts.get(tuple(stack), 0) + 1
        events.operator(name, len(stack), thread=thread)
        events.launch("kernel", thread=thread)
        paths.append(tuple(stack))
        for _ in range(min(ends, len(stack))):
            events.operator_end(len(stack), thread=thread)
            stack.pop()
    return events, counts, paths


@examples(100)
@given(
    st.lists(st.tuples(st.integers(1, 3), st.sampled_from("abc"), st.integers(0, 3)), max_size=60),
    st.lists(st.integers(1, 200), max_size=5),
)
def test_tree_matches_the_calls(calls: list[Any], splits: list[int]) -> None:
    events, counts, paths = model(calls)
    follower = Follower()
    found: list[int] = []
    for batch in events.batches([each for each in splits if each < len(events)]):
        follower.feed(batch)
        found += follower.at(batch["kernel_launch"]).tolist()
    nodes = follower.nodes

    def path(node: int) -> tuple[str, ...]:
        if not node:
            return ()
        return (*path(int(nodes["parent"][node])), events.strings[int(nodes["name"][node])])

    assert {path(node): int(nodes["calls"][node]) for node in range(1, len(nodes))} == counts
    assert [path(node) for node in found] == paths


def test_ten_thousand_contexts() -> None:
    events = Events()
    for number in range(10_000):
        events.operator("op", stack=number + 1)
        events.operator_end()
    follower = Follower()
    for batch in events.batches(range(0, 20_000, 500)):
        follower.feed(batch)
    assert len(follower.nodes) == 10_001
    assert (np.asarray(follower.nodes["calls"][1:]) == 1).all()
    assert len(set(follower.nodes["stack"].tolist())) == 10_001


@pytest.mark.parametrize("chosen", [0, 1])
def test_masks_of_descendants_and_outermost_calls(chosen: int) -> None:
    events = Events()
    for depth, name in ((1, "a"), (2, "b"), (3, "a"), (4, "c")):
        events.operator(name, depth)
    follower = Follower()
    follower.feed(events.batch())
    names = [events.strings[int(name)] for name in follower.nodes["name"]]
    of = np.asarray([name == "ab"[chosen] for name in names])
    assert follower.within(of).tolist() == [False, chosen == 0, True, True, True]
    codes = np.asarray([0, 1, 2, 1, 3])
    assert follower.first_of(codes).tolist() == [True, True, True, False, True]


def operators_of_launches(
    events: Events, *, splits: Any = (), filter: Filter | None = None
) -> dict[int, str | None]:
    """The operator of each launch by ordinal; None: none."""
    seen: dict[int, str | None] = {}

    class Seen(Tool):
        needs = ("operators",)

        def on_launches(self, launches: Any) -> None:
            nodes = self.context.operators.at(launches)
            names = self.context.operators.nodes["name"][nodes].tolist()
            for ordinal, name in zip(launches["ordinal"].tolist(), names, strict=True):
                seen[ordinal] = events.strings[name] if name else None

        def result(self) -> Result:
            return Result(summary="")

    splits = [each for each in splits if each < len(events)]
    run_tool(Seen, events, splits=splits, filter=filter)
    return seen


@pytest.mark.parametrize("there", [True, False], ids=["graph is there", "graph is gone"])
@pytest.mark.parametrize("splits", [[], [4], [6, 9], range(1, 24)], ids=str)
def test_graph_launches_belong_to_the_capturing_operators(splits: Any, there: bool) -> None:
    """Also if the handles of a graph and its nodes are reused."""
    events = Events()
    expected = []
    new = 0 if there else 0x1000  # handles in an executable whose graph was destroyed

    def capture(executable: int, **nodes: str) -> None:
        for handle, (kernel, operator) in enumerate(nodes.items(), 0x100):
            events.operator(operator)
            events.add("graph_node", graph=0x10, node=handle, name=kernel[0])
            events.operator_end()
        events.add("graph_instantiate", graph=0x10, executable=executable)

    def replay(executable: int, thread: int = 1, **launches: str | None) -> None:
        events.add("graph_launch", graph=executable, launch_id=1, upload=0, thread=thread)
        for handle, (kernel, operator) in enumerate(launches.items(), 0x100):
            events.launch(kernel[0], graph_node=handle + new, thread=thread, flags=abi.FLAG_GRAPH)
            expected.append(operator)
        events.add("graph_launch_end", graph=executable, launch_id=1, upload=0, thread=thread)

    capture(0xA, k="aten::mm", k2="aten::relu", l="aten::exp", k3="aten::tanh")
    replay(0xA, k="aten::mm", k2="aten::relu", l="aten::exp", k3="aten::tanh")
    capture(0xB, k="aten::add")
    replay(0xB, k="aten::add")
    replay(0xA, 2, k="aten::mm", k2="aten::relu", l="aten::exp", k3="aten::tanh", m=None)
    capture(0xA, k="aten::sum")  # the first one was destroyed
    replay(0xA, k="aten::sum")
    events.operator("aten::own")
    events.launch("k")
    expected.append("aten::own")
    seen = operators_of_launches(events, splits=splits)
    assert [seen[number] for number in range(len(expected))] == expected
    # also if launches before it are not among those queried
    seen = operators_of_launches(events, filter=Filter(launch_skip=2))
    assert [seen[number] for number in range(2, len(expected))] == expected[2:]


@pytest.mark.parametrize("splits", [[], [5], range(1, 24)], ids=str)
def test_kernels_named_by_operators_in_graphs_without_capture(splits: Any) -> None:
    """Kernels of the same name in two modules belong to the operator of the one that runs."""
    events = Events()
    for module in ("jit_step", "jit_other"):
        events.operator(module)
        for operator, kernel in (
            ("dot_general", "gemm_5"), ("add", "loop_3"), ("dot_general", "gemm_5"),
            ("mul", "loop_3"),
        ):  # fmt: skip
            events.operator(f"{module}/{operator}", depth=2)
            events.add("graph_node", name=kernel)
            events.operator_end(depth=2)
        events.operator_end()
    expected = {}
    for time, module in ((5000, "jit_other"), (6000, "jit_step")):
        events.operator(module, time=time)
        events.operator("command_buffer", depth=2)
        events.add("graph_launch", graph=0xA, time=time + 1, thread=1)
        for kernel, operator in (
            ("loop_3", f"{module}/add"), ("gemm_5", f"{module}/dot_general"),
            ("loop_3", f"{module}/mul"), ("library_kernel", "command_buffer"),
            ("loop_3", f"{module}/add"),
        ):  # fmt: skip
            expected[len(expected)] = operator
            events.launch(kernel, time=time + 1, thread=1, flags=abi.FLAG_GRAPH)
        events.operator_end(depth=2)
        events.operator_end()
    assert operators_of_launches(events, splits=splits) == expected


@pytest.mark.parametrize("named", [True, False], ids=["nodes are named", "they are not"])
@pytest.mark.parametrize("splits", [[], [3], range(1, 24)], ids=str)
def test_nodes_that_are_recorded_when_they_ran(splits: Any, named: bool) -> None:
    """They have the time and the thread of their graph launch, and come in any order."""
    events = Events()
    for handle, (kernel, operator) in enumerate({"k": "aten::mm", "l": "aten::exp"}.items()):
        events.operator(operator)
        events.add("graph_node", graph=0x10, node=0x100 + handle, name=kernel)
        events.operator_end()
    events.add("graph_instantiate", graph=0x10, executable=0xA)
    for time, thread, executable in ((5000, 1, 0xA), (5001, 1, 0xB), (5001, 2, 0xA)):
        events.add("graph_launch", graph=executable, time=time, thread=thread)
    events.operator("aten::later")
    expected = []
    for kernel, time, thread, operator in (
        ("l", 5001, 2, "aten::exp"), ("k", 5000, 1, "aten::mm"), ("k", 5001, 1, None),
        ("k", 5001, 2, "aten::mm"), ("l", 5000, 1, "aten::exp"),
    ):  # fmt: skip
        node = {"graph_node": 0x100 + "kl".index(kernel)} if named else {}
        if operator is None:  # of a graph that was not captured in an operator
            node = {}
        events.launch(kernel, time=time, thread=thread, flags=abi.FLAG_GRAPH, **node)
        expected.append(operator)
    events.launch("k")
    expected.append("aten::later")
    seen = operators_of_launches(events, splits=splits)
    assert [seen[number] for number in range(len(expected))] == expected


# ---- findings -------------------------------------------------------------------------------


def waiting(*, flags: int = abi.FLAG_ASYNC) -> Events:
    """11 times 1 ms in aten::item, 0.6 of it waiting, and 1 ms in aten::mm, 0.1 in its kernel."""
    events = Events(start_time=0, step=0)
    events.frames(3, ("/my/train.py", "step", 12))
    events.frames(4, ("/my/train.py", "step", 13))
    now = 1_000_000
    for _ in range(11):
        events.operator("aten::item", stack=3, time=now)
        events.copy("device_to_host", 0x1000, 0x9000, 4, time=now, flags=flags)
        events.add("sync", what=1, duration=600_000, time=now + 900_000)
        events.operator_end(time=now + 1_000_000)
        events.operator("aten::mm", stack=4, time=now + 1_000_000)
        ordinal = events.launch("gemm", time=now + 1_000_000)
        events.complete(ordinal, now, now + 100_000, time=now + 1_000_000)
        events.operator_end(time=now + 2_000_000)
        now += 2_000_000
    return events


def test_device_waits_are_counted_and_a_finding() -> None:
    events = waiting()
    result = run_tool(Operators, events)
    item = row(result, "operators", operator="aten::item")
    assert (item["waits"], item["wait_time"], item["synchronous_copies"]) == (11, 6_600_000, 0)
    (found,) = result.findings
    assert found.where == "aten::item at train.py:12 step"
    assert found.remedy.startswith("train.py:12 step: ")
    assert (found.gain, found.of) == (0.3, "host time")
    for options in ({"waits": 11}, {"wait_share": 0.31}, {"least_time": "21ms"}):
        assert not run_tool(Operators, events, options=options).findings


def test_synchronous_copy_of_a_value_includes_a_wait() -> None:
    """A 4-byte copy that takes 1 ms waits most of that time; as the device then works concurrently
    with the host, at most half of the time can be saved."""
    events = Events(start_time=0, step=0)
    events.frames(3, ("/my/train.py", "step", 12))
    for number in range(13):
        now = 1_000_000 * number + 1
        events.operator("aten::item", stack=3, time=now)
        events.copy("device_to_host", 0x1000, 0x9000, 4, time=now)
        events.operator_end(time=now + 750_000)
    (found,) = run_tool(Operators, events).findings
    assert found.what == "the host waits for the device repeatedly"
    assert "12 reads of values, 8.76 ms of 11.75 ms without start-up" in found.evidence
    assert found.gain == pytest.approx((11.75 - 8.76) / 11.75, rel=1e-3)


def test_first_calls_are_excluded_from_shares_and_findings() -> None:
    """The first call of an operator may initialise libraries for seconds."""
    events = Events(start_time=0, step=0)
    events.frames(3, ("/my/train.py", "step", 12))
    now = 1
    for number in range(20):
        took = 3_000_000_000 if number == 0 else 1_000_000
        for name in ("aten::slow", "aten::other"):
            events.operator(name, stack=3, time=now)
            events.operator_end(time=now + (took if name == "aten::slow" else 1_000_000))
            now += took if name == "aten::slow" else 1_000_000
    result = run_tool(Operators, events)
    slow = row(result, "operators", operator="aten::slow")
    assert (slow["own_time"], slow["first_time"]) == (3_019_000_000, 3_000_000_000)
    assert slow["share"] == 0.5
    assert row(result, "modules", module="(no module)")["share"] == 1.0
    assert "start-up, excluded from shares and findings: 3.00 s in 2 first calls" in result.summary
    assert not result.findings


def loading(sleep: int = 30_000_000, steps: int = 11) -> Events:
    """Steps of 2 ms in operators at line 21, after `sleep` ns and an operator at line 12."""
    events = Events(start_time=0, step=0)
    events.frames(1, ("/my/train.py", "data", 12), ("/my/train.py", "<module>", 15))
    events.frames(2, ("/site-packages/torch/x.py", "f", 1), ("/my/train.py", "<module>", 21))
    now = 1_000_000
    for _ in range(steps):
        for stack in (1, 2):
            events.operator("aten::op", stack=stack, time=now)
            events.operator_end(time=now + 1_000_000)
            now += 1_000_000
        now += sleep
    return events


def test_time_outside_operators_is_listed_by_line() -> None:
    result = run_tool(Operators, loading())
    outside = row(result, "operators", operator="(outside operators)")
    assert (outside["calls"], outside["own_time"]) == (21, 300_000_000)
    (place,) = result.tables["outside"].rows()
    assert place["between"] == "train.py:21 <module> → train.py:12 data"
    assert (place["gaps"], place["time"], place["first_time"]) == (10, 300_000_000, 30_000_000)
    (found,) = result.findings
    assert found.what == "much time is spent outside operators"
    assert found.where == "train.py:21 <module> → train.py:12 data"
    assert found.gain == pytest.approx(270 / 290)
    assert "93% of the 322.00 ms" in result.summary
    less = {"outside_share": 0.94}, {"outside_gap": "31ms"}, {"outside_gaps": 10}
    assert not any(run_tool(Operators, loading(), options=each).findings for each in less)


def test_time_with_operators_on_another_thread_is_not_a_gap() -> None:
    """The autograd thread works while the thread that called backward() waits."""
    events = Events(start_time=0, step=0)
    events.frames(1, ("/my/train.py", "<module>", 5))
    now = 1_000_000
    for _ in range(12):
        events.operator("aten::op", stack=1, time=now)
        events.operator_end(time=now + 100_000)
        events.operator("MulBackward0", thread=2, time=now + 110_000)
        events.operator_end(thread=2, time=now + 4_990_000)
        now += 5_000_000
    result = run_tool(Operators, events)
    outside = row(result, "operators", operator="(outside operators)")
    assert outside["own_time"] == 12 * 10_000 + 11 * 10_000
    assert not result.findings


def test_gaps_exclude_stopped_profiling() -> None:
    events = Events(start_time=0, step=0)
    events.frames(1, ("/my/train.py", "<module>", 5))
    for number in range(12):
        now = 100_000_000 * number + 1
        events.operator("aten::op", stack=1, time=now)
        events.operator_end(time=now + 1_000_000)
        events.add("profiling_stop", time=now + 1_000_000)
        events.add("profiling_start", time=now + 99_000_000)
    for splits in ([], range(1, len(events))):
        result = run_tool(Operators, events, splits=splits)
        assert "(outside operators)" not in [
            each["operator"] for each in result.tables["operators"].rows()
        ]


@pytest.mark.parametrize("splits", [[], range(1, 60)], ids=["one batch", "many"])
def test_waits_outside_operators_are_separate(splits: Any) -> None:
    events = Events(start_time=0, step=0)
    events.frames(1, ("/my/train.py", "<module>", 5))
    for number in range(13):
        now = 2_000_000 * number + 1
        events.operator("aten::op", stack=1, time=now)
        events.operator_end(time=now + 1_000_000)
        events.add("sync", what=1, duration=900_000, time=now + 1_900_000)
    result = run_tool(Operators, events, splits=[each for each in splits if each < len(events)])
    (place,) = result.tables["outside"].rows()
    assert (place["between"], place["wait_time"]) == ("train.py:5 <module>", 12 * 900_000)
    (found,) = result.findings
    assert found.what == "the host waits for the device repeatedly"
    assert found.where == "outside operators, train.py:5 <module>"


def test_data_loader_waits_name_the_iterating_line() -> None:
    events = Events(start_time=0, step=0)
    loader = ("/site-packages/torch/utils/data/dataloader.py", "__next__", 9)
    events.frames(1, ("/my/data.py", "__getitem__", 7), loader, ("/my/train.py", "<module>", 5))
    for number in range(12):
        events.operator("aten::op", stack=1, time=5_000_000 * number + 1)
        events.operator_end(time=5_000_000 * number + 1_000_001)
    (found,) = run_tool(Operators, events).findings
    assert found.what == "the program waits for data loading"
    assert found.where == "train.py:5 <module>, loading at data.py:7 __getitem__"
    assert found.remedy.startswith("train.py:5 <module>: let the DataLoader load")


@pytest.mark.parametrize("function", ["_try_get_data", "fetch"])
@pytest.mark.parametrize("splits", [[], range(1, 60)], ids=["one batch", "many"])
def test_samples_name_the_line_running_in_a_gap(function: str, splits: Any) -> None:
    """Here a data loader, with or without workers, that runs no operators itself."""
    events = Events(start_time=0, step=0)
    loader = ("/site-packages/torch/utils/data/dataloader.py", function, 9)
    events.frames(1, ("/my/train.py", "<module>", 8))
    events.frames(2, loader, ("/my/train.py", "<module>", 5))
    for number in range(12):
        now = 50_000_000 * number + 1
        events.operator("aten::op", stack=1, time=now)
        events.operator_end(time=now + 1_000_000)
        events.add("python_sample", stack=2, time=now + 20_000_000)
    chosen = [each for each in splits if each < len(events)]
    result = run_tool(Operators, events, splits=chosen)
    (place,) = result.tables["outside"].rows()
    assert (place["line"], place["gaps"]) == ("train.py:5 <module>", 11)
    (found,) = result.findings
    assert found.what == "the program waits for data loading"
    assert found.where == "train.py:5 <module>"
    assert "11 of 11 samples at train.py:5 <module>" in found.evidence
    assert ("num_workers=4" in found.remedy) == (function == "fetch")


@pytest.mark.parametrize("first", [20_000, 30_000_000])
def test_many_short_operators_at_a_line_are_a_finding(first: int) -> None:
    """Also if start-up, in the first gap, took longer than the longest pause."""
    events = Events(start_time=0, step=0)
    events.frames(1, ("/my/rows.py", "scaled", 5))
    now = 0
    for number in range(1102):
        events.operator("aten::mul", stack=1, time=now + 1)
        now += 20_000_000 if number == 500 else 0  # the machine pauses in an operator …
        events.operator_end(time=now + 10_001)
        now += {0: first, 700: 20_000_000}.get(number, 20_000)  # … and between two
    (found,) = run_tool(Operators, events).findings
    assert (found.what, found.where) == ("many short operators", "rows.py:5 scaled")
    assert "1,100 operators of 19.99 us each" in found.evidence
    assert found.gain == pytest.approx(0.355, abs=0.001)
    for options in ({"short": "19us"}, {"short_calls": 1101}, {"short_share": 0.36}):
        assert not run_tool(Operators, events, options=options).findings
    events.complete(events.launch("kernel"), 0, 62_000_000)  # the host waits for the device
    assert not run_tool(Operators, events).findings


def test_repeated_conversions_at_a_line_are_a_finding() -> None:
    events = Events(start_time=0, step=0)
    events.frames(1, ("/my/train.py", "step", 5))
    for number in range(12):
        events.operator("aten::to", stack=1, time=2_000_000 * number + 1)
        events.operator("aten::copy_", 2, time=2_000_000 * number + 1)
        events.operator_end(2, time=2_000_000 * number + 2_000_001)
        events.operator_end(time=2_000_000 * number + 2_000_001)
    (found,) = run_tool(Operators, events).findings
    assert found.what == "tensors are converted or copied repeatedly"
    assert (found.where, found.gain) == ("train.py:5 step", 1.0)


@pytest.mark.parametrize("again", [True, False])
def test_rebuilt_module_is_a_finding(again: bool) -> None:
    """Building one module of many parts before its first use is not."""
    events = Events(start_time=0, step=0)
    initialise = ("/site-packages/torch/nn/modules/linear.py", "reset_parameters", 9)
    events.frames(1, initialise, ("/my/train.py", "<module>", 5))
    events.frames(2, ("/my/train.py", "<module>", 6))
    now = 1
    for number in range(40):
        builds = number % 2 == 0 if again else number < 20
        fields = {"stack": 1} if builds else {"stack": 2, "module": "Net"}
        events.operator("aten::uniform_" if builds else "aten::mm", time=now, **fields)
        events.operator_end(time=now + 1_000_000)
        now += 1_000_000
    found = [each.what for each in run_tool(Operators, events).findings]
    assert found == (["a module is built repeatedly"] if again else [])
