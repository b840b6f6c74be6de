"""Tensor stores in code: their maps, and how often they ran; expectations by hand."""

from __future__ import annotations

import numpy as np
import pytest

from pasta.sass.tensor_stores import TensorStore, executed, tensor_stores
from tests.support.sass import code_of

STORE = "UTMASTG.2D [UR4], [UR8]"


@pytest.mark.parametrize(
    ("address", "offset"),
    [
        (["ULDC.64 UR10, c[0x0][0x198]", "UIADD3 UR8, UP1, UR10, 0x70, URZ"], 0x70),
        (["ULDC.64 UR8, c[0x0][0xc0]", "UIADD3.64 UR8, UR8, 0x440, URZ"], 0x230),
        (["LDC.64 R2, c[0x0][0x198]", "IADD3 R4, P0, R2, 0xf0, RZ", "R2UR UR8, R4"], 0xF0),
        (
            ["ULDC.64 UR6, c[0x0][0x198]", "UIADD3 UR7, UP0, UR6, 0xf0, URZ", "UMOV UR8, UR7"],
            0xF0,
        ),
        (
            [
                "ULDC.64 UR8, c[0x0][0x198]",
                "UIADD3 UR8, UP0, UR8, 0x80, URZ",
                "UIADD3 UR8, UP0, UR8, -0x10, URZ",
            ],
            0x70,
        ),
        (["LDC.64 R4, c[0x0][0x198]", "IMAD.MOV.U32 R6, RZ, RZ, R4", "R2UR UR8, R6"], 0),
        (["ULDC.64 UR8, c[0x0][0x210]"], None),  # a pointer to a map in memory
        (["UIADD3 UR8, UP0, UR6, UR7, URZ"], None),
        (["ULDC.64 UR6, c[0x0][0x198]", "UIMAD UR8, UR6, 0x80, URZ"], None),
        (
            [
                "ULDC.64 UR6, c[0x0][0x198]",
                "UIADD3 UR8, UP0, UR6, 0x70, URZ",
                "@UP2 UIADD3 UR8, UP0, UR6, 0xf0, URZ",
            ],
            None,
        ),
        (
            [
                "ULDC.64 UR6, c[0x0][0x198]",
                "UIADD3 UR8, UP0, UR6, 0x70, URZ",
                "@UP2 UIADD3 UR8, UP0, UR6, 0x70, URZ",
            ],
            0x70,
        ),
        ([], None),
    ],
)
def test_place_of_the_map(address: list[str], offset: int | None) -> None:
    code = code_of(*address, STORE, "EXIT")
    assert [(each.at, each.offset) for each in tensor_stores(code)] == [(len(address), offset)]


def test_another_architecture_keeps_parameters_elsewhere() -> None:
    code = code_of("ULDC.64 UR10, c[0x0][0x198]", "UIADD3 UR8, UP1, UR10, 0x70, URZ", STORE)
    (store,) = tensor_stores(code._replace(architecture=100))
    assert store.offset is None


def test_registers_that_feed_each_other_in_a_loop() -> None:
    code = code_of("UIADD3 UR8, UP0, UR8, 0x80, URZ", STORE, "BRA 0x0", "EXIT")
    assert [each.offset for each in tensor_stores(code)] == [None]


def test_reductions_count_and_loads_do_not() -> None:
    code = code_of(
        "UTMALDG.2D [UR4], [UR8]", "UTMAREDG.2D.ADD [UR4], [UR8]", "@UP3 UTMASTG.3D [UR4], [UR8]"
    )
    assert [each.at for each in tensor_stores(code)] == [1, 2]


def test_code_without_stores() -> None:
    assert tensor_stores(code_of("LDG.E R4, [R2]", "EXIT")) == []


@pytest.mark.parametrize(
    ("warps", "threads", "boxes"),
    [
        ([2048, 2048], [65536, 16384], 512),  # all lanes, the predicate true for a quarter of them
        ([100, 100], [100, 100], 100),  # one lane of each warp
        ([100, 100], [100, 0], 0),
        ([0, 0], [0, 0], 0),
    ],
)
def test_boxes(warps: list[int], threads: list[int], boxes: int) -> None:
    """The first of two instructions in a block has no predicate."""
    store = TensorStore(2, None, range(1, 3))
    other = 1 << 40  # an instruction of another block
    assert executed(store, np.array([other, *warps]), np.array([other, *threads])) == boxes
