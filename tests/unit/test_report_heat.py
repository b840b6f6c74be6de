"""Heat maps: every access of a table is in the cell of its offset."""

from __future__ import annotations

import numpy as np

from pasta.report.heat import HeatMap, heat_maps
from pasta.run.results import StoredResult
from pasta.table import Figure, Table


def of(tables: dict[str, Table], figures: dict[str, Figure] | None = None) -> list[HeatMap]:
    return list(
        heat_maps(StoredResult("tool", "", tables, [], [], figures or {}, [], "Tool", "other"))
    )


def test_objects_by_offset() -> None:
    bars = Figure("bar", "Accesses to weights", [0, 64, 128], {"accesses": [5, 0, 7]},
                  x_unit="bytes")  # fmt: skip
    other = Figure("bar", "Sizes", [0, 64], {"copies": [1, 2]}, x_unit="bytes")
    (map,) = of({}, {"object_3": bars, "sizes": other})
    (strip,) = map.strips
    assert (strip.label, strip.start, strip.step) == ("weights", 0, 64)
    assert strip.cells.tolist() == [[5, 0, 7]]


def test_objects_over_windows() -> None:
    table = Table(
        {
            "window": [0, 1, 1, 130, 0],
            "object": ["a", "a", "a", "a", "unknown"],
            "object_id": [4, 4, 4, 4, -1],
            "offset": [0, 0, 64, 128, 0],
            "count": [1, 2, 3, 4, 9],
        }
    )
    (map,) = of({"window_bins": table})
    (strip,) = map.strips  # no heat map for unknown objects
    assert (strip.label, strip.step, strip.lines_step, map.lines) == ("a", 64, 3, "window")
    assert strip.cells.shape == (44, 3)  # three windows in a line, so that there are at most 64
    assert np.nansum(strip.cells) == 10
    assert (strip.cells[0, 0], strip.cells[0, 1], strip.cells[43, 2]) == (3, 3, 4)
    assert np.isnan(strip.cells).sum() == 44 * 3 - 3


def test_words_of_sectors() -> None:
    count = 1200
    words = {f"word_{at}": np.full(count, at) for at in range(8)}
    offset = np.arange(count, dtype=np.uint64) * np.uint64(32) + np.uint64(320)
    sectors = Table({"kernel": ["k"] * count, "object": ["o"] * count, "offset": offset, **words})
    (map,) = of({"sectors": sectors})
    (strip,) = map.strips
    assert (strip.label, strip.start, strip.step) == ("k: o", 320, 96)  # three in a point
    assert strip.cells.tolist() == [[3 * at] * 400 for at in range(8)]


def test_only_the_ten_most_accessed_objects() -> None:
    count = 30
    words = {f"word_{at}": np.arange(count) for at in range(8)}
    names = [f"k{number}" for number in range(count)]
    sectors = {"kernel": names, "object": names, "offset": np.zeros(count, np.uint64), **words}
    (map,) = of({"sectors": Table(sectors)})
    assert [strip.label for strip in map.strips] == [f"k{n}: k{n}" for n in range(29, 19, -1)]


def test_no_heat_map_of_other_results() -> None:
    assert of({"sectors": Table({"sectors": [1]}), "bins": Table({"count": [1]})}) == []
