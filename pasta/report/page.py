"""The HTML report: one self-contained file with all tables and figures of a run."""

from __future__ import annotations

import hashlib
import json
import shlex
from base64 import b64encode
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, get_args

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from jinja2.utils import htmlsafe_json_dumps
from markupsafe import Markup

from pasta.errors import RunError
from pasta.findings import Topic
from pasta.names import title_of
from pasta.report.blocks import without_blocks
from pasta.report.findings import ShownFinding
from pasta.report.heat import HeatMap, heat_maps, is_strip
from pasta.report.live_tables import MIN_ROWS
from pasta.report.live_timeline import LiveTimeline
from pasta.report.overview import Bar, overview, own_notes
from pasta.report.pack import Packer
from pasta.report.roofline import Roofline, rooflines
from pasta.report.sources import Source, measures, read_sources
from pasta.report.stacks import CallTree, has_stacks, read_call_tree
from pasta.report.stall_views import stall_views
from pasta.report.text import heading, notes
from pasta.report.timeline import WORK, Timeline, read_timeline
from pasta.report.treemap import TreeMap, tree_maps
from pasta.report.weights import WEIGHTS
from pasta.run.directory import RunDirectory
from pasta.run.results import StoredResult, ranked, read_results
from pasta.table import Figure, Table, visible
from pasta.version import VERSION

#: Maximum rows of a table in the page; long runs may have more than a browser can hold.
MAX_ROWS = 250_000
#: Findings shown in the overview; the others follow below it.
FIRST_FINDINGS = 3
#: Colors of series in report.css.
_COLORS = 8
_NONE = np.zeros(0, np.int64)
_HERE = Path(__file__).parent
_dumps = partial(json.dumps, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def render_page(
    run: RunDirectory,
    *,
    source: bool = True,
    live: LiveTimeline | None = None,
    served: bool = False,
    events: bool = True,
) -> str:
    """The page as HTML; `source`: with lines of the program's source. Raises RunError for a damaged
    manifest or result.

    `served`: a page that asks its server for rows of long tables, and for slices of `live`.
    Without `events` it has what needs none, and says that the rest is being read.
    """
    manifest = run.manifest()
    rows = MIN_ROWS if served else MAX_ROWS
    results = sorted(read_results(run.results, rows=rows), key=place)
    page = Page(served=served)
    command = shlex.join(manifest.get("command", ()))
    warnings = [(text.plain, text.style == "red") for text in notes(manifest)]
    timeline = live.timeline if live else None
    try:  # the rest of the report does not need events
        timeline = timeline if served else read_timeline(run)
    except RunError as error:
        warnings.append((f"no timeline: {error}", True))
    first = overview(manifest, results, timeline)
    page.name_colors(first.bars)
    if timeline:
        shown, remote = live.in_page() if live else (timeline, [])
        page.timeline(shown, first.bars, remote, timeline.focus())
    tools = [page.tool(run, result) for result in results]
    sources, left_out = read_sources(manifest, results) if source else ([], [])
    page.sources(sources)
    if not events:
        warnings.append(("timeline and flame graph are being read: reload this page", False))
    elif has_stacks(run):
        try:
            page.flame(read_call_tree(run))
        except RunError as error:
            warnings.append((f"no flame graph: {error}", True))
    lines = [text.plain for text in heading(run, manifest)]
    titles = {result.name: result.title for result in results}
    return page.html(
        "report.html.j2",
        title=lines[0],
        lines=lines[1:],
        notes=warnings,
        findings=[
            ShownFinding.of(titles[tool], tool, each, command, sources)
            for tool, each in ranked(results)
        ],
        first_findings=FIRST_FINDINGS,
        titles=titles,
        overview=first,
        timeline=timeline,
        tools=tools,
        sources=[each.path for each in sources],
        source_notes=left_out,
        weights=page.weights,
    )


def place(result: StoredResult) -> tuple[bool, int, bool, str]:
    """Order of sections: those without anything to show last, by topic, those with findings
    first."""
    topic = get_args(Topic).index(result.topic)
    return is_empty(result), topic, not result.findings, result.title


def is_empty(result: StoredResult) -> bool:
    """Whether a result has nothing but a summary and notes."""
    tables = any(table.of or len(table) for table in result.tables.values())
    figures = any(len(figure.x) for figure in result.figures.values())
    return not (tables or figures or result.findings or result.files)


def _code(source: Source, lines: Sequence[int]) -> dict[str, Any]:
    """Instructions of lines, by line: kernels, each with its name and then offsets and texts; and
    how many more there are."""
    found = {}
    for line in lines:
        shown, left = source.instructions(line)
        kernels = [
            [visible(kernel), *([each.offset, visible(each.text)] for each in instructions)]
            for kernel, instructions in groupby(shown, lambda each: each.kernel)
        ]
        if kernels:
            found[str(line)] = {"kernels": kernels, "left": left}
    return found


def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(_HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        # Markup, a str too, comes from our own files
        finalize=lambda value: visible(value) if type(value) is str else value,
    )
    environment.filters["json"] = lambda value: htmlsafe_json_dumps(value, dumps=_dumps)
    return environment


def _asset(name: str) -> str:
    return (_HERE / "assets" / name).read_text(encoding="utf-8").strip()


def _hash(text: str) -> str:
    digest = b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")
    return f"'sha256-{digest}'"


class Page:
    """The template's view of tools; data are blocks by the id of their element."""

    def __init__(self, *, served: bool = False) -> None:
        self.served = served
        self.packer = Packer()
        self.blocks: dict[str, dict[str, Any]] = {}
        self.weights: list[str] = []
        #: Numbers of colors by the name of a series, the same in all pictures.
        self.colors: dict[str, int] = {}
        self._tables: dict[str, tuple[str, str]] = {}

    def name_colors(self, bars: Sequence[Bar]) -> None:
        """Takes the colors that bars of the overview give to tensors and memory."""
        for bar in bars:
            if bar.unit == "bytes":
                self.colors |= {part.label: part.color for part in bar.parts if part.color >= 0}

    def color(self, name: str) -> int:
        """The color of a series with this name; a new name gets the next one."""
        return self.colors.setdefault(name, len(self.colors) % _COLORS)

    def html(self, template: str, **values: Any) -> str:
        """The page as HTML: a template with these values, and all data, scripts and styles."""
        names = ("uplot/uPlot.iife.min.js", "timeline.js", "pictures.js", "report.js")
        scripts = [_asset(name) for name in names]
        styles = [_asset("uplot/uPlot.min.css"), _asset("report.css")]
        return _environment().get_template(template).render(
            **values,
            served=self.served,
            version=VERSION,
            blocks=self.blocks,
            strings=self.packer.strings(),
            scripts=[Markup(text) for text in scripts],
            styles=[Markup(text) for text in styles],
            script_hashes=" ".join(map(_hash, scripts)),
            style_hashes=" ".join(map(_hash, styles)),
        )  # fmt: skip

    def tool(self, run: RunDirectory, result: StoredResult) -> dict[str, Any]:
        rows = {name: table for name, table in result.tables.items() if table.of or len(table)}
        return {
            "name": result.name,
            "title": result.title,
            "summary": result.summary,
            "notes": own_notes(result),
            "charts": list(self._charts(result)),
            "stalls": stall_views(result),
            "tables": [self.table(name, table, result.name) for name, table in rows.items()],
            "without_rows": [
                table.title or title_of(name)
                for name, table in result.tables.items()
                if name not in rows
            ],
            "empty": is_empty(result),
            "files": [str(path.relative_to(run.path)) for path in result.files],
        }

    def add(self, what: str, block: dict[str, Any], **about: Any) -> str:
        """Adds a block under a new id."""
        id = f"{what}-{len(self.blocks)}"
        self.blocks[id] = {**about, **block}
        return id

    def table(self, name: str, table: Table, tool: str = "") -> dict[str, Any]:
        """Adds a table; returns the template's view of it. `tool`: of a stored table."""
        remote = self.served and (table.of or 0) > MIN_ROWS
        block = self.packer.block(table.columns, 1 if remote else MAX_ROWS)
        if remote:
            block |= {"rows": table.of, "tool": tool, "table": name}
        for about in block["columns"]:
            column = about["name"]
            about["label"] = visible(table.heading(column))
            about["unit"] = table.units.get(column)
            about["hidden"] = column in table.hidden
        title = table.title or title_of(name)
        # e.g. the coverage of probes, which several tools have
        content = _hash(_dumps([title, block]))
        if content not in self._tables:
            self._tables[content] = self.add("table", block, title=visible(title)), tool
        id, first = self._tables[content]
        return {
            "id": id,
            "as_in": first if first != tool else None,
            "title": title,
            "rows": table.of or len(table),
            "cut": MAX_ROWS if (table.of or 0) > MAX_ROWS and not remote else 0,
            "open": table.shown > 0 and len(table) > 0,
        }

    def _charts(self, result: StoredResult) -> Iterator[dict[str, Any]]:
        for figure in (each for name, each in result.figures.items() if not is_strip(name, each)):
            if len(figure.x):
                yield self.figure(figure)
        for plot in rooflines(result):
            yield {"id": self._roofline(plot), "title": plot.title, "kind": "roofline"}
        for tree in tree_maps(result.with_all_rows()):
            yield {"id": self._tree(tree), "title": tree.title, "kind": "treemap", "wide": True}
        for map in heat_maps(result.with_all_rows()):
            yield {"id": self._heat(map), "title": map.title, "kind": "heat", "wide": True}

    def figure(self, figure: Figure, **axes: Any) -> dict[str, Any]:
        """Adds a figure; returns the template's view of it. `axes`: `colors`, numbers of its
        series' colors; `most` and `last`, values that the axes reach at least."""
        if self.colors.keys() & figure.series.keys():
            axes = {"colors": [self.color(name) for name in figure.series], **axes}
        columns = {"x": figure.x, **{f" {name}": each for name, each in figure.series.items()}}
        block = self.packer.block(columns)
        for about, label in zip(block["columns"], ("", *figure.series), strict=True):
            about["label"] = visible(label)
        kept = ("kind", "x_unit", "y_unit")
        about = {name: getattr(figure, name) for name in kept}
        labels = {name: visible(getattr(figure, name)) for name in ("title", "x_label", "y_label")}
        id = self.add("figure", block, **about, **labels, **axes)
        return {"id": id, "title": figure.title, "kind": "figure", "wide": figure.kind == "area"}

    def _roofline(self, plot: Roofline) -> str:
        names = ("name", "intensity", "rate", "time", "share")
        columns = {name: getattr(plot, name) for name in names}
        roofs = [{"label": label, "kind": kind, "rate": rate} for label, kind, rate in plot.roofs]
        return self.add("roofline", self.packer.block(columns), title=plot.title, roofs=roofs)

    def _tree(self, tree: TreeMap) -> str:
        names = ("parent", "name", "detail", "size", "color", "find")
        columns = {name: getattr(tree, name) for name in names}
        columns["color"] = [self.color(name) if name else -1 for name in tree.color]
        about = {"title": tree.title, "unit": tree.unit, "table": tree.table}
        return self.add("treemap", self.packer.block(columns), **about)

    def sources(self, sources: Sequence[Source]) -> None:
        """Adds lines of source files, with a column for each measure."""
        known = measures(sources)
        for number, each in enumerate(sources):
            lines = sorted(each.text)
            columns: dict[str, Any] = {"line": lines, "text": [each.text[at] for at in lines]}
            own = [measure for measure in known if measure in each.sums]
            for at, measure in enumerate(own):
                columns[f"measure_{at}"] = [each.sums[measure].get(line) for line in lines]
            described = [{"label": visible(str(measure)), "unit": measure.unit} for measure in own]
            block = self.packer.block(columns)
            about = {"file": each.path, "measures": described, "code": _code(each, lines)}
            self.blocks[f"source-{number}"] = {**block, **about}

    def _heat(self, map: HeatMap) -> str:
        cells = np.concatenate([strip.cells.reshape(-1) for strip in map.strips])
        block = self.packer.block({"accesses": np.ma.MaskedArray(cells, np.isnan(cells))})
        strips = [
            {
                "label": visible(strip.label),
                "start": strip.start,
                "step": strip.step,
                "lines": len(strip.cells),
                "points": strip.cells.shape[1],
                "lines_step": strip.lines_step,
            }
            for strip in map.strips
        ]
        return self.add("heat", block, strips=strips, lines=map.lines, title=visible(map.title))

    def timeline(
        self,
        timeline: Timeline,
        bars: Sequence[Bar],
        remote: Sequence[bool] = (),
        focus: tuple[int, int] | None = None,
    ) -> None:
        """Adds the timeline: its slices, levels of detail, names and counters. What the bars of the
        overview have a color for has the same one. `remote`: rows whose slices the server has;
        `focus`: the interval that is shown first."""
        gaps = timeline.start - np.append(0, timeline.end[:-1])
        firsts = [row.first for row in timeline.rows if row.count]
        gaps[firsts] = timeline.start[firsts]
        slices = {"gap": gaps, "took": timeline.end - timeline.start, "name": timeline.name}
        levels = [level for row in timeline.rows for level in row.levels]
        bins = {
            "name": np.concatenate([_NONE, *(level.name for level in levels)]),
            "share": np.concatenate([_NONE, *(level.share for level in levels)]),
        }
        points = {
            "time": np.concatenate([_NONE, *(each.time for each in timeline.counters)]),
            "value": np.concatenate([_NONE, *(each.value for each in timeline.counters)]),
        }
        names = timeline.names
        colors = {part.label: part.color for bar in bars for part in bar.parts}
        drawn = {*WORK, "block"} if timeline.work.by_name else {"operator"}
        described = {
            "kind": [kind for kind, _ in names],
            "name": [name for _, name in names],
            "color": [
                colors.get(without_blocks(name) if kind == "block" else name, -1)
                if kind in drawn
                else -1
                for kind, name in names
            ],
        }
        for what, columns in (("bins", bins), ("points", points), ("names", described)):
            self.blocks[f"timeline-{what}"] = self.packer.block(columns)
        self.blocks["timeline"] = {
            **self.packer.block(slices),
            "begin": timeline.begin,
            "until": timeline.until,
            "focus": focus,
            "lines": [
                {
                    "group": row.group,
                    "heading": visible(row.heading),
                    "label": visible(row.label),
                    "depth": row.depth,
                    "count": row.count,
                    "levels": [len(level.name) for level in row.levels],
                    "remote": number < len(remote) and remote[number],
                }
                for number, row in enumerate(timeline.rows)
            ],
            "counters": [
                {"label": visible(each.label), "unit": each.unit, "count": len(each.time)}
                for each in timeline.counters
            ],
        }

    def flame(self, tree: CallTree) -> None:
        """Adds the call tree, for flame graphs by each recorded weight."""
        if not tree.present:
            return
        columns: dict[str, Any] = {
            weight: np.asarray(tree.weights[weight], np.int64) for weight in tree.present
        }
        weights = [
            {"column": weight, "label": WEIGHTS[weight][0], "unit": WEIGHTS[weight][1]}
            for weight in tree.present
        ]
        self.add_flame(tree, columns, weights)

    def add_flame(
        self, tree: CallTree, columns: dict[str, Any], weights: list[dict[str, Any]]
    ) -> None:
        """Adds a flame graph with these numbers by node, and descriptions of them."""
        self.blocks["flame"] = {
            **self.packer.block(
                {
                    "parent": np.asarray(tree.parents, np.int64),
                    "name": [call.name for call in tree.calls],
                    "kind": [call.kind for call in tree.calls],
                    "place": [
                        f"{call.file}:{call.line}" if call.file else None for call in tree.calls
                    ],
                    **columns,
                }
            ),
            "weights": weights,
        }
        self.weights = list(dict.fromkeys(each["label"] for each in weights))
