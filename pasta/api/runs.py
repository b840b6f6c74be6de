"""Runs in Python and notebooks: results of tools as tables, of one run or compared."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pasta.errors import ConfigError, MissingDependency, RunError
from pasta.run.directory import RunDirectory
from pasta.run.root import Root, is_root
from pasta.table import counted

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow as pa

    from pasta.findings import Finding
    from pasta.run.diff import Comparison
    from pasta.sources import Capabilities


_NO_FINDINGS = "no findings"


class Displayed(ABC):
    """An object that notebooks show as HTML, and other front ends as Markdown or text."""

    @abstractmethod
    def _repr_html_(self) -> str | None:
        """HTML whose text is escaped; None: text is shown. Raises RunError."""

    @abstractmethod
    def _repr_markdown_(self) -> str | None:
        """GitHub-flavoured Markdown; None: text is shown. Raises RunError."""

    def _repr_mimebundle_(
        self, include: Collection[str] | None = None, exclude: Collection[str] | None = None
    ) -> dict[str, str]:
        """Every representation by its MIME type, as IPython requests it."""
        made = {
            "text/plain": lambda: str(self),
            "text/html": self._repr_html_,
            "text/markdown": self._repr_markdown_,
        }
        chosen = (set(made) if include is None else set(include)) - set(exclude or ())
        shown = ((kind, make()) for kind, make in made.items() if kind in chosen)
        return {kind: text for kind, text in shown if text is not None}


class Findings(list["Finding"], Displayed):
    """Findings of a run, the most promising first; a notebook shows them as a list."""

    def __init__(self, ranked: Iterable[tuple[str, Finding]] = ()) -> None:
        """Findings with the names of their tools."""
        pairs = list(ranked)
        super().__init__(finding for _, finding in pairs)
        self._tools = {id(finding): tool for tool, finding in pairs}

    @property
    def tools(self) -> list[str]:
        """Names of the tools that reported the findings, in the same order."""
        return [self._tools.get(id(finding), "") for finding in self]

    def _pairs(self) -> list[tuple[str, Finding]]:
        return list(zip(self.tools, self, strict=True))

    def __str__(self) -> str:
        from pasta.report.text import findings_of, text_of

        return text_of(findings_of(self._pairs())) or _NO_FINDINGS

    def _repr_html_(self) -> str:
        from pasta.report.notebook import findings_html

        return findings_html(self._pairs()) if self else f"<p>{_NO_FINDINGS}</p>"

    def _repr_markdown_(self) -> str:
        from pasta.report.markdown import findings_markdown

        return findings_markdown(self._pairs()) or _NO_FINDINGS


class Tables(Displayed):
    """Tables by tool name and table name; without a table name, the tool's main table."""

    @abstractmethod
    def tables(self) -> dict[str, list[str]]:
        """Names of the tables of each tool, its main one first."""

    @abstractmethod
    def arrow(self, tool: str, name: str | None = None) -> pa.Table:
        """A table as a pyarrow table. Units and labels are in the metadata of the fields.

        Raises RunError if the tool or table does not exist.
        """

    def table(self, tool: str, name: str | None = None) -> pandas.DataFrame:
        """A table as a pandas DataFrame. Raises as `arrow`, and MissingDependency."""
        try:
            import pandas  # noqa: F401
        except ImportError:
            raise _not_installed("pandas", "arrow") from None
        return self.arrow(tool, name).to_pandas()

    def polars(self, tool: str, name: str | None = None) -> polars.DataFrame:
        """A table as a Polars DataFrame. Raises as `arrow`, and MissingDependency."""
        try:
            import polars
        except ImportError:
            raise _not_installed("polars", "arrow") from None
        found = polars.from_arrow(self.arrow(tool, name))
        assert isinstance(found, polars.DataFrame)  # from_arrow returns a Series for a column
        return found

    def __getitem__(self, key: str | tuple[str, str]) -> pandas.DataFrame:
        """`run["tensors"]`, `run["tensors", "peak"]`: as `table`."""
        return self.table(key) if isinstance(key, str) else self.table(*key)

    def __contains__(self, tool: object) -> bool:
        return tool in self.tables()


class Run(Tables):
    """A run directory, as `pasta.load` and `pasta.profile` return it.

    Tables have the name of their tool, and a table name if the tool has several; without one, the
    main table is used. `str` returns the text report; a notebook shows HTML.
    """

    def __init__(self, path: str | os.PathLike[str], *, pending: str | None = None) -> None:
        """The run at `path`; `pending`: why its results cannot be read yet."""
        self.path = Path(path)
        self._pending = pending

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Run:
        """Opens a run directory. Raises RunError if `path` is not one."""
        run = cls(path)
        run._directory()
        return run

    def _directory(self) -> RunDirectory:
        if self._pending:
            raise RunError(self._pending)
        return RunDirectory.open(self.path)

    @property
    def manifest(self) -> dict[str, Any]:
        """run.json: what ran, where, how it ended and what was lost."""
        return self._directory().manifest()

    @property
    def capabilities(self) -> Capabilities:
        """Capabilities of the run's sources: kinds of events, fields, accesses."""
        from pasta.sources import Capabilities

        sources = self.manifest.get("sources")
        if sources is None:  # an unfinished run
            names = self.events("process_start", ["source"]).column("source").to_pylist()
            sources = dict.fromkeys(name for name in names if name)
        return Capabilities(tuple(sources))

    @property
    def failures(self) -> dict[str, str]:
        """Why tools were disabled, by tool name."""
        failures = self.manifest.get("failures", {})
        return {tool: f"{why['reason']} (in {why['where']})" for tool, why in failures.items()}

    def tables(self) -> dict[str, list[str]]:
        """Names of the tables of each tool, its main one first. Raises RunError."""
        from pasta.run.results import stored_tables

        return stored_tables(self._directory().results)

    def summary(self, tool: str) -> str:
        """A tool's summary in one line. Raises RunError if the tool has no results."""
        from pasta.run.results import read_summary

        self._names(tool)
        return read_summary(self._directory().results, tool)

    def arrow(self, tool: str, name: str | None = None) -> pa.Table:
        """A table as a pyarrow table. Raises RunError if the tool or table does not exist."""
        from pasta.run.results import read_table

        return read_table(self._directory().results, tool, self._name(tool, name))

    def findings(self) -> Findings:
        """Findings of all tools, the most promising first."""
        from pasta.run.results import ranked, read_results

        return Findings(ranked(read_results(self._directory().results)))

    def event_counts(self) -> dict[str, int]:
        """Numbers of recorded events by kind. Raises RunError if a file cannot be read."""
        from pasta.run.events import counts

        return counts(self._directory().events)

    def events(self, kind: str, columns: Sequence[str] | None = None) -> pa.Table:
        """Recorded events of a kind in order, as a pyarrow table: all columns, or these.

        Raises RunError if the kind or a column does not exist.
        """
        import pyarrow as pa

        from pasta.run.files import reading

        batches = list(self.event_batches(kind, columns))
        with reading(self.path / "events" / kind):  # files may differ in their columns
            return pa.Table.from_batches(batches)

    def event_batches(
        self, kind: str, columns: Sequence[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Like `events`, a bounded number of rows at a time."""
        from pasta.run.events import read_kind

        return read_kind(self._directory().events, kind, columns)

    def replay(
        self,
        *tools: str,
        config: Sequence[str | os.PathLike[str]] = (),
        settings: Mapping[str, object] | None = None,
        out: str | os.PathLike[str] | None = None,
        tool_path: Sequence[str | os.PathLike[str]] = (),
    ) -> Run:
        """Runs tools on the recorded events and returns a run with their results.

        Takes the arguments of `pasta.profile`; settings are those of tools and filters. Without
        `out` the directory is temporary, and removed with the object. Raises PastaError.
        """
        from pasta.config import Config
        from pasta.runtime.replay import Replay

        chosen = Config()
        for file in config:
            chosen.load(os.fspath(file))
        chosen.add_tools(tools, tool_path)
        for key, value in (settings or {}).items():
            chosen.set(key, value, "replay")
        if not chosen.tools:
            raise ConfigError("replay: no tool was named")
        replay = Replay(self._directory(), chosen)
        if out is not None:
            return Run(replay.write(Path(out)).path)
        place = Path(tempfile.mkdtemp(prefix="pasta-"))
        run = Run(place / "run")
        weakref.finalize(run, shutil.rmtree, place, ignore_errors=True)
        replay.write(run.path)
        return run

    def diff(self, after: Run) -> Diff:
        """Changes from this run to `after`. Raises RunError."""
        from pasta.run.diff import Comparison

        return Diff(Comparison(self._directory(), after._directory()))

    def _names(self, tool: str) -> list[str]:
        tables = self.tables()
        if tool not in tables:
            failure = self.failures.get(tool)
            if failure:
                raise RunError(f"tool {tool} was disabled: {failure}")
            known = f"there are {', '.join(tables)}" if tables else "there are none"
            raise RunError(f"{self.path}: no results of the tool {tool!r}", remedy=known)
        return tables[tool]

    def _name(self, tool: str, name: str | None) -> str:
        return _chosen(self.path, tool, self._names(tool), name)

    def __str__(self) -> str:
        """The text report, or why there is none yet."""
        if self._pending:
            return self._pending
        from pasta.report.text import text_report

        return text_report(self._directory())

    def __repr__(self) -> str:
        return f"<pasta.Run {self._pending or self.path}>"

    def _repr_html_(self) -> str | None:
        if self._pending:
            return None
        from pasta.report.notebook import render_html

        return render_html(self._directory())

    def _repr_markdown_(self) -> str | None:
        if self._pending:
            return None
        from pasta.report.markdown import render_markdown

        return render_markdown(self._directory())


class Diff(Tables):
    """Two runs compared, as `Run.diff` returns them. `str` returns the text of `pasta diff`.

    A table has its key columns, the column `run` ("both", "before" or "after"), and for each
    compared column COLUMN_before, _after, _difference and _ratio.
    """

    def __init__(self, comparison: Comparison) -> None:
        self._comparison = comparison

    @property
    def notes(self) -> list[str]:
        """What cannot be compared, one line each."""
        return self._comparison.notes

    def tables(self) -> dict[str, list[str]]:
        """Names of the tables that both runs have, by tool."""
        return self._comparison.tables

    def arrow(self, tool: str, name: str | None = None) -> pa.Table:
        """A compared table as a pyarrow table. Raises RunError if a run does not have it."""
        from pasta.run.diff import require

        return self._comparison.table(tool, require(self._comparison, tool, name)).to_arrow()

    def __str__(self) -> str:
        from pasta.report.diff import text_report

        return text_report(self._comparison)

    def __repr__(self) -> str:
        comparison = self._comparison
        return f"<Diff {comparison.before.path} {comparison.after.path}>"

    def _repr_html_(self) -> str:
        from pasta.report.diff import default_parts
        from pasta.report.notebook import html_of

        return html_of(default_parts(self._comparison))

    def _repr_markdown_(self) -> str:
        from pasta.report.diff import default_parts
        from pasta.report.markdown import markdown_of

        return markdown_of(default_parts(self._comparison))


class Runs(Tables):
    """The runs of a root, as `pasta.load` returns them for a directory of runs.

    Tables contain the rows of all runs, after the columns `rank` and `run` (the name of the run's
    directory). `str` returns the report of the ranks side by side.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Opens a root. Raises RunError if `path` contains no run."""
        self.path = Path(path)
        self._root = Root.open(self.path)

    @cached_property
    def ranks(self) -> list[Run]:
        """The runs: first by rank, then those without a rank."""
        return [Run(run.directory.path) for run in self._root.runs]

    def rank(self, number: int) -> Run:
        """The run of a rank's first process. Raises RunError if the rank has no run."""
        return Run(self._root.of_rank(number)[0].directory.path)

    @property
    def missing(self) -> list[int]:
        """Ranks of the job without a run."""
        return self._root.missing

    @property
    def problems(self) -> dict[str, str]:
        """Why directories of the root are not usable as runs, by name."""
        return {problem.path.name: problem.why for problem in self._root.problems}

    def tables(self) -> dict[str, list[str]]:
        """Names of each tool's tables over all runs, its main one first. Raises RunError."""
        found: dict[str, dict[str, None]] = {}
        for run in self.ranks:
            for tool, names in run.tables().items():
                found.setdefault(tool, {}).update(dict.fromkeys(names))
        return {tool: list(names) for tool, names in sorted(found.items())}

    def arrow(self, tool: str, name: str | None = None) -> pa.Table:
        """The rows of a table in all runs that have it, run by run, as a pyarrow table.

        Raises RunError if no run has it, or it cannot be read or joined.
        """
        import pyarrow as pa

        from pasta.run.merge_tables import Part, merged_schema, rows_of

        names = self.tables().get(tool)
        if names is None:
            known = ", ".join(self.tables()) or "none"
            raise RunError(
                f"{self.path}: no results of the tool {tool!r}", remedy=f"there are {known}"
            )
        chosen = _chosen(self.path, tool, names, name)
        places = (
            (run, run.directory.results / tool / f"{chosen}.parquet") for run in self._root.runs
        )
        parts = [Part(run, path) for run, path in places if os.path.lexists(path)]
        schema = merged_schema(parts)
        return pa.concat_tables(
            [schema.empty_table(), *(rows for part in parts for rows in rows_of(part, schema))]
        )

    def __str__(self) -> str:
        """The report of the ranks side by side."""
        from pasta.report.ranks import text_report

        return text_report(self._root)

    def __repr__(self) -> str:
        return f"<pasta.Runs {self.path}: {counted(len(self._root.runs), 'run')}>"

    def _repr_html_(self) -> str:
        from pasta.report.notebook import html_of
        from pasta.report.ranks import render

        return html_of(render(self._root))

    def _repr_markdown_(self) -> str:
        from pasta.report.markdown import markdown_of
        from pasta.report.ranks import render

        return markdown_of(render(self._root))


def load(path: str | os.PathLike[str]) -> Run | Runs:
    """Opens a run directory as `Run`, or a directory of runs as `Runs`. Raises RunError."""
    return Runs(path) if is_root(Path(path)) else Run.load(path)


def _chosen(path: Path, tool: str, names: list[str], name: str | None) -> str:
    """The name of a table; the main one by default. Raises RunError."""
    if not names:
        raise RunError(f"{path}: {tool} has no tables")
    if name is None:
        return names[0]
    if name not in names:
        known = f"there are {', '.join(names)}"
        raise RunError(f"{path}: {tool} has no table {name!r}", remedy=known)
    return name


def _not_installed(package: str, instead: str) -> MissingDependency:
    return MissingDependency(
        f"{package} is not installed",
        remedy=f"pip install {package}, or use run.{instead}(…), which does not need it",
    )
