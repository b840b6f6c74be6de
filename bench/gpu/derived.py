"""How many launches could be inferred from one probed launch of their shape: an experiment.

    pasta-preload -t access_count -o run -- python train.py
    python bench/gpu/derived.py run [...]

A shape is a kernel with its grid, block and dynamic shared memory. Compares each launch with the
first one of its shape: accesses and bytes by kind of access, and the objects that were touched.
They are equal if the kernel's addresses do not depend on data. Prints the share of launches and
of accesses in shapes where all are equal, and the kernels where they are not.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

_SHAPE = ("name", *(f"{what}_{axis}" for what in ("grid", "block") for axis in "xyz"))


def shapes(run: Path) -> dict[int, tuple[Any, ...]]:
    """The shape of each launch, by its number."""
    parts = sorted(str(each) for each in (run / "events").glob("kernel_launch-[0-9]*.parquet"))
    launches = ds.dataset(parts).to_table(["ordinal", *_SHAPE, "shared_dynamic"]).to_pylist()
    return {each.pop("ordinal"): tuple(each.values()) for each in launches}


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
    of_launch, by_launch, numbers = shapes(run), counts(run), accesses(run)
    alike: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    for launch in sorted(by_launch):
        alike[of_launch[launch]].append(launch)
    repeated = {shape: each for shape, each in alike.items() if len(each) > 1}
    different: dict[str, list[int]] = defaultdict(list)
    for shape, launches in repeated.items():
        wrong = [each for each in launches if by_launch[each] != by_launch[launches[0]]]
        if wrong:
            different[str(shape[0])] += launches
    every, unequal = sum(numbers.values()), [each for some in different.values() for each in some]
    told = sum(map(len, repeated.values())) - len(repeated)
    lost = sum(numbers[each] for each in unequal)
    print(
        f"{run}: {len(by_launch):,} launches of {len(alike):,} shapes; a shape's first launch tells"
        f" {told:,} others, {len(unequal):,} of them in shapes that are not alike, with"
        f" {lost / max(every, 1):.2%} of all accesses"
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
