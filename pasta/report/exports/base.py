"""Base classes of export formats, each an option of `pasta report`."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, ClassVar

from pasta.errors import RunError
from pasta.report.files import directory, written
from pasta.run.directory import RunDirectory
from pasta.table import counted

if TYPE_CHECKING:
    from pasta.report.weights import Weight


@dataclass(frozen=True)
class Request:
    """A run to write, and the destination.

    `target` is the user's argument: a file, - for stdout, or a directory. `weight` is the weight of
    stacks; None: the first that the run has. `source`: with lines of the program's source.
    """

    run: RunDirectory
    target: str
    weight: Weight | None = None
    source: bool = True


class Export(ABC):
    """A format. `pasta report --NAME TARGET` writes it."""

    name: ClassVar[str]
    #: Help text and metavar of the option.
    help: ClassVar[str]
    metavar: ClassVar[str]
    #: File name in the run directory, if the option is given without a target.
    default: ClassVar[str | None] = None

    @property
    def option(self) -> str:
        """Attribute of the option in parsed arguments."""
        return self.name.replace("-", "_")

    #: Whether the export uses `Request.weight`.
    weighted: ClassVar[bool] = False

    @abstractmethod
    def write(self, request: Request) -> str:
        """Writes the run and returns a description of the output. Raises PastaError."""


class FileExport(Export):
    """A format with one file per run."""

    metavar = "FILE"

    @abstractmethod
    def writer(self, request: Request) -> Callable[[BinaryIO], object]:
        """Reads the run and returns a function that writes the file. Raises PastaError."""

    def write(self, request: Request) -> str:
        """Writes the file. Raises as `Export.write`."""
        write = self.writer(request)
        with written(request.run, request.target) as file:
            write(file)
        return os.path.relpath(request.target) if request.target != "-" else request.target


class TableExport(Export):
    """A format with one file per table: `TOOL.TABLE.NAME`."""

    metavar = "OUTDIR"

    @abstractmethod
    def writer(self, table: Path, run: RunDirectory) -> Callable[[BinaryIO], object]:
        """Opens a stored table and returns a function that writes it. Raises RunError."""

    def write(self, request: Request) -> str:
        """Writes a file per table. Raises as `Export.write`."""
        # imported here: pyarrow takes long
        from pasta.run.results import stored_tables

        run, place = request.run, directory(request.run, request.target)
        found = [(tool, name) for tool, all in stored_tables(run.results).items() for name in all]
        if not found:
            raise RunError(f"{run.path}: no tool has a table")
        for tool, name in found:
            write = self.writer(run.results / tool / f"{name}.parquet", run)
            with written(run, str(place / f"{tool}.{name}.{self.name}")) as file:
                write(file)
        return f"{counted(len(found), 'table')} in {request.target}"
