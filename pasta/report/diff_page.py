"""Two runs compared as an HTML page: paired bars, flame graphs and memory over time of both."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from pasta.errors import RunError
from pasta.findings import Finding
from pasta.names import title_of
from pasta.report.diff import asked_columns, rows_of, total_text
from pasta.report.overview import MAX_LABEL, Fact, overview
from pasta.report.page import Page, place
from pasta.report.stacks import ACCESSES, CallTree, has_stacks, read_call_tree
from pasta.report.text import gain_of
from pasta.report.weights import WEIGHTS, Weight
from pasta.run.results import StoredResult, ranked, read_results
from pasta.table import Figure, plain

if TYPE_CHECKING:
    from pasta.run.diff import ColumnDiff, Comparison, TableDiff

#: Paired bars of a column, and columns with bars of a table.
_MAX_PAIRS, _MAX_COLUMNS = 12, 4
_RUNS = ("before", "after")
#: Numbers of the series' colors of both.
_COLORS = (7, 0)


def render_diff_page(
    comparison: Comparison,
    chosen: Collection[tuple[str, str]],
    columns: Collection[str] = (),
    notes: Sequence[str] = (),
) -> str:
    """The comparison of the `chosen` tables as HTML; `columns`: only these. Raises RunError."""
    page = Page()
    runs = (comparison.before, comparison.after)
    manifests = [run.manifest() for run in runs]
    results = [list(read_results(run.results)) for run in runs]
    titles = {each.name: each.title for side in results for each in side}
    tables = [comparison.table(*each) for each in chosen]
    said = [*notes, *(note for table in tables for note in table.notes)]
    tree = None
    try:
        if all(has_stacks(run) for run in runs):
            tree = merged(*(read_call_tree(run) for run in runs))
    except RunError as error:
        said.append(f"no flame graph: {error}")
    if tree is not None:
        # of probed launches only
        without: tuple[Weight, ...] = ("accesses",) if comparison.sampled(ACCESSES) else ()
        _add_flame(page, *tree, without)
    sections: dict[str, list[dict[str, Any]]] = {}
    order = {each.name: place(each) for each in results[1]}
    for table in sorted(tables, key=lambda each: order[each.tool]):
        if parts := list(_parts(page, table, columns)):
            sections.setdefault(table.tool, []).extend(parts)
    overviews = [overview(*each, None) for each in zip(manifests, results, strict=True)]
    page.name_colors(overviews[1].bars)  # the same ones on both sides
    return page.html(
        "diff.html.j2",
        title=f"{comparison.before.path.name} → {comparison.after.path.name}",
        lines=[
            f"{name}: {plain(str(run.path))}, {plain(' '.join(manifest.get('command', ())))}"
            for name, run, manifest in zip(_RUNS, runs, manifests, strict=True)
        ],
        notes=[(plain(each, 2000), False) for each in comparison.notes],
        uncompared=[plain(each, 2000) for each in dict.fromkeys(said)],
        facts=list(_facts(*(each.facts for each in overviews))),
        gone=_findings(*results),
        new=_findings(*results[::-1]),
        titles=titles,
        memory=list(_memory(page, *results)),
        weights=page.weights,
        sections=[(titles.get(tool, tool), tool, parts) for tool, parts in sections.items()],
    )  # fmt: skip


# ---- facts and findings ----


def _facts(before: Sequence[Fact], after: Sequence[Fact]) -> Iterator[tuple[str, str, str]]:
    """Label and both values of the numbers that both runs have."""
    values = {each.label: each.value for each in before}
    for fact in after:
        if fact.label in values:
            yield fact.label, values[fact.label], fact.value


def _findings(
    one: Sequence[StoredResult], other: Sequence[StoredResult]
) -> list[tuple[str, Finding, str]]:
    """Findings of one run, of tools of both, that the other does not have."""
    tools = {result.name for result in other}
    known = {(tool, each.what, each.where) for tool, each in ranked(other)}
    return [
        (tool, each, gain_of(each))
        for tool, each in ranked(one)
        if tool in tools and (tool, each.what, each.where) not in known
    ]


# ---- memory over time ----


def _memory(
    page: Page, before: Sequence[StoredResult], after: Sequence[StoredResult]
) -> Iterator[dict[str, Any]]:
    """Figures of live bytes over time that both runs have: lines of both runs in one, areas side by
    side."""
    sides = [_figures(side) for side in (before, after)]
    for key in [key for key in sides[0] if key in sides[1]]:
        if any(figure.kind == "area" for figure in (sides[0][key], sides[1][key])):
            continue
        yield {**page.figure(both(sides[0][key], sides[1][key]), colors=_COLORS), "wide": True}
    for key, one in sides[0].items():
        other = sides[1].get(key)
        if other is None or "area" not in (one.kind, other.kind):
            continue
        most = max(float(np.max(_total(each))) for each in (one, other))
        last = max(float(each.x[-1]) for each in (one, other))
        for name, each in zip(_RUNS, (one, other), strict=True):
            yield {
                **page.figure(replace(each, title=f"{each.title}, {name}"), most=most, last=last),
                "wide": False,
            }


def _figures(results: Sequence[StoredResult]) -> dict[tuple[str, str], Figure]:
    """Figures of live bytes over time, by tool and name."""
    return {
        (result.name, name): figure
        for result in results
        for name, figure in result.figures.items()
        if figure.y_unit == "bytes" and figure.x_unit == "ns" and len(figure.x)
    }


def both(before: Figure, after: Figure) -> Figure:
    """A figure with a line for the total of each run."""
    x = np.union1d(before.x, after.x).astype(np.int64)
    series = {
        name: _held(np.asarray(each.x), _total(each), x)
        for name, each in zip(_RUNS, (before, after), strict=True)
    }
    return replace(after, kind="step", x=x, series=series)


def _total(figure: Figure) -> Any:
    """The series "total" of a figure; without one, the sum of all series."""
    series = figure.series
    levels = [series["total"]] if "total" in series else list(series.values())
    return sum(np.asarray([each or 0 for each in level], np.float64) for level in levels)


def _held(x: Any, level: Any, at: Any) -> list[float | None]:
    """A level, held until the next x, at others; absent after the run's end."""
    found = level[np.maximum(np.searchsorted(x, at, side="right") - 1, 0)]
    return [None if time > x[-1] else float(each) for time, each in zip(at, found, strict=True)]


# ---- tables ----


def _parts(page: Page, table: TableDiff, columns: Collection[str]) -> Iterator[dict[str, Any]]:
    """Paired bars of the most changed columns of a table, and the changed rows."""
    changed = [each for each in asked_columns(table, columns) if each.weight and table.keys]
    changed.sort(key=lambda each: (each.unit != "ns", -each.weight))  # times first
    if changed:
        pictures = [
            {
                "title": column.label.capitalize() + total_text(column),
                "pairs": _pairs(page, table, column),
                "table": page.table(column.name, rows_of(table, column)),
            }
            for column in changed[:_MAX_COLUMNS]
        ]
        yield {"title": table.title or title_of(table.name), "columns": pictures}


def _pairs(page: Page, table: TableDiff, column: ColumnDiff) -> str:
    changes = column.changes
    largest = sorted(range(len(changes)), key=lambda at: -abs(changes[at].difference or 0))
    shown = [at for at in largest if changes[at].before or changes[at].after][:_MAX_PAIRS]
    block = page.packer.block(
        {
            "name": [plain(table.label(at), MAX_LABEL) for at in shown],
            **{
                name: [_number(getattr(changes[at], name)) for at in shown] for name in _RUNS
            },
        }
    )  # fmt: skip
    left = sum(change.before != change.after for change in changes) - len(shown)
    return page.add("pairs", block, unit=column.unit, left=max(0, left))


def _number(value: float | None) -> float | None:
    return None if value is None else float(value)


# ---- flame graph ----


def merged(
    before: CallTree, after: CallTree
) -> tuple[CallTree, dict[Weight, list[int]], dict[Weight, list[int]]]:
    """A tree of the calls of both, and the weights of each run by its nodes."""
    tree = CallTree()
    sides: list[dict[Weight, list[int]]] = []
    places = []
    for side in (before, after):
        place = [0]
        for node in range(1, len(side)):
            place.append(tree.node(place[side.parents[node]], side.calls[node]))
        places.append(place)
    for side, place in zip((before, after), places, strict=True):
        weights: dict[Weight, list[int]] = {weight: [0] * len(tree) for weight in WEIGHTS}
        for weight, own in side.weights.items():
            for node, amount in enumerate(own):
                weights[weight][place[node]] += amount
        sides.append(weights)
    return tree, sides[0], sides[1]


def _add_flame(
    page: Page,
    tree: CallTree,
    before: dict[Weight, list[int]],
    after: dict[Weight, list[int]],
    without: Collection[Weight] = (),
) -> None:
    """Adds a flame graph whose widths are one run's, and whose colors the difference; `without`:
    weights that cannot be compared."""
    present = [
        weight
        for weight in WEIGHTS
        if weight not in without and any(before[weight]) and any(after[weight])
    ]
    columns: dict[str, Any] = {}
    weights = []
    for name, other in (("after", "before"), ("before", "after")):
        for weight in present:
            own = (after if name == "after" else before)[weight]
            columns[f"{weight}_{name}"] = np.asarray(own, np.int64)
            label, unit = WEIGHTS[weight]
            weights.append(
                {
                    "column": f"{weight}_{name}", "label": f"{label}, {name}", "unit": unit,
                    "other": f"{weight}_{other}", "otherName": other,
                }
            )  # fmt: skip
    if weights:
        page.add_flame(tree, columns, weights)
