"""Tensors: categories by use, what is live at the peak, lifetimes."""

from __future__ import annotations

from typing import Any

import pytest

from pasta.plugins import find_tools
from pasta.testing import Events, run_tool
from pasta.tool import Result

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


def test_categories_by_use() -> None:
    result = run_tool(Tensors, training_step())
    categories = by(result, "categories", "category")
    allocated = {name: row["allocated"] for name, row in categories.items()}
    assert allocated == {
        "parameter": 4096, "gradient": 4096, "optimizer state": 4096, "input": 512,
        "activation": 2048, "temporary": 1024,
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


def test_what_is_live_at_the_peak() -> None:
    events = training_step()
    result = run_tool(Tensors, events)
    # weight, input, gradient and state: the hidden value has gone before the state came
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


def test_lifetimes_and_reads() -> None:
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


def test_an_id_may_be_given_to_another_tensor() -> None:
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


def test_more_tensors_than_fit_an_operator() -> None:
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


def test_memory_of_the_host_and_of_devices_is_apart() -> None:
    events = Events()
    events.tensor_alloc(0x1000, 100, "host", device=-1)
    events.tensor_alloc(0x1000_0000, 200, device=0, allocated=200, reserved=1 << 21)
    events.tensor_alloc(0x2000_0000, 300, device=1)
    summary = run_tool(Tensors, events).summary
    assert "host: peak of 100 B in 1 tensors" in summary
    assert "device 0: peak of 200 B in 1 tensors" in summary
    assert "2.00 MiB reserved by the allocator; device 1: peak of 300 B" in summary


def test_nothing_was_seen() -> None:
    assert run_tool(Tensors, Events()).summary.startswith("no tensor of a framework was seen")


# ---- findings -------------------------------------------------------------------------------


def test_what_holds_the_peak_is_a_finding() -> None:
    events = training_step()
    options = {"least_peak": 12_800, "dominant": 0.32, "state_share": 0.33}
    (parameter, gradient) = run_tool(Tensors, events, options=options).findings[::-1]
    share = 4096 / 12_800
    assert (parameter.gain, parameter.of) == (share, "peak memory")
    assert parameter.where == "device 0, most by aten::empty at train.py:5 <module>"
    assert gradient.where == "device 0, most by MmBackward0 Net.fc (Linear)"
    assert "4.00 KiB of 12.50 KiB in 1 tensors" in gradient.evidence
    (state,) = run_tool(
        Tensors, events, options={**options, "dominant": 0.33, "state_share": 0.32}
    ).findings
    assert (state.what, state.gain) == ("optimizer state tensors hold much of the peak", share)
    assert not run_tool(Tensors, events, options={**options, "least_peak": 12_801}).findings
