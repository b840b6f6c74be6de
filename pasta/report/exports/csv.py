"""Tables as CSV."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from pasta.lazy import pa
from pasta.report.exports.base import TableExport
from pasta.run.directory import RunDirectory
from pasta.run.files import batches, open_parquet, plain_schema, reading, with_texts
from pasta.table import formatted


class Csv(TableExport):
    """CSV files: absent values are empty, units are bytes, ns and fractions of 1, lists `8x4x1`."""

    name = "csv"
    help = "write each table as TOOL.TABLE.csv"

    def writer(self, table: Path, run: RunDirectory) -> Callable[[BinaryIO], object]:
        """Returns a function that writes the table as CSV. Raises RunError."""
        from pyarrow import csv

        stored = open_parquet(table, run.path)
        empty = pa.Table.from_batches([], plain_schema(stored.schema_arrow))

        def write(file: BinaryIO) -> None:
            writer = csv.CSVWriter(file, _plain(empty, table).schema)
            for batch in batches(stored, table):
                rows = pa.Table.from_batches([with_texts(batch, table)])
                writer.write_table(_plain(rows, table))
            writer.close()

        return write


def _plain(table: pa.Table, path: Path) -> pa.Table:
    """The table with columns cast to types that CSV supports. Raises RunError."""
    for at, column in enumerate(table.schema):
        values = table.column(at)
        with reading(path):
            if pa.types.is_list(column.type):
                texts = [None if each is None else formatted(each) for each in values.to_pylist()]
                table = table.set_column(at, column.name, pa.array(texts, pa.string()))
            elif pa.types.is_null(column.type) or pa.types.is_nested(column.type):
                table = table.set_column(at, column.name, values.cast(pa.string()))
    return table


EXPORT = Csv()
