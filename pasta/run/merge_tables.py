"""Merges a tool's table over all runs of a root, with the columns `rank` and `run`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pasta.errors import RunError
from pasta.run.files import (
    batches,
    open_parquet,
    plain_schema,
    reading,
    with_texts,
    writing,
)
from pasta.run.results import LAYOUT, layout_of
from pasta.run.root import RankRun

#: Rows buffered before they are written.
_ROWS = 1 << 16
#: Number of first rows of each rank that are interleaved, so that reports show all ranks.
_SHOWN = 100


@dataclass(frozen=True)
class Part:
    """A run's share of a table."""

    run: RankRun
    path: Path


def merged_schema(parts: Sequence[Part]) -> pa.Schema:
    """Columns of all parts after `rank` and `run`; a tool's column `rank` becomes `rank_of_tool`.

    Raises RunError if a column's types cannot be unified.
    """
    files = [open_parquet(part.path, part.run.directory.path) for part in parts]
    schemas = [_renamed(plain_schema(file.schema_arrow)) for file in files]
    try:
        merged = pa.unify_schemas(
            [schema.remove_metadata() for schema in schemas], promote_options="permissive"
        )
    except pa.ArrowException as error:
        raise RunError(f"the types of its columns differ between ranks ({error})") from None
    ranks = [part.run.rank for part in parts]
    layout = layout_of(schemas[0].metadata, parts[0].path)
    if len(set(ranks)) == len(ranks) and None not in ranks:
        layout["hidden"] = [*layout.get("hidden", []), "run"]
    metadata = {**(schemas[0].metadata or {}), LAYOUT: json.dumps(layout).encode()}
    own = [pa.field("rank", pa.int32()), pa.field("run", pa.string())]
    return pa.schema([*own, *merged], metadata=metadata)


def _renamed(schema: pa.Schema) -> pa.Schema:
    for name in ("rank", "run"):
        at = schema.get_field_index(name)
        if at >= 0:
            schema = schema.set(at, schema.field(at).with_name(f"{name}_of_tool"))
    return schema


def readable(parts: Iterable[Part], problems: list[str]) -> list[Part]:
    """Parts whose files can be read; adds a line to `problems` for each other one."""
    kept = []
    for part in parts:
        try:
            open_parquet(part.path, part.run.directory.path)
            kept.append(part)
        except RunError as error:
            problems.append(f"{error}: left out")
    return kept


def rows_of(
    part: Part, schema: pa.Schema, first: int = 0, last: int | None = None
) -> Iterator[pa.Table]:
    """Rows `first` to `last` of a part with the merged columns, a bounded number at a time. Raises
    RunError for a damaged file."""
    at = 0
    file = open_parquet(part.path, part.run.directory.path)
    for coded in batches(file, part.path, rows=_ROWS, first=last):
        batch = with_texts(coded, part.path)
        begin, end = max(first - at, 0), len(batch) if last is None else min(last - at, len(batch))
        at += len(batch)
        if begin < end:
            with reading(part.path):
                table = _conformed(batch.slice(begin, end - begin), part.run, schema)
            yield table
        if last is not None and at >= last:
            return


def _conformed(batch: pa.RecordBatch, run: RankRun, schema: pa.Schema) -> pa.Table:
    own = _renamed(batch.schema)
    columns = []
    for field in schema:
        if field.name == "rank":
            columns.append(pa.repeat(pa.scalar(run.rank, field.type), len(batch)))
        elif field.name == "run":
            columns.append(pa.repeat(pa.scalar(run.name, field.type), len(batch)))
        else:
            at = own.get_field_index(field.name)
            column = batch.column(at) if at >= 0 else pa.nulls(len(batch))
            columns.append(column.cast(field.type))
    return pa.Table.from_arrays(columns, schema=schema)


def merged_rows(
    parts: Sequence[Part], schema: pa.Schema, problems: list[str]
) -> Iterator[pa.Table]:
    """Rows of all parts: the first rows of all interleaved, since they matter most, then the rest
    part by part. Of a damaged file the rows before the damage are kept."""
    heads, order = [], []
    damaged = set()

    def guarded(part: Part, first: int, last: int | None) -> Iterator[pa.Table]:
        try:
            yield from rows_of(part, schema, first, last)
        except RunError as error:
            damaged.add(part.path)
            problems.append(f"{error}: left out")

    for number, part in enumerate(parts):
        at = 0
        for table in guarded(part, 0, _SHOWN):
            heads.append(table)
            order += [(at + row, number) for row in range(len(table))]
            at += len(table)
    if heads:
        keys = np.array(order)
        yield pa.concat_tables(heads).take(np.lexsort((keys[:, 1], keys[:, 0])))
    for part in parts:
        if part.path not in damaged:
            yield from guarded(part, _SHOWN, None)


def merge_table(parts: Sequence[Part], target: Path, problems: list[str]) -> bool:
    """Writes the merged table; False, with a line in `problems`, if that is not possible."""
    parts = readable(parts, problems)
    if not parts:
        return False
    try:
        schema = merged_schema(parts)
    except RunError as error:
        problems.append(f"{parts[0].path.parent.name}: table {target.stem}: left out, {error}")
        return False
    held: list[pa.Table] = []
    with writing(target) as file, pq.ParquetWriter(file, schema, compression="zstd") as writer:
        for table in merged_rows(parts, schema, problems):
            held.append(table)
            if sum(len(each) for each in held) >= _ROWS:
                writer.write_table(pa.concat_tables(held))
                held = []
        if held:
            writer.write_table(pa.concat_tables(held))
    return True
