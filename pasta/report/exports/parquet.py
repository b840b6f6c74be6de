"""Tables as stored, with units and labels in the schema."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from pasta.report.exports.base import TableExport
from pasta.run.directory import RunDirectory
from pasta.run.files import regular_file, unreadable


class Parquet(TableExport):
    """Stored tables, copied as they are."""

    name = "parquet"
    help = "write each table as TOOL.TABLE.parquet"

    def writer(self, table: Path, run: RunDirectory) -> Callable[[BinaryIO], object]:
        """Returns a function that copies the table. Raises RunError."""
        stored = regular_file(table, run.path)
        try:
            source = stored.open("rb")
        except OSError as error:
            raise unreadable(stored, error) from None

        def write(file: BinaryIO) -> None:
            with source:
                shutil.copyfileobj(source, file)

        return write


EXPORT = Parquet()
