"""Tensors: categories by use, live tensors at the peak, lifetimes."""

from __future__ import annotations

from typing import Any

import pytest

from pasta.plugins import find_tools
from pasta.testing import Events, run_tool
from pasta.tool import Result
from tests.support.allocators import allocating
from tests.support.streams import training_run

(Tensors,) = find_tools("tensors")
W, G, S, X, H, T = (0x10_0000 * number for number in range(1, 7))


def training_step() -> Events:
    """A linear layer: weight, input, hidden value, gradient, optimizer state, a temporary."""
    events = Events()
    events.frames(1, ("/my/train.py", "<module>", 5))
    events.operator("aten::empty", stack=1)
    events.tensor_alloc(W, 4096)
    events.tensor(1, W, 4000, "10,100")
    events.operator_end(outputs=[1])
    events.role(W, "parameter", "fc.weight")
    events.operator("aten::randn", stack=1)
    events.tensor_alloc(X, 512)
    events.tensor(2, X, 400, "100")
    events.operator_end(outputs=[2])
    events.operator("aten::mm", module="Net.fc (Linear)", sequence=3, inputs=[1, 2])
    events.tensor_alloc(T, 1024)
    events.tensor_alloc(H, 2048)
    events.tensor(3, H, 2048, "512")
    events.tensor_free(T)
    events.operator_end(outputs=[3])
    backward = {"thread": 2, "framework_thread": 2}
    events.operator("MmBackward0", forward_thread=1, scope=1, sequence=3, inputs=[3], **backward)
    events.tensor_alloc(G, 4096, **backward_thread(backward))
    events.tensor(4, G, 4096, "10,100", thread=2)
    events.operator_end(outputs=[4], thread=2)
    events.tensor_free(H, thread=2)
    events.operator("torch::autograd::AccumulateGrad", scope=1, inputs=[4], **backward)
    events.operator_end(thread=2)
    events.push("Optimizer.step#Adam.step", domain="torch")
    events.operator("aten::zeros")
    events.tensor_alloc(S, 4096)
    events.tensor(5, S, 4096, "10,100")
    events.operator_end(outputs=[5])
    events.pop(domain="torch")
    events.role(S, "optimizer_state", "exp_avg")
    return events


def backward_thread(fields: dict[str, int]) -> dict[str, int]:
    return {"thread": fields["thread"]}


def by(result: Result, table: str, column: str) -> dict[Any, dict[str, Any]]:
    return {row[column]: row for row in result.tables[table].rows()}


def test_categories_follow_use() -> None:
    result = run_tool(Tensors, training_step())
    categories = by(result, "categories", "category")
    allocated = {name: row["allocated"] for name, row in categories.items()}
    assert allocated == {
        "parameter": 4096, "gradient": 4096, "optimizer state": 4096, "input": 512,
        "activation": 2048, "workspace": 1024,
    }  # fmt: skip
    assert categories["parameter"]["rounding"] == 96


def test_inputs_that_gradients_need_stay_inputs_and_losses_are_activations() -> None:
    events = training_step()
    events.operator("aten::mse_loss", sequence=4, inputs=[3])
    events.tensor_alloc(T, 64)
    events.tensor(6, T, 64, "16")
    events.operator_end(outputs=[6])
    events.operator(
        "MseLossBackward0", thread=2, framework_thread=2, forward_thread=1, scope=1, sequence=4,
        inputs=[6, 2],
    )  # fmt: skip
    events.operator_end(thread=2)
    patterns = by(run_tool(Tensors, events), "patterns", "shape")
    assert patterns["100"]["category"] == "input"
    assert patterns["16"]["category"] == "activation"


@pytest.mark.parametrize("splits", [(), range(1, 14)])
def test_labels_read_only_by_the_loss_are_inputs(splits: Any) -> None:
    events = Events()
    for step in range(2):
        events.operator("aten::randint")
        events.tensor_alloc(X, 512)
        events.tensor(1, X, 512, "64")
        events.operator_end(outputs=[1])
        events.operator("aten::mse_loss", sequence=step, inputs=[1])
        events.operator("aten::empty", 2)
        events.tensor_alloc(H, 64)
        events.operator_end(2)
        events.tensor(2, H, 64, "16")
        events.operator_end(outputs=[2])
        backward = {"framework_thread": 1, "forward_thread": 1, "scope": 1, "sequence": step}
        events.operator("aten::ones_like")  # the gradient of the loss
        events.tensor_alloc(G, 128)
        events.tensor(3, G, 128, "32")
        events.operator_end(outputs=[3])
        events.operator("MseLossBackward0", inputs=[1, 2, 3], **backward)
        events.operator_end()
        events.tensor_free(G)
        events.tensor_free(X)
        events.tensor_free(H)
    patterns = by(run_tool(Tensors, events, splits=splits), "patterns", "shape")
    found = {shape: (row["category"], row["allocations"]) for shape, row in patterns.items()}
    assert found == {"64": ("input", 2), "16": ("activation", 2), "32": ("temporary", 2)}


def test_live_tensors_at_the_peak() -> None:
    events = training_step()
    result = run_tool(Tensors, events)
    # weight, input, gradient and state: the hidden value is freed before the state is allocated
    assert "device 0: peak of 12.50 KiB in 4 tensors" in result.summary
    peak = by(result, "peak", "category")
    assert {name: row["bytes"] for name, row in peak.items()} == {
        "parameter": 4096, "gradient": 4096, "optimizer state": 4096, "input": 512,
    }  # fmt: skip
    weight, gradient = peak["parameter"], peak["gradient"]
    assert (weight["name"], weight["shape"], weight["dtype"]) == ("fc.weight", "10,100", "Float")
    assert (weight["operator"], weight["line"]) == ("aten::empty", "train.py:5 <module>")
    assert (gradient["operator"], gradient["module"]) == ("MmBackward0", "Net.fc (Linear)")
    assert peak["optimizer state"]["name"] == "exp_avg"
    assert sum(row["share"] for row in peak.values()) == pytest.approx(1)


def test_a_later_higher_peak_replaces_the_first() -> None:
    events = training_step()
    events.tensor_free(G, thread=2)
    events.tensor_alloc(T, 100)
    events.tensor_free(T)
    assert "peak of 12.50 KiB in 4 tensors" in run_tool(Tensors, events).summary
    events.tensor_alloc(T, 8192)
    result = run_tool(Tensors, events)
    assert "peak of 16.50 KiB in 4 tensors" in result.summary
    assert "gradient" not in by(result, "peak", "category")


def test_lifetimes_and_read_counts() -> None:
    events = Events(step=1000)
    for _ in range(3):
        events.operator("aten::relu")
        events.tensor_alloc(T, 256)
        events.tensor(1, T, 256, "64")
        events.operator_end(outputs=[1])
        for _ in range(2):
            events.operator("aten::sum", inputs=[1])
            events.operator_end()
        events.tensor_free(T)
    (pattern,) = run_tool(Tensors, events).tables["patterns"].rows()
    assert (pattern["allocations"], pattern["bytes"]) == (3, 768)
    assert (pattern["lifetime"], pattern["reads"]) == (7000, 2)


def test_tensor_ids_are_reused() -> None:
    events = Events()
    events.tensor_alloc(T, 64)
    events.tensor_alloc(H, 128)
    events.tensor(1, T, 64, "16")
    events.operator("a", inputs=[1])
    events.operator_end()
    events.tensor(1, H, 128, "32")
    events.operator("b", inputs=[1])
    events.operator_end()
    events.operator("b", inputs=[1])
    events.operator_end()
    rows = by(run_tool(Tensors, events), "peak", "shape")
    assert (rows["16"]["reads"], rows["32"]["reads"]) == (1, 2)


def test_operator_with_more_tensors_than_a_record_holds() -> None:
    events = Events()
    for number in range(24):
        events.tensor_alloc(0x1000 * (number + 1), 64)
        events.tensor(number + 1, 0x1000 * (number + 1), 64, str(number))
    for begin in (16, 20):
        events.add("operator_tensors", role=1, count=4, tensor=tuple(range(begin + 1, begin + 5)))
    events.operator("aten::_foreach_add_", inputs=range(1, 17))
    events.operator_end()
    rows = run_tool(Tensors, events).tables["peak"].rows()
    assert [row["reads"] for row in rows] == [1] * 24


def test_host_and_device_memory_are_separate() -> None:
    events = Events()
    events.tensor_alloc(0x1000, 100, "host", device=-1)
    events.tensor_alloc(0x1000_0000, 200, device=0, allocated=200, reserved=1 << 21)
    events.tensor_alloc(0x2000_0000, 300, device=1)
    summary = run_tool(Tensors, events).summary
    assert "host: peak of 100 B in 1 tensor " in summary
    assert "device 0: peak of 200 B in 1 tensor " in summary
    assert "2.00 MiB reserved by the allocator; device 1: peak of 300 B" in summary


def test_reserved_bytes_at_a_peak_without_totals() -> None:
    summary = run_tool(Tensors, allocating(dense=True)).summary
    assert "peak of 950 B in 3 tensors " in summary
    assert "1.95 KiB reserved by the allocator" in summary
    sparse = allocating(dense=False)
    for split in range(len(sparse)):
        assert run_tool(Tensors, sparse, splits=[split]).summary == summary


def test_no_events() -> None:
    assert run_tool(Tensors, Events()).summary == "no framework tensors were recorded"


def test_memory_without_tensors_is_a_workspace() -> None:
    events = training_step()
    events.operator("aten::mm", module="Net.fc (Linear)", inputs=[1, 2])
    events.tensor_alloc(T, 1 << 20)
    events.operator_end()
    workspace = by(run_tool(Tensors, events), "peak", "category")["workspace"]
    assert (workspace["bytes"], workspace["shape"]) == (1 << 20, None)
    assert (workspace["operator"], workspace["module"]) == ("aten::mm", "Net.fc (Linear)")


def test_category_is_unknown_without_operator_tensors() -> None:
    events = Events()
    events.operator("aten::mm")
    events.tensor_alloc(T, 1024)
    events.tensor_alloc(W, 4096)
    events.operator_end()
    events.role(W, "parameter", "weight")
    rows = by(run_tool(Tensors, events), "peak", "category")
    assert {name: row["bytes"] for name, row in rows.items()} == {
        "parameter": 4096,
        "unknown": 1024,
    }


def moved(
    events: Events, source: tuple[int, int], to: tuple[int, int], shape: str, module: str = ""
) -> None:
    """`source` (id, address) becomes `to` on device 0, as in `Module.cuda()`."""
    events.operator("aten::_to_copy", module=module, inputs=[source[0]])
    events.tensor_alloc(to[1], 4096)
    events.tensor(to[0], to[1], 4096, shape)
    events.operator("aten::copy_", 2, module=module, inputs=[to[0], source[0]])
    events.operator_end(2, outputs=[to[0]])
    events.operator_end(outputs=[to[0]])


@pytest.mark.parametrize("held", ["the first", "the last"])
@pytest.mark.parametrize("splits", [(), range(1, 19)])
def test_moved_parameters_stay_parameters(held: str, splits: Any) -> None:
    events = Events()
    events.operator("aten::empty")
    events.tensor_alloc(W, 4096, "host", device=-1)
    events.tensor(1, W, 4096, "32,32")
    events.operator_end(outputs=[1])
    if held == "the first":
        events.role(W, "parameter", "weight")
    moved(events, (1, W), (2, X), "32,32")  # to another type
    events.tensor_free(W, "host", device=-1)
    moved(events, (2, X), (3, H), "32,32")  # to another device
    events.tensor_free(X)
    if held == "the last":
        events.role(H, "parameter", "fc.weight")
    categories = run_tool(Tensors, events, splits=splits).tables["categories"].rows()
    reported = [(row["device"], row["category"], row["allocations"]) for row in categories]
    assert reported == [(None, "parameter", 1), (0, "parameter", 2)]


def test_cast_buffers_of_modules_are_not_parameters() -> None:
    events = training_step()
    moved(events, (3, H), (7, T), "512", module="Net.fc (Linear)")
    moved(events, (1, W), (8, X + 4096), "10,100", module="Net.fc (Linear)")  # autocast
    peak = run_tool(Tensors, events).tables["peak"].rows()
    assert sorted(row["category"] for row in peak if row["operator"] == "aten::_to_copy") == [
        "temporary", "temporary",
    ]  # fmt: skip


def test_moved_batches_are_inputs() -> None:
    events = Events()
    for number in range(3):
        events.operator("aten::randn")
        events.tensor_alloc(X, 4096, "host", device=-1)
        events.tensor(1, X, 4096, "32,32")
        events.operator_end(outputs=[1])
        moved(events, (1, X), (2, H), "32,32")
        events.tensor_free(X, "host", device=-1)
        events.operator("aten::relu", module="Net", inputs=[2])
        events.operator_end()
        if number < 2:
            events.tensor_free(H)
    rows = run_tool(Tensors, events).tables["categories"].rows()
    assert [(row["category"], row["allocations"]) for row in rows] == [("input", 3)] * 2


def test_categories_add_up_to_the_peak() -> None:
    events = training_run()
    result = run_tool(Tensors, events)
    (timeline,) = find_tools("memory_timeline")
    peaks = run_tool(timeline, events).tables["peaks"].rows()
    expected = {
        row["device"]: row["peak"]
        for row in peaks
        if row["layer"] == "tensor" and row["memory"] == "total"
    }
    sums: dict[Any, int] = {}
    for row in result.tables["categories"].rows():
        sums[row["device"]] = sums.get(row["device"], 0) + row["at_peak"]
    assert sums == expected


# ---- findings -------------------------------------------------------------------------------


def test_dominant_category_at_the_peak_is_a_low_confidence_finding() -> None:
    events = training_step()
    options = {"least_peak": 12_800, "state_share": 0.32}
    (state,) = run_tool(Tensors, events, options=options).findings
    assert state.what == "tensors of optimizer state hold much of the peak"
    assert (state.gain, state.of, state.confidence) == (4096 / 12_800, "peak memory", "low")
    assert "4.00 KiB of 12.50 KiB in 1 tensor;" in state.evidence
    assert not run_tool(Tensors, events, options={**options, "state_share": 0.33}).findings
    assert not run_tool(Tensors, events, options={**options, "least_peak": 12_801}).findings


def test_activation_finding_names_the_line_calling_the_modules() -> None:
    events = Events()
    main = ("/my/train.py", "main", 7)
    for number, line in enumerate((10, 20, 20, 21)):
        place = X + 4096 * number
        events.frames(
            number + 1, ("/my/model.py", "block", 30), ("/my/model.py", "forward", line), main
        )
        events.operator("aten::relu", module=f"Net.{number} (Block)", stack=number + 1)
        events.tensor_alloc(place, 4096)
        events.tensor(number + 1, place, 4096, "1024")
        events.operator_end(outputs=[number + 1])
    events.operator("ReluBackward0", scope=1, inputs=[1, 2, 3, 4])
    events.operator_end()
    (found,) = run_tool(Tensors, events, options={"least_peak": 1}).findings
    assert found.where == "device 0, most by model.py:20 forward"
    assert found.remedy.startswith("model.py:20 forward: use torch.utils.checkpoint.checkpoint(")
    assert "50% of them created there" in found.evidence
    assert found.confidence == "low"


SIZE = 1 << 16


def loop(events: Events, steps: int, body: Any, *, train: bool = False) -> None:
    """Steps of a loop in train.py: a model's call at line 11, `body` with the step's number."""
    events.frames(1, ("/my/train.py", "<module>", 11))
    events.frames(2, ("/my/train.py", "<module>", 12))
    for step in range(steps):
        events.operator("aten::mm", module="Net", stack=1)
        body(step)
        events.operator_end()
        events.operator("aten::mean", stack=2)
        events.operator_end()
        if train:
            events.push("Optimizer.step#SGD.step", domain="torch")
            events.pop(domain="torch")


def growth_of(events: Events) -> list[Any]:
    found = run_tool(Tensors, events, options={"grown": 1}).findings
    return [each for each in found if "grows" in each.what]


@pytest.mark.parametrize("train", [False, True])
def test_tensors_kept_by_every_step_are_a_finding_with_their_line(train: bool) -> None:
    events = Events()
    loop(events, 40, lambda step: events.tensor_alloc(W + step * SIZE, SIZE), train=train)
    (found,) = growth_of(events)
    assert found.what == "memory grows every step: results are kept"
    assert found.where == "device 0: train.py:11 <module>"
    assert found.evidence.startswith("64.00 KiB more in each of 40 steps, in 1 tensors a step")
    assert found.remedy.startswith("train.py:11 <module>: ")
    assert (found.gain, found.confidence) == (pytest.approx(1, abs=0.05), "high")


def test_step_history_is_bounded() -> None:
    events = Events()
    loop(events, 300, lambda step: events.tensor_alloc(W + step * SIZE, SIZE))
    (found,) = growth_of(events)
    assert found.evidence.startswith("64.00 KiB more in each of 300 steps, in 1 tensors a step")


def test_kept_autograd_graph_names_the_line_of_its_last_operator() -> None:
    events = Events()
    events.frames(1, ("/my/train.py", "<module>", 11))
    events.frames(2, ("/my/train.py", "<module>", 12))
    for step in range(20):
        for line, module, bytes in ((1, "Net", SIZE), (2, "", 512)):
            events.operator("aten::mm", module=module, stack=line, sequence=2 * step + line)
            events.tensor_alloc(W + (2 * step + line) * SIZE, bytes)
            events.operator_end()
    (found,) = growth_of(events)
    assert found.what == "memory grows every step: results are kept with their graph"
    assert found.where == "device 0: train.py:12 <module>"
    assert ".detach()" in found.remedy


def cache_that_fills(events: Events, step: int) -> None:
    if step < 25:
        events.tensor_alloc(W + step * SIZE, SIZE)


def cache_of_one_tensor(events: Events, step: int) -> None:
    """Like the keys and values of generated tokens: a larger tensor replaces the previous one."""
    events.tensor_alloc(W + (step % 2 << 30), SIZE * (step + 1))
    if step:
        events.tensor_free(W + ((step + 1) % 2 << 30))


def state_of_the_first_step(events: Events, step: int) -> None:
    if step == 0:
        for number in range(100):
            events.tensor_alloc(W + number * SIZE, SIZE)


def what_is_freed(events: Events, step: int) -> None:
    events.tensor_alloc(W + step * SIZE, SIZE)
    if step:
        events.tensor_free(W + (step - 1) * SIZE)


@pytest.mark.parametrize(
    "body", [cache_that_fills, cache_of_one_tensor, state_of_the_first_step, what_is_freed]
)
def test_bounded_growth_is_not_a_finding(body: Any) -> None:
    events = Events()
    events.frames(3, ("/my/train.py", "<module>", 3))
    for number in range(50):  # a data set, before the loop
        events.operator("aten::randn", stack=3)
        events.tensor_alloc(T + (1 << 40) + number * SIZE, SIZE)
        events.operator_end()
    loop(events, 40, lambda step: body(events, step))
    assert not growth_of(events)


@pytest.mark.parametrize(("recorded", "computed"), [(True, False), (True, True), (False, False)])
def test_parameters_without_gradients_are_a_finding(recorded: bool, computed: bool) -> None:
    events = Events()
    events.frames(1, ("/my/evaluate.py", "main", 11))
    events.frames(2, ("/my/evaluate.py", "main", 12))
    for step in range(20):
        for layer in range(4):
            sequence = {"sequence": 4 * step + layer} if recorded else {}
            events.operator("aten::mm", module=f"Net.{layer}", stack=1, **sequence)
            events.tensor_alloc(W + layer * SIZE, SIZE)
            events.operator_end()
        if computed:
            backward = {"scope": 1, "forward_thread": 1, "sequence": 4 * step + 2}
            events.operator("MmBackward0", stack=2, **backward)
            events.operator_end()
        events.operator("aten::argmax", stack=2)
        events.operator_end()
        for layer in range(4):
            events.tensor_free(W + layer * SIZE)
    found = run_tool(Tensors, events, options={"grown": 1}).findings
    assert len(found) == (recorded and not computed)
    for each in found:
        assert each.what == "gradients are prepared but never computed"
        assert each.where == "device 0: evaluate.py:11 main"
        assert each.remedy == "evaluate.py:11 main: run it under torch.no_grad()"
        assert each.gain == 1
