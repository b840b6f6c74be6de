"""Recorded accesses round-trip, up to the end of a truncated file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pasta.errors import RunError
from pasta.probes.kinds import MAP_SHIFT
from pasta.probes.records import WORDS, Access, Accesses, words_of
from pasta.run.accesses import AccessWriter, read_accesses

ACCESS = st.builds(
    Access,
    kind=st.sampled_from(["global", "shared", "local"]),
    addresses=st.lists(st.integers(0, 2**40), min_size=1, max_size=32),
    bytes=st.sampled_from([1, 4, 16]),
    launch=st.integers(0, 2**40),
)


def nothing(launches: object, addresses: object) -> np.ndarray:
    raise AssertionError


@given(st.lists(st.tuples(ACCESS, st.booleans(), st.integers(0, 15)), min_size=1, max_size=12))
def test_raw_records_round_trip(made: list[tuple[Access, bool, int]]) -> None:
    words: list[np.ndarray] = []
    kept: list[np.ndarray] = []
    starts, masks, at = [], [], 0
    for access, taken, map in made:
        record = words_of(access.encoded()).copy()
        if taken:
            starts.append(at)
            masks.append(int(record[0]) & 0xFFFF_FFFF)
            kept.append(record.copy())
        record[0] |= np.uint64(map << 40 + MAP_SHIFT).astype(np.int64)
        words.append(record)
        at += len(record)
    accesses = Accesses(
        "m", np.concatenate(words), np.asarray(starts, np.int64),
        np.asarray(masks, np.uint32), nothing,
    )  # fmt: skip
    wanted = np.concatenate(kept) if kept else np.zeros(0, np.int64)
    assert accesses.raw.tolist() == wanted.tolist()


def written(directory: Path, count: int) -> tuple[Path, list[tuple[int, list[int]]]]:
    writer = AccessWriter(str(directory))
    given = [
        (3 * at, np.random.default_rng(at).integers(0, 2**60, 50 * WORDS)) for at in range(count)
    ]
    for position, words in given:
        writer.add(position, words)
    writer.close()
    return Path(writer.path), [(position, words.tolist()) for position, words in given]


def test_chunks_keep_their_positions(tmp_path: Path) -> None:
    first, wanted = written(tmp_path, 5)
    second, more = written(tmp_path, 1)
    warnings: list[str] = []
    found = read_accesses([first, second], warnings.append)
    assert [(at, words.tolist()) for at, words in found] == wanted + more
    assert warnings == []


def test_truncated_file_is_read_up_to_the_damage(tmp_path: Path) -> None:
    path, wanted = written(tmp_path, 5)
    path.write_bytes(path.read_bytes()[:-3000])
    warnings: list[str] = []
    found = [(at, words.tolist()) for at, words in read_accesses([path], warnings.append)]
    assert 0 < len(found) < 5
    assert found == wanted[: len(found)]
    assert warnings == [f"{path.name} is truncated: accesses after chunk {len(found)} are missing"]


@pytest.mark.parametrize("content", [b"", b"no accesses", b"\xff" * 400])
def test_invalid_files_are_rejected(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "accesses-000.arrows"
    path.write_bytes(content)
    with pytest.raises(RunError, match=r"accesses-000.arrows: cannot be read"):
        list(read_accesses([path], print))
