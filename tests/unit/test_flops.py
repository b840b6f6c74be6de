"""Floating-point operations by shapes, against PyTorch's own counter where there is one."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pasta import abi
from pasta.frameworks import conventions
from pasta.frameworks.torch.flops import FORMULAS
from pasta.plugins import find_tools
from pasta.processors.batch import Batch
from pasta.processors.flops import Flops
from pasta.processors.occupancy import Devices
from pasta.processors.strings import Strings
from pasta.testing import Events, run_tool

(Operators,) = find_tools("operators")
OF = dict(FORMULAS)
Shapes = list[tuple[int, ...]]


@pytest.mark.parametrize(
    ("name", "inputs", "outputs", "expected"),
    [
        ("mm", [(3, 5), (5, 7)], [], 2 * 3 * 5 * 7),
        ("addmm", [(7,), (3, 5), (5, 7)], [], 2 * 3 * 5 * 7),
        ("bmm", [(4, 3, 5), (4, 5, 7)], [], 2 * 4 * 3 * 5 * 7),
        ("_scaled_mm", [(3, 5), (5, 7), (), ()], [], 2 * 3 * 5 * 7),
        ("convolution", [(2, 3, 8, 8), (16, 3, 3, 3)], [(2, 16, 6, 6)], 2 * 2 * 16 * 36 * 27),
        ("convolution", [(2, 4, 9), (6, 2, 3)], [(2, 6, 7)], 2 * 2 * 6 * 7 * 6),  # two groups
        # transposed: each input goes into 5 x 3 outputs
        ("convolution", [(2, 4, 9), (4, 5, 3)], [(2, 5, 11)], 2 * 2 * 4 * 9 * 15),
        (
            "convolution_backward",
            [(2, 16, 6, 6), (2, 3, 8, 8), (16, 3, 3, 3)],
            [(2, 3, 8, 8), (16, 3, 3, 3), (16,)],
            2 * 2 * 2 * 16 * 36 * 27,
        ),
        (
            "convolution_backward",  # of the first layer
            [(2, 16, 6, 6), (2, 3, 8, 8), (16, 3, 3, 3)],
            [(16, 3, 3, 3)],
            2 * 2 * 16 * 36 * 27,
        ),
        (
            "_scaled_dot_product_flash_attention",
            [(2, 4, 10, 8), (2, 4, 12, 8), (2, 4, 12, 8)],
            [],
            2 * 2 * 2 * 4 * 10 * 12 * 8,
        ),
        (
            "_scaled_dot_product_flash_attention_backward",
            [(2, 4, 10, 8), (2, 4, 10, 8), (2, 4, 12, 8), (2, 4, 12, 8)],
            [],
            5 * 2 * 2 * 4 * 10 * 12 * 8,
        ),
    ],
)
def test_formulas(name: str, inputs: Shapes, outputs: Shapes, expected: int) -> None:
    assert OF[f"aten::{name}"](inputs, outputs) == expected


def shape(sizes: tuple[int, ...]) -> str:
    return ",".join(map(str, sizes))


def product(events: Events, left: int, right: int, **fields: Any) -> None:
    events.operator("aten::linear", inputs=(left, right))
    events.operator("aten::mm", 2, inputs=(left, right), **fields)
    ordinal = events.launch("gemm")
    events.operator_end(2)
    events.operator_end()
    events.complete(ordinal, 5_000_000, 5_000_000 + 1000)


def tensors(**shapes: tuple[int, ...]) -> Events:
    events = Events()
    for number, sizes in enumerate(shapes.values(), 1):
        events.tensor(number, 4096 * number, 4096, shape(sizes))
    return events


@pytest.mark.parametrize("splits", [(), range(1, 9), (4,)])
def test_operations_belong_to_the_operator_that_computes(splits: Any) -> None:
    events = tensors(a=(30, 50), b=(50, 70))
    product(events, 1, 2)
    product(events, 1, 2)
    result = run_tool(Operators, events, splits=splits)
    rows = {row["operator"]: row for row in result.tables["operators"].rows()}
    assert (rows["aten::mm"]["gflop"], rows["aten::linear"]["gflop"]) == (2 * 210_000 / 1e9, 0)
    assert rows["aten::mm"]["gflop_rate"] == pytest.approx(2 * 210_000 / 2000)
    assert rows["aten::linear"]["gflop_rate"] is None
    assert (
        "0.00042 GFLOP in matrix products, convolutions and attention, 210 GFLOP/s"
        in result.summary
    )


def test_the_rate_of_an_operator_whose_callee_launches() -> None:
    events = tensors(x=(2, 3, 8, 8), weight=(16, 3, 3, 3), out=(2, 16, 6, 6))
    events.operator("aten::convolution", inputs=(1, 2))
    events.operator("aten::cudnn_convolution", 2, inputs=(1, 2))
    ordinal = events.launch("implicit_gemm")
    events.operator_end(2, outputs=(3,))
    events.operator_end(outputs=(3,))
    events.complete(ordinal, 5_000_000, 5_000_000 + 1000)
    table = run_tool(Operators, events).tables["operators"]
    rates = {row["operator"]: row["gflop_rate"] for row in table.rows()}
    flops = 2 * 2 * 16 * 36 * 27
    assert rates["aten::convolution"] == pytest.approx(flops / 1000)
    assert rates["aten::cudnn_convolution"] is None


def test_a_tensor_has_the_shape_that_it_had_at_the_operator() -> None:
    events = tensors(a=(2, 3), b=(3, 4))
    product(events, 1, 2)
    events.tensor(1, 4096, 4096, "10,3")  # the number is given again
    product(events, 1, 2)
    result = run_tool(Operators, events)
    (row,) = (row for row in result.tables["operators"].rows() if row["operator"] == "aten::mm")
    assert row["gflop"] == 2 * 3 * 4 * (2 + 10) / 1e9


#: Of one thread: begin or end, and which ends are lost.
ACTIONS = st.lists(
    st.tuples(st.sampled_from((1, 2)), st.sampled_from(("mm", "other", "end", "end", "lost end"))),
    max_size=60,
)


@given(actions=ACTIONS, splits=st.lists(st.integers(0, 60), max_size=4))
def test_operators_end_at_their_depth_on_their_thread(
    actions: list[tuple[int, str]], splits: list[int]
) -> None:
    """Operators of two threads nest, batches end anywhere, and a lost end leaves its depth to the
    next operator there."""
    records = {kind: np.zeros(60, abi.dtype(kind)) for kind in ("operator_begin", "operator_end")}
    lengths = dict.fromkeys(records, 0)
    depths = {1: 0, 2: 0}
    open: dict[tuple[int, int], int] = {}
    wanted: list[tuple[int, int]] = []
    for index, (thread, action) in enumerate(actions):
        begins = action in ("mm", "other")
        depth = depths[thread] = depths[thread] + begins
        if not begins and not depth:
            continue
        depths[thread] -= not begins
        if action == "lost end":
            continue
        kind = "operator_begin" if begins else "operator_end"
        at, record = lengths[kind], records[kind][lengths[kind]]
        record["index"], record["thread"], record["depth"] = index, thread, depth
        lengths[kind] += 1
        if begins:
            record["name"], record["inputs"] = 2 if action == "mm" else 3, 1
            record["tensor"][0] = index
            if action == "mm":
                open[thread, depth] = index
        elif (thread, depth) in open:
            wanted.append((at, 1000 + open.pop((thread, depth))))
    created = np.zeros(60, abi.dtype("tensor_create"))
    created["tensor"] = np.arange(60)
    created["shape"] = 1000 + np.arange(60)
    strings = Strings(lambda id: {2: "aten::mm", 3: "aten::add"}.get(id, str(id)))
    flops = Flops({"aten::mm": lambda inputs, outputs: inputs[0][0]})
    flops.feed(Batch(0, {"tensor_create": created}), np.empty(0, np.int32), strings)
    found: list[tuple[int, int]] = []
    edges = sorted({0, *splits, 60})
    for first, last in pairwise(edges):
        batch, at = {}, {}
        for kind, each in records.items():
            each = each[: lengths[kind]]
            at[kind] = np.flatnonzero((each["index"] >= first) & (each["index"] < last))
            batch[kind] = each[at[kind]]
        nodes, counts, _ = flops.feed(Batch(0, batch), at["operator_end"], strings)
        found += zip(nodes.tolist(), counts.tolist(), strict=True)
    assert sorted(found) == sorted(wanted)


def test_unknown_shapes_count_nothing() -> None:
    events = tensors(a=(2, 3), b=(3,))
    product(events, 1, 9)  # no tensor
    events.operator("aten::convolution", inputs=(1,))
    events.operator_end()
    assert "gflop" in run_tool(Operators, events).tables["operators"].hidden


def test_without_tensors_nothing_is_shown_of_operations() -> None:
    events = Events()
    events.operator("aten::mm")
    events.operator_end()
    table = run_tool(Operators, events).tables["operators"]
    assert {"gflop", "gflop_rate"} <= table.hidden


def test_the_option_asks_for_tensors() -> None:
    assert not Operators().asks_for_tensors
    assert Operators({"flops": True}).asks_for_tensors


SIZE = 1024


def products(*types: str, **device: Any) -> Any:
    """Products of square matrices of 1024 rows, one of each type, 100 us each; and 100 us of
    another operator."""
    events = Events()
    if device:
        events.device(**device)
    for number, type in enumerate(types, 1):
        events.tensor(number, 4096 * number, 4096, f"{SIZE},{SIZE}", dtype=type)
    for number in range(1, len(types) + 1):
        events.operator(f"aten::{'mm' if number % 2 else 'bmm'}", inputs=(number, number))
        ordinal = events.launch("gemm")
        events.operator_end()
        events.complete(ordinal, 5_000_000, 5_100_000)
    events.operator("aten::relu")
    ordinal = events.launch("relu")
    events.operator_end()
    events.complete(ordinal, 6_000_000, 6_100_000)
    return run_tool(Operators, events, splits=range(1, len(events)))


#: 108 multiprocessors at 1.41 GHz: 2048 operations of half precision per clock each.
A100 = {"architecture": "sm_80", "multiprocessors": 108, "clock": 1_410_000, "name": "A100"}
PEAK = 108 * 1.41e9 * 2048


@pytest.mark.parametrize(("type", "slower"), [("Half", 1), ("BFloat16", 1), ("Float", 2)])
def test_share_of_the_devices_peak(type: str, slower: int) -> None:
    result = products(type, **A100)
    (mm, relu) = (row for row in result.tables["operators"].rows() if row["device_time"])
    share = slower * 2 * SIZE**3 / PEAK / 100e-6
    assert (mm["operator"], mm["mfu"]) == ("aten::mm", pytest.approx(share))
    assert (relu["operator"], relu["mfu"]) == ("aten::relu", None)
    assert f"{50 * share:.1f} % of the device's peak (MFU)" in result.summary
    assert not result.notes


def test_operations_without_a_known_peak_are_a_note() -> None:
    result = products("Half", "Int", **A100)
    rows = {row["operator"]: row["mfu"] for row in result.tables["operators"].rows()}
    assert rows["aten::mm"] and rows["aten::bmm"] is None
    (note,) = result.notes
    assert note.startswith("no peak rate is known for Int on A100: 50.0 % of the floating-point")


@pytest.mark.parametrize(
    "device", [{}, {**A100, "architecture": "gfx942"}, {**A100, "clock": 2**32 - 1}]
)
def test_an_unknown_device_has_no_peak(device: dict[str, Any]) -> None:
    result = products("Half", **device)
    assert "mfu" in result.tables["operators"].hidden
    assert "peak" not in result.summary
    (note,) = result.notes
    name = "A100" if device else "this device"
    assert note.startswith(f"no peak rate is known for float16 on {name}: 100.0 %")


def test_different_devices_have_no_common_peak() -> None:
    devices = Devices()
    for number, clock in ((0, 1_410_000), (1, 1_410_000), (2, 1_000_000)):
        events = Events()
        events.device(number, **{**A100, "clock": clock})
        devices.add(events.batch()["device"])
        context = events.context()
        context.conventions = conventions()
        same = number < 2
        assert (devices.common_peak("float16", context) == pytest.approx(PEAK)) == same


@pytest.mark.torch
def test_formulas_agree_with_the_counter_of_pytorch() -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    from torch.utils.flop_counter import FlopCounterMode

    cases: list[tuple[str, Any, list[Any]]] = [
        ("mm", torch.mm, [torch.rand(3, 5), torch.rand(5, 7)]),
        ("bmm", torch.bmm, [torch.rand(2, 3, 5), torch.rand(2, 5, 7)]),
        ("convolution", torch.conv2d, [torch.rand(2, 3, 9, 9), torch.rand(8, 3, 3, 3)]),
        (
            "convolution",
            torch.conv_transpose2d,
            [torch.rand(2, 3, 9, 9), torch.rand(3, 8, 3, 3)],
        ),
    ]
    for name, function, taken in cases:
        with FlopCounterMode(display=False) as counter:
            made = function(*taken)
        inputs = [tuple(each.shape) for each in taken]
        assert OF[f"aten::{name}"](inputs, [tuple(made.shape)]) == counter.get_total_flops(), name
