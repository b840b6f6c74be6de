"""Probe tools in a program with a framework: results by operator and by tensor."""

from __future__ import annotations

from typing import Any

import pytest

from pasta.plugins import find_tools
from pasta.testing import Events, run_tool
from pasta.tool import Result

TOOLS = {
    name: find_tools(name)[0]
    for name in (
        "access_count", "working_set", "hotness", "coalescing", "heatmap", "mem_trace",
        "pc_dependency", "values",
    )
}  # fmt: skip
SEGMENT, W, X, H = 0x100_0000, 0x100_0000, 0x101_0000, 0x102_0000


def training(steps: int = 3) -> Events:
    """In a segment: a weight, and for each step an input and a hidden value at the same
    addresses."""
    events = Events()
    events.frames(1, ("/my/train.py", "train", 7))
    events.alloc(SEGMENT, 0x10_0000)
    events.tensor_alloc(W, 0x1000)
    events.role(W, "parameter", "fc.weight")
    for step in range(steps):
        events.operator("aten::randn", stack=1)
        events.tensor_alloc(X, 512)
        events.tensor(2, X, 512, "128")
        events.launch("fill")
        events.access("global", [X], write=True, launch=2 * step)
        events.operator_end(outputs=[2])
        events.operator("aten::linear", stack=1, module="Net.fc (Linear)", inputs=[2])
        events.operator("aten::mm", depth=2, inputs=[2])
        events.tensor_alloc(H, 1024)
        events.tensor(3, H, 1024, "256")
        events.launch("gemm")
        events.access("global", [W, W + 4, W + 256, X], launch=2 * step + 1)
        events.access("global", [H], write=True, launch=2 * step + 1)
        events.operator_end(depth=2, outputs=[3])
        events.operator_end()
        events.tensor_free(X)
        events.tensor_free(H)
    events.launch("own")
    events.access("global", [SEGMENT + 0x8_0000], launch=2 * steps)
    return events


def rows(result: Result, table: str, *columns: str) -> list[tuple[Any, ...]]:
    return [tuple(row[name] for name in columns) for row in result.tables[table].rows()]


@pytest.mark.parametrize("splits", [[], range(5, 50, 7)])
def test_accesses_by_operator_and_tensor(splits: Any) -> None:
    result = run_tool(TOOLS["access_count"], training(), splits=splits)
    assert rows(result, "operators", "operator", "module", "line", "accesses") == [
        ("aten::mm", "Net.fc (Linear)", "train.py:7 train", 15),
        ("aten::randn", None, "train.py:7 train", 3),
        ("(no operator)", None, None, 1),
    ]
    found = rows(result, "tensors", "category", "shape", "operator", "tensors", "accesses")
    assert found == [
        ("parameter", None, None, 1, 9),
        ("input", "128", "aten::randn", 3, 6),
        ("temporary", "256", "aten::mm", 3, 3),
    ]
    shares = [row["share"] for row in result.tables["tensors"].rows()]
    assert sum(shares) == pytest.approx(18 / 19)
    kernels = {row["kernel"]: row["operators"] for row in result.tables["kernels"].rows()}
    assert kernels == {"gemm": "aten::mm", "fill": "aten::randn", "own": "(no operator)"}


def test_objects_are_named_by_tensor_and_operator() -> None:
    result = run_tool(TOOLS["access_count"], training(steps=1))
    names = {row["object"]: row for row in result.tables["objects"].rows()}
    assert set(names) == {
        f"parameter fc.weight 4.00 KiB at {W:#x}",
        f"input aten::randn 512 B at {X:#x}",
        f"temporary aten::mm 1.00 KiB at {H:#x}",
        f"device 1.00 MiB at {SEGMENT:#x}",
    }
    made = names[f"temporary aten::mm 1.00 KiB at {H:#x}"]
    assert (made["memory"], made["object_shape"], made["object_module"]) == (
        "tensor", "256", "Net.fc (Linear)",
    )  # fmt: skip
    assert names[f"device 1.00 MiB at {SEGMENT:#x}"]["object_category"] is None


def test_tensors_belong_to_the_allocating_operator() -> None:
    events = Events()
    events.alloc(SEGMENT, 0x10_0000)
    events.operator("aten::relu", module="Net.relu (ReLU)")
    events.operator("aten::empty_like", depth=2)
    events.operator("aten::empty", depth=3)
    events.tensor_alloc(H, 1024)
    events.operator_end(depth=3)
    events.operator_end(depth=2)
    events.launch("k")
    events.access("global", [H])
    events.operator_end()
    result = run_tool(TOOLS["access_count"], events)
    assert rows(result, "tensors", "operator", "module") == [("aten::relu", "Net.relu (ReLU)")]


@pytest.mark.slow
def test_working_sets_by_operator_and_tensor() -> None:
    result = run_tool(TOOLS["working_set"], training())
    assert rows(result, "operators", "operator", "launches", "max", "tensors") == [
        ("aten::mm", 3, 4 * 32, 0x1000 + 512 + 1024),
        ("(no operator)", 1, 32, 0),
        ("aten::randn", 3, 32, 512),
    ]
    found = rows(result, "tensors", "category", "operator", "tensors", "touches", "total")
    assert sorted(found, key=str) == [
        ("input", "aten::randn", 3, 6, 6 * 32),
        ("parameter", None, 1, 3, 3 * 64),
        ("temporary", "aten::mm", 3, 3, 3 * 32),
    ]
    assert [row["total"] for row in result.tables["tensors"].rows()] == [192, 192, 96]


@pytest.mark.slow
def test_hot_tensors() -> None:
    result = run_tool(TOOLS["hotness"], training())
    found = rows(result, "tensors", "category", "operator", "tensors", "accesses")
    assert found == [
        ("parameter", None, 1, 9), ("input", "aten::randn", 3, 6),
        ("temporary", "aten::mm", 3, 3),
    ]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("tool", ["heatmap", "mem_trace"])
def test_traces_name_tensors(tool: str) -> None:
    result = run_tool(TOOLS[tool], training(steps=1))
    (table,) = [each for each in result.tables.values() if "object_category" in each.columns][:1]
    assert "parameter" in {row["object_category"] for row in table.rows()}


@pytest.mark.slow
def test_instructions_name_their_kernel() -> None:
    events = training()
    events.operator("aten::other")
    events.launch("gemm", entry_pc=0x100)
    events.access("global", [W], pc=0x110, launch=7)
    events.operator_end()
    result = run_tool(TOOLS["coalescing"], events)
    found = {row["kernel"]: row["operators"] for row in result.tables["instructions"].rows()}
    assert found["gemm"] == "aten::mm, aten::other"


@pytest.mark.slow
def test_no_framework_columns_without_a_framework() -> None:
    events = Events()
    events.alloc(SEGMENT, 64)
    events.launch("k")
    events.access("global", [SEGMENT])
    for name in ("access_count", "working_set", "hotness"):
        result = run_tool(TOOLS[name], events)
        assert not {"operators", "tensors"} & set(result.tables)
        assert not any("object_shape" in each.columns for each in result.tables.values())


@pytest.mark.slow
def test_dependencies_by_tensor() -> None:
    """Addresses are followed: a tensor comes after the one before it at its address."""
    result = run_tool(TOOLS["pc_dependency"], training())
    columns = ("category", "shape", "tensors", "granules", "cold", "after_launch")
    assert rows(result, "tensors", *columns) == [
        ("parameter", None, 1, 9, 3, 6),
        ("input", "128", 3, 6, 1, 5),
        ("temporary", "256", 3, 3, 1, 2),
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "value", "narrow"),
    [
        ("Float", 0x3F800000, True),
        ("Int", 100, True),
        ("Float", 100, False),
        ("Int", 1 << 30, False),
    ],
)
def test_narrower_types_of_tensors(dtype: str, value: int, narrow: bool) -> None:
    """Their own type decides what would be narrower."""
    events = Events()
    events.frames(1, ("/my/train.py", "train", 7))
    events.alloc(SEGMENT, 0x10_0000)
    events.operator("aten::randn", stack=1)
    events.tensor_alloc(X, 0x8000)
    events.tensor(2, X, 0x8000, "8192", dtype=dtype)
    events.launch("fill")
    for number in range(64):
        addresses = [X + 128 * number + 4 * lane for lane in range(32)]
        # two values, so that it is not a single one
        events.access("global", addresses, values=[value, 0] * 16, write=True)
    events.operator_end(outputs=[2])
    result = run_tool(TOOLS["values"], events, options={"zero": 0.6, "frequent_share": 0.6})
    (row,) = rows(result, "tensors", "dtype", "elements", "stored", "zeros")
    assert row == (dtype, 2048, 2048, 0.5)
    found = [each.what for each in result.findings]
    assert found == ["a narrower type can hold the values of an object"] * narrow
