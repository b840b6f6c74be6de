"""How many launches could be inferred from one probed launch of their shape: an experiment.

    pasta-preload -t access_count -o run -- python train.py
    python bench/gpu/derived.py run [...]

A shape is a kernel with its grid, block and dynamic shared memory. Compares each launch with the
first one of its shape, and with the first one at its place: its position in a row of launches of
the shape, and the last two rows before, with their lengths, on the same thread. Compared are
accesses and bytes by kind of access, and the numbers of objects that were touched. Prints the share
of launches and of accesses where all are equal, and the kernels where they are not.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

_SHAPE = (
    "name", *(f"{what}_{axis}" for what in ("grid", "block") for axis in "xyz"), "shared_dynamic",
)  # fmt: skip
Key = tuple[Any, ...]


def shapes(run: Path) -> tuple[dict[int, Key], dict[int, Key]]:
    """The shape of each launch, and its shape and place, by its number."""
    parts = sorted(str(each) for each in (run / "events").glob("kernel_launch-[0-9]*.parquet"))
    columns = ds.dataset(parts).to_table(["ordinal", "thread", *_SHAPE]).sort_by("ordinal")
    found: dict[int, Key] = {}
    places: dict[int, Key] = {}
    rows: dict[int, list[Key]] = defaultdict(list)  # by thread: shape and length, the last one last
    for number, thread, *shape in zip(*(each.to_pylist() for each in columns), strict=True):
        row = rows[thread]
        if row and row[-1][0] == shape:
            row[-1] = (shape, row[-1][1] + 1)
        else:
            row[:] = [*row[-2:], (shape, 1)]
        found[number] = tuple(shape)
        places[number] = tuple((*each, length) for each, length in row)
    return found, places


def counts(run: Path) -> dict[int, tuple[Any, ...]]:
    """What each probed launch accessed, by its number: kinds with their numbers, and objects."""
    results = run / "results" / "access_count"
    found: dict[int, list[Any]] = defaultdict(list)
    for file, columns in (
        ("launches", ("kind", "instructions", "accesses", "bytes")),
        ("launch_objects", ("objects", "known", "unknown")),
    ):
        table = pq.ParquetFile(results / f"{file}.parquet").read()
        for row in table.select(["launch", *columns]).to_pylist():
            found[row.pop("launch")].append(tuple(row.values()))
    return {launch: tuple(sorted(each, key=repr)) for launch, each in found.items()}


def accesses(run: Path) -> dict[int, int]:
    """Accesses of each probed launch."""
    table = pq.ParquetFile(run / "results" / "access_count" / "launches.parquet").read()
    summed = pa.table(table).group_by("launch").aggregate([("accesses", "sum")])
    return dict(zip(summed["launch"].to_pylist(), summed["accesses_sum"].to_pylist(), strict=True))


def compared(run: Path) -> None:
    """Print what one run shows."""
    by_launch, numbers = counts(run), accesses(run)
    of_shape, of_place = shapes(run)
    for what, of_launch in (("shapes", of_shape), ("places", of_place)):
        alike: dict[Key, list[int]] = defaultdict(list)
        for launch in sorted(by_launch):
            alike[of_launch[launch]].append(launch)
        different: dict[str, list[int]] = defaultdict(list)
        for launches in alike.values():
            if any(by_launch[each] != by_launch[launches[0]] for each in launches):
                different[str(of_shape[launches[0]][0])] += launches
        unequal = [each for some in different.values() for each in some]
        lost = sum(numbers[each] for each in unequal) / max(sum(numbers.values()), 1)
        print(
            f"{run}: {len(by_launch):,} launches of {len(alike):,} {what}; the first one tells"
            f" {len(by_launch) - len(alike):,} others, {len(unequal):,} of them in {what} that are"
            f" not alike, with {lost:.2%} of all accesses"
        )
        for name, launches in sorted(different.items(), key=lambda item: -len(item[1])):
            values = [numbers[each] for each in launches]
            print(f"  {len(launches):,} launches, {min(values):,} to {max(values):,}: {name[:100]}")


def main() -> None:
    """Compare the launches of runs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", type=Path, nargs="+")
    for run in parser.parse_args().runs:
        compared(run)


if __name__ == "__main__":
    main()
