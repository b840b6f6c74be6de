"""Runs as Python and notebooks see them: results of tools as tables, alone and compared."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
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

    from pasta.capabilities import Capabilities
    from pasta.run.diff import Comparison
    from pasta.tool import Finding


class Tables(ABC):
    """Tables by the name of their tool, and by their own; without one a tool's main table."""

    @abstractmethod
    def tables(self) -> dict[str, list[str]]:
        """Names of the tables of each tool, its main one first."""

    @abstractmethod
    def arrow(self, tool: str, name: str | None = None) -> pa.Table:
        """A table as pyarrow's. Units and labels are in the metadata of the fields.

        Raises RunError for a tool or table that there is not.
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
        assert isinstance(found, polars.DataFrame)  # a table's, not a column's
        return found

    def __getitem__(self, key: str | tuple[str, str]) -> pandas.DataFrame:
        """`run["tensors"]`, `run["tensors", "peak"]`: as `table`."""
        return self.table(key) if isinstance(key, str) else self.table(*key)

    def __contains__(self, tool: object) -> bool:
        return tool in self.tables()


class Run(Tables):
    """A run directory, read: what `pasta.load` and `pasta.profile` give.

    Tables are named by their tool, and by their own name where a tool has several; without one
    the tool's main table is meant. Printed it is the text report, in a notebook HTML.
    """

    def __init__(self, path: str | os.PathLike[str], *, pending: str | None = None) -> None:
        """The run at `path`; `pending` says why its results cannot be read yet."""
        self.path = Path(path)
        self._pending = pending

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Run:
        """Opens a run directory. Raises RunError where `path` is none."""
        run = cls(path)
        run._directory()
        return run

    def _directory(self) -> RunDirectory:
        if self._pending:
            raise RunError(self._pending)
        return RunDirectory.open(self.path)

    @property
    def manifest(self) -> dict[str, Any]:
        """What ran, where, how it ended and what was lost: run.json."""
        return self._directory().manifest()

    @property
    def capabilities(self) -> Capabilities:
        """What the sources of the run could give: kinds of events, fields, accesses."""
        from pasta.capabilities import Capabilities

        sources = self.manifest.get("sources")
        if sources is None:  # of a run that was cut short
            told = self.events("process_start", ["source"]).column("source").to_pylist()
            sources = dict.fromkeys(source for source in told if source)
        return Capabilities(tuple(sources))

    @property
    def failures(self) -> dict[str, str]:
        """Why tools were disabled, by tool."""
        failures = self.manifest.get("failures", {})
        return {tool: f"{why['reason']} (in {why['where']})" for tool, why in failures.items()}

    def tables(self) -> dict[str, list[str]]:
        from pasta.run.results import stored_tables

        return stored_tables(self._directory().results)

    def summary(self, tool: str) -> str:
        """What a tool says in a line. Raises RunError for one that there is not."""
        from pasta.run.results import read_summary

        self._names(tool)
        return read_summary(self._directory().results, tool)

    def arrow(self, tool: str, name: str | None = None) -> pa.Table:
        from pasta.run.results import read_table

        return read_table(self._directory().results, tool, self._name(tool, name))

    def findings(self) -> list[Finding]:
        """What all tools advise, the most promising first."""
        from pasta.run.results import ranked, read_results

        return [finding for _, finding in ranked(read_results(self._directory().results))]

    def event_counts(self) -> dict[str, int]:
        """Recorded events by kind. Raises RunError for files that cannot be read."""
        from pasta.run.events import counts

        return counts(self._directory().events)

    def events(self, kind: str, columns: Sequence[str] | None = None) -> pa.Table:
        """Recorded events of a kind in their order as pyarrow's table: all columns, or these.

        Raises RunError for a kind or column that there is not.
        """
        import pyarrow as pa

        from pasta.run.files import reading

        batches = list(self.event_batches(kind, columns))
        with reading(self.path / "events" / kind):  # its files may differ in their columns
            return pa.Table.from_batches(batches)

    def event_batches(
        self, kind: str, columns: Sequence[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """As `events`, a bounded number of rows at a time."""
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
        """Runs tools on the recorded events: a run with their results.

        Arguments are those of `pasta.profile`, settings those of tools and filters. Without `out`
        its directory is temporary, and removed with the object. Raises PastaError.
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
        """What changed from this run to `after`. Raises RunError."""
        from pasta.run.diff import Comparison

        return Diff(Comparison(self._directory(), after._directory()))

    def _names(self, tool: str) -> list[str]:
        tables = self.tables()
        if tool not in tables:
            failure = self.failures.get(tool)
            if failure:
                raise RunError(f"tool {tool} was disabled: {failure}")
            known = f"there are {', '.join(tables)}" if tables else "there are none"
            raise RunError(f"{self.path}: no results of a tool {tool!r}", remedy=known)
        return tables[tool]

    def _name(self, tool: str, name: str | None) -> str:
        return _chosen(self.path, tool, self._names(tool), name)

    def __str__(self) -> str:
        """The text report; of a block that has not ended, that it has not."""
        if self._pending:
            return self._pending
        from pasta.report.text import text_report

        return text_report(self._directory())

    def __repr__(self) -> str:
        return f"<pasta.Run {self._pending or self.path}>"

    def _repr_html_(self) -> str | None:
        if self._pending:
            return None
        from pasta.report.html import render_html

        return render_html(self._directory())


class Diff(Tables):
    """Two runs compared: what `Run.diff` gives. Printed it is the text of `pasta diff`.

    A table has its key columns, `run`, which says whether a row is in "both", "before" or "after",
    and for each column COLUMN_before, _after, _difference and _ratio.
    """

    def __init__(self, comparison: Comparison) -> None:
        self._comparison = comparison

    @property
    def notes(self) -> list[str]:
        """What cannot be compared, a line for each."""
        return self._comparison.notes

    def tables(self) -> dict[str, list[str]]:
        return self._comparison.tables

    def arrow(self, tool: str, name: str | None = None) -> pa.Table:
        from pasta.run.diff import require

        return self._comparison.table(tool, require(self._comparison, tool, name)).to_arrow()

    def __str__(self) -> str:
        from pasta.report.diff import text_report

        return text_report(self._comparison)

    def __repr__(self) -> str:
        comparison = self._comparison
        return f"<Diff {comparison.before.path} {comparison.after.path}>"


class Runs(Tables):
    """The runs of a root: what `pasta.load` gives for a directory of runs.

    Tables are those of all runs, behind the columns `rank` and `run`, the name of the run's
    directory. Printed it is the ranks side by side.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Opens a root. Raises RunError where there is no run in `path`."""
        self.path = Path(path)
        self._root = Root.open(self.path)

    @cached_property
    def ranks(self) -> list[Run]:
        """The runs: those with a rank in its order, then the others."""
        return [Run(run.directory.path) for run in self._root.runs]

    def rank(self, number: int) -> Run:
        """The run of a rank's first process. Raises RunError where there is none."""
        return Run(self._root.of_rank(number)[0].directory.path)

    @property
    def missing(self) -> list[int]:
        """Ranks of the job that have no run."""
        return self._root.missing

    @property
    def problems(self) -> dict[str, str]:
        """Why directories of the root give no run, by name."""
        return {problem.path.name: problem.why for problem in self._root.problems}

    def tables(self) -> dict[str, list[str]]:
        """Names of the tables of each tool of any run, its main one first. Raises RunError."""
        found: dict[str, dict[str, None]] = {}
        for run in self.ranks:
            for tool, names in run.tables().items():
                found.setdefault(tool, {}).update(dict.fromkeys(names))
        return {tool: list(names) for tool, names in sorted(found.items())}

    def arrow(self, tool: str, name: str | None = None) -> pa.Table:
        """A table of all runs that have it, as pyarrow's, run by run.

        Raises RunError where no run has it, or it cannot be read or joined.
        """
        import pyarrow as pa

        from pasta.run.merge import Part, merged_schema, rows_of

        names = self.tables().get(tool)
        if names is None:
            known = ", ".join(self.tables()) or "none"
            raise RunError(
                f"{self.path}: no results of a tool {tool!r}", remedy=f"there are {known}"
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
        """The ranks side by side."""
        from pasta.report.ranks import text_report

        return text_report(self._root)

    def __repr__(self) -> str:
        return f"<pasta.Runs {self.path}: {counted(len(self._root.runs), 'run')}>"


def load(path: str | os.PathLike[str]) -> Run | Runs:
    """A `Run` of a run directory, `Runs` of a directory of them. Raises RunError for neither."""
    return Runs(path) if is_root(Path(path)) else Run.load(path)


def _chosen(path: Path, tool: str, names: list[str], name: str | None) -> str:
    """The name of a table: the main one where none is given. Raises RunError."""
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
        remedy=f"pip install {package}, or use run.{instead}(…), which needs none",
    )
