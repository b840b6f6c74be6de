"""Hostile runs: structure-aware and raw mutations of a run directory."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

ESCAPE = "\x1b]0;owned\x07\x1b[2J\u202eevil"
#: Targets of hostile names, relative to a sibling of the run's directory.
OUTSIDE = "canary"

Mutation = Callable[[random.Random, Path], str | None]


def hostile_names(run: Path) -> list[str]:
    outside = run.parent / OUTSIDE
    up = "../" * 6
    return [
        "../../../canary/table", str(outside / "table"), "..", ".", "", ".hidden", "a/b", "a\0b",
        "\x1b[2J", "x" * 300, "é" * 90, "\ud800", "a\nb", "CON", "-rf", "~", "$(id)",
        f"{up}etc/passwd", "result", "run.json", "=cmd|' /C calc'!A0", "tab\tle", "\\\\host\\x",
    ]  # fmt: skip


def values(rng: random.Random, run: Path) -> Any:
    """A value that every reader must handle."""
    deep: Any = []
    for _ in range(rng.choice([2, 50, 600])):
        deep = [deep]
    return rng.choice(
        [
            None, True, False, 0, 1, -1, 1.5, -0.0, 2**31, 2**32, 2**53, 2**63 - 1, 2**63, 2**64,
            2**200, -(2**63), -(2**63) - 1, 10**18, 1e308, float("nan"), float("inf"), "", " ",
            "0", "text", ESCAPE, "x" * 5000, "\ud800", "\0", "</script><script>alert(1)",
            "{{7*7}}", "[bold]x[/bold]", "%s%n", [], {}, [None], [[]], {"": None}, {"a": {"b": 1}},
            ["text"], [1], [1, "a", None], deep, {ESCAPE: ESCAPE}, list(range(1000)),
            rng.choice(hostile_names(run)), [rng.choice(hostile_names(run))],
        ]
    )  # fmt: skip


# ---- JSON ----


def _nodes(value: Any, found: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    keys = list(value) if isinstance(value, dict) else range(len(value))
    for key in keys:
        found.append((value, key))
        if isinstance(value[key], (dict, list)):
            _nodes(value[key], found)
    return found


def _json_files(run: Path) -> list[Path]:
    return sorted(run.rglob("*.json"))


def change_json(rng: random.Random, run: Path) -> str | None:
    """Mutates values, keys and lists of a document."""
    path = rng.choice(_json_files(run))
    document = json.loads(path.read_text())
    done = []
    for _ in range(rng.choice([1, 1, 1, 2, 5])):
        nodes = _nodes(document, [])
        if not nodes:
            break
        # whole parts as often as single numbers of a long list
        parent, key = rng.choice(nodes if rng.random() < 0.3 else [
            each for each in nodes if isinstance(each[0], dict)] or nodes)  # fmt: skip
        what = rng.randrange(6)
        done.append(f"{what} {key!r}")
        if what == 0:
            del parent[key]
        elif what == 1 and isinstance(parent, dict):
            parent[rng.choice(hostile_names(run))] = parent.pop(key)
        elif what == 2 and isinstance(parent, list):
            parent.extend(parent[:] * rng.choice([1, 3]))
        elif what == 3 and isinstance(parent[key], str):
            parent[key] += rng.choice([ESCAPE, "/", "\0", "\n", "\ud800", "x" * 5000])
        elif what == 4 and isinstance(parent[key], (int, float)):
            parent[key] = rng.choice([-parent[key], parent[key] * 2**40, float(parent[key])])
        else:
            parent[key] = values(rng, run)
    path.write_text(json.dumps(document))
    return f"{path.relative_to(run)}: {', '.join(done)}"


def change_json_text(rng: random.Random, run: Path) -> str | None:
    """Mutates the text in ways that no JSON library would write."""
    path = rng.choice(_json_files(run))
    text = path.read_text()
    at = rng.randrange(len(text) + 1)
    token = rng.choice(
        ["NaN", "-Infinity", "1" * 5000, "[" * 100_000, '{"a":' * 50_000, "\\ud800", "\0", ",", "}",
         '"schema": 99999999999999999999,', '"a":1,"a":2,', "1e999", "\ufeff", "//x\n"]
    )  # fmt: skip
    path.write_text(text[:at] + token + text[at:])
    return f"{path.relative_to(run)}: {token[:20]!r} at {at}"


def name_things(rng: random.Random, run: Path) -> str | None:
    """Gives tables, files, tools and runs unsafe names."""
    documents = sorted(run.glob("results/*/result.json"))
    if not documents:
        return None
    path = rng.choice(documents)
    document = json.loads(path.read_text())
    name = rng.choice(hostile_names(run))
    what = rng.choice(["tables", "files", "tool", "both"])
    if what == "tool":
        document["tool"] = name
    for key in ("tables", "files"):
        if what in (key, "both"):
            document.setdefault(key, []).insert(0, name)
    path.write_text(json.dumps(document))
    return f"{path.relative_to(run)}: {what} {name[:40]!r}"


# ---- Parquet ----

_EXTREMES = [0, 1, -1, 2, 255, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**48, 2**53, 2**62,
             2**63 - 1, 2**63, 2**64 - 2, 2**64 - 1, -(2**31), -(2**63)]  # fmt: skip


def _numbers(rng: random.Random, column: pa.ChunkedArray) -> pa.Array:
    dtype = column.type.to_pandas_dtype()
    values = np.array(column.combine_chunks().fill_null(0).to_numpy(zero_copy_only=False))
    how = rng.randrange(4)
    if np.issubdtype(dtype, np.floating):
        values[rng.randrange(len(values)) :] = rng.choice([np.nan, np.inf, -np.inf, 1e308, -1.0])
    elif how == 0:
        values[:] = rng.choice(_EXTREMES) % 2 ** (8 * values.itemsize - 1)
    elif how == 1:
        rng.shuffle(values)
    else:
        for _ in range(rng.choice([1, 3, len(values)])):
            low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
            value = rng.choice([*_EXTREMES, rng.randrange(high), rng.randrange(200)])
            values[rng.randrange(len(values))] = min(max(value, low), high)
    mask = None
    if rng.random() < 0.2:
        mask = np.array([rng.random() < 0.3 for _ in values])
    return pa.array(values, column.type, mask=mask)


def _texts(rng: random.Random, rows: int, run: Path) -> pa.Array:
    choices = [ESCAPE, "", "x" * 3000, "a\x1fb", "[red]x", "=1+1", *hostile_names(run)]
    choices = [each.encode(errors="ignore").decode() for each in choices]
    return pa.array([rng.choice([*choices, None]) for _ in range(rows)], pa.string())


def _other_type(rng: random.Random, rows: int) -> pa.Array:
    return rng.choice(
        [
            pa.nulls(rows), pa.array([True] * rows), pa.array([[1, None]] * rows),
            pa.array([[1.5]] * rows), pa.array([{"a": 1}] * rows), pa.array([b"\xff"] * rows),
            pa.array([1e300] * rows), pa.array([-1] * rows, pa.int8()), pa.array(["a"] * rows),
            pa.array([2**62] * rows, pa.timestamp("us")), pa.array([["a"]] * rows),
            pa.array(range(rows), pa.uint64()), pa.array([0] * rows, pa.duration("s")),
            pa.array([-5] * rows, pa.date32()), pa.array(["1.5"] * rows).cast(pa.decimal128(9, 2)),
            pa.array([1] * rows).dictionary_encode(), pa.array([None] * rows, pa.string()),
            pa.array([list(range(40))] * rows), pa.array([float("nan")] * rows),
        ]
    )  # fmt: skip


def _metadata(rng: random.Random, table: pa.Table) -> pa.Table:
    layout = rng.choice(
        [b"{", b"[]", b'{"shown": -1}', b'{"shown": 1e9}', b'{"hidden": 5}', b'{"shown": 99999999}',
         b'{"keys": ["none"]}', b'{"sums": [["a"]]}', b"\xff", b"[" * 9999, b'{"shown": null}',
         json.dumps({"shown": 5, "keys": table.column_names, "sums": table.column_names,
                     "levels": table.column_names}).encode()]
    )  # fmt: skip
    title = rng.choice([ESCAPE.encode(), b"\xff\xfe", b"x" * 9999])
    fields = [
        field.with_metadata({
            b"unit": rng.choice([b"bytes", b"address", b"share", b"ns", b"count", b"\xff", b"?"]),
            b"label": rng.choice([ESCAPE.encode(), b"", b"\xff", b"label"]),
        })
        for field in table.schema
    ]  # fmt: skip
    return table.cast(pa.schema(fields, {b"pasta.layout": layout, b"title": title}))


def change_parquet(rng: random.Random, run: Path) -> str | None:
    """Mutates columns, rows, types and metadata of a table or of events."""
    paths = sorted(run.rglob("*.parquet"))
    if not paths:
        return None
    path = rng.choice(paths)
    table = pq.ParquetFile(path).read()
    done = []
    for _ in range(rng.choice([1, 1, 2, 4])):
        if not table.num_columns:
            break
        at = rng.randrange(table.num_columns)
        field = table.schema.field(at)
        what = rng.choice(["numbers"] * 5 + ["text", "type", "drop", "double", "rename", "rows",
                          "none", "order", "metadata"])  # fmt: skip
        done.append(f"{what} {field.name[:30]}")
        if what == "numbers" and len(table):
            types = pa.types
            number = [
                n
                for n, each in enumerate(table.schema)
                if types.is_integer(each.type) or types.is_floating(each.type)
            ]
            if number:
                at = rng.choice(number)
                field = table.schema.field(at)
                done[-1] = f"numbers {field.name[:30]}"
                table = table.set_column(at, field.name, _numbers(rng, table.column(at)))
        elif what == "text":
            table = table.set_column(at, field.name, _texts(rng, len(table), run))
        elif what == "type":
            table = table.set_column(at, field.name, _other_type(rng, len(table)))
        elif what == "drop":
            table = table.remove_column(at)
        elif what == "double":
            table = table.append_column(field.name, table.column(at))
        elif what == "rename":
            name = rng.choice([ESCAPE, "", "rank", "run", "time", "position", "a\0b"])
            table = table.rename_columns(
                [name if n == at else each for n, each in enumerate(table.column_names)]
            )
        elif what == "rows" and 0 < len(table) < 1000:
            table = pa.concat_tables([table] * rng.choice([2, 5]))
        elif what == "none":
            table = table.slice(0, 0)
        elif what == "order" and len(table):
            order = list(range(len(table)))
            rng.shuffle(order)
            table = table.take(order)
        elif what == "metadata":
            table = _metadata(rng, table)
    pq.write_table(table, path)
    return f"{path.relative_to(run)}: {', '.join(done)}"


def expand_parquet(rng: random.Random, run: Path) -> str | None:
    """A small file of many rows, many columns or long texts."""
    paths = sorted(run.rglob("*.parquet"))
    if not paths:
        return None
    path = rng.choice(paths)
    what = rng.randrange(4)
    if what == 0:
        table = pa.table({"n": pa.array(np.zeros(rng.choice([10**6, 3 * 10**7]), np.int8))})
    elif what == 1:
        table = pa.table({f"c{n}": [1] for n in range(rng.choice([500, 6000]))})
    elif what == 2:
        codes = pa.array(np.zeros(rng.choice([3, 1000]), np.int32))
        table = pa.table({"t": pa.DictionaryArray.from_arrays(codes, ["x" * (1 << 20)])})
    else:
        table = pa.table({"l": pa.array([list(range(10)) * 10_000] * 20)})
    pq.write_table(table, path, compression="zstd")
    return f"{path.relative_to(run)}: bomb {what}"


# ---- accesses ----


def change_accesses(rng: random.Random, run: Path) -> str | None:
    """Mutates words of access records, positions of chunks, and columns of their stream."""
    paths = sorted(run.rglob("*.arrows"))
    if not paths:
        return None
    path = rng.choice(paths)
    with pa.ipc.open_stream(path) as stream:
        table = stream.read_all()
    words = table.column("words").combine_chunks()
    values = np.array(words.values)
    what = rng.choice(["words", "words", "heads", "cut", "position", "type"])
    if what in ("words", "heads"):
        for _ in range(rng.choice([1, 5, 200])):
            at = rng.randrange(len(values))
            if what == "heads":
                at -= at % 8
            flipped = values[at] ^ 1 << rng.randrange(63)
            values[at] = rng.choice([*_EXTREMES[:14], rng.randrange(1 << 62), -1, flipped])
        arrays = [table.column(0), pa.LargeListArray.from_arrays(words.offsets, pa.array(values))]
    elif what == "cut":
        arrays = [table.column(0), pc.list_slice(words, 0, rng.choice([1, 7, 9, 1000]))]
        arrays[1] = arrays[1].cast(words.type)
    elif what == "position":
        position = rng.choice([0, 2**63, 2**64 - 1, None])
        arrays = [pa.array([position] * len(table), pa.uint64()), words]
    else:
        arrays = [table.column(0), _other_type(rng, len(table))]
    changed = pa.table(arrays, names=table.column_names)
    changed = changed.replace_schema_metadata(table.schema.metadata)
    with pa.ipc.new_stream(path, changed.schema) as out:
        out.write_table(changed)
    return f"{path.relative_to(run)}: {what}"


# ---- bytes and files ----


def change_bytes(rng: random.Random, run: Path) -> str | None:
    """Flips, removes, repeats and replaces bytes of any file."""
    path = rng.choice(sorted(each for each in run.rglob("*") if each.is_file()))
    data = bytearray(path.read_bytes())
    what = rng.choice(["flip", "flip", "flip", "cut", "grow", "zero", "garbage", "empty", "tail"])
    if what == "flip" and data:
        for _ in range(rng.choice([1, 1, 4, 30])):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    elif what == "tail" and len(data) > 64:  # where Parquet keeps its metadata
        data[-rng.randrange(9, min(len(data), 2000))] = rng.randrange(256)
    elif what == "cut":
        data = data[: rng.randrange(len(data) + 1)]
    elif what == "grow":
        data += data[: rng.randrange(len(data) + 1)]
    elif what == "zero" and data:
        at = rng.randrange(len(data))
        data[at : at + 100] = bytes(len(data[at : at + 100]))
    elif what == "garbage":
        data = bytearray(rng.randbytes(rng.choice([3, 500])))
    elif what == "empty":
        data = bytearray()
    path.write_bytes(data)
    return f"{path.relative_to(run)}: {what}"


def swap_files(rng: random.Random, run: Path) -> str | None:
    files = sorted(each for each in run.rglob("*") if each.is_file())
    one, other = rng.choice(files), rng.choice(files)
    first, second = one.read_bytes(), other.read_bytes()
    one.write_bytes(second)
    other.write_bytes(first)
    return f"{one.relative_to(run)} and {other.relative_to(run)} swapped"


def change_files(rng: random.Random, run: Path) -> str | None:
    """Removes files, or replaces them by links, pipes and directories."""
    path = rng.choice(sorted(run.rglob("*")))
    what = rng.choice(["gone", "link", "link", "loop", "pipe", "directory", "dangling", "name"])
    outside = run.parent / OUTSIDE
    if what == "name":
        name = rng.choice(hostile_names(run))
        if (
            name in ("", ".", "..")
            or "/" in name
            or "\0" in name
            or len(name.encode(errors="ignore")) > 250
        ):
            return None
        path.rename(path.with_name(name.encode(errors="ignore").decode() or "x"))
        return f"{path.relative_to(run)}: named {name[:40]!r}"
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    if what == "link":
        target = rng.choice([outside / "table.parquet", outside, Path("/dev/zero"), Path("/"),
                             outside / "run.json", run / "events", run])  # fmt: skip
        path.symlink_to(target)
    elif what == "loop":
        path.symlink_to(path.name)
    elif what == "dangling":
        path.symlink_to(outside / "nothing")
    elif what == "pipe":
        os.mkfifo(path)
    elif what == "directory":
        path.mkdir()
    return f"{path.relative_to(run)}: {what}"


MUTATIONS: dict[Mutation, int] = {
    change_json: 5, change_json_text: 1, name_things: 2, change_parquet: 8, expand_parquet: 1,
    change_accesses: 2, change_bytes: 4, swap_files: 1, change_files: 2,
}  # fmt: skip


def mutate(rng: random.Random, run: Path) -> list[str]:
    """Mutates a run in place; returns a description."""
    done = []
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        (change,) = rng.choices(list(MUTATIONS), list(MUTATIONS.values()))
        try:
            what = change(rng, run)
        except (
            OSError, ValueError, TypeError, AttributeError, LookupError, RecursionError,
            pa.ArrowException,
        ) as error:  # fmt: skip
            what = f"{change.__name__}: already damaged ({type(error).__name__})"
        done.append(what or "nothing")
    return done
