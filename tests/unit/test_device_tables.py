"""Tables of keys on a device: rows are claimed once, and no more than fit."""

from __future__ import annotations

import threading
from types import FunctionType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pasta.backends.nvidia import device_functions
from pasta.backends.nvidia.areas import WORD, Hash
from tests.support.examples import examples


class Device:
    """Memory of words, with the atomic operations that `claim` uses."""

    def __init__(self, table: Hash, lanes: int = 1 << 19) -> None:
        self.table = table
        self.words: dict[int, int] = {}
        self.lock = threading.Lock()
        self.loads = 0
        operations: dict[str, Any] = {
            "load_u64": self.load,
            "load_u64_volatile": self.load,
            "atomic_add_u64": self.add,
            "atomic_fetch_add_u64": self.add,
            "atomic_cas_u64": self.swap,
            "lshr": lambda value, bits: (value % (1 << 64)) >> bits,
        }
        operations |= {"_LANES": lanes, "_MIX": device_functions._MIX}
        for name in ("place_of", "claim_one", "claim", "claim_bounded"):
            code: Any = getattr(device_functions, name)
            operations[name] = FunctionType(code.__code__, operations)
        self.claim, self.claim_bounded = operations["claim"], operations["claim_bounded"]

    def load(self, address: int) -> int:
        self.loads += 1
        return self.words.get(address, 0)

    def add(self, address: int, amount: int) -> int:
        with self.lock:
            before = self.words.get(address, 0)
            self.words[address] = before + amount
        return before

    def swap(self, address: int, expected: int, new: int) -> int:
        with self.lock:
            before = self.words.get(address, 0)
            if before == expected:
                self.words[address] = new
        return before

    def row(self, key: int, most: int) -> int:
        """With `most` 0, in a table without a bound."""
        rows = self.table.rows
        bound = (self.table.claims, most) if most else ()
        claim = self.claim_bounded if most else self.claim
        found: int = claim(0, 3, key, rows, rows, *bound)
        return found

    @property
    def claimed(self) -> int:
        return self.words.get(self.table.claims, 0)

    @property
    def keys(self) -> list[int]:
        rows = (self.words.get(WORD * row, 0) for row in range(self.table.rows))
        return [key for key in rows if key]


@examples(60)
@given(st.lists(st.integers(1, 60), max_size=80), st.integers(1, 16), st.integers(0, 16))
def test_the_first_keys_have_rows(keys: list[int], most: int, lanes: int) -> None:
    device = Device(Hash(32, 1), lanes)
    found = [device.row(key, most) for key in keys]
    kept = list(dict.fromkeys(keys))[:most]
    assert sorted(device.keys) == sorted(kept)
    assert device.claimed == len(kept)
    for key, row in zip(keys, found, strict=True):
        assert row == device.table.rows if key not in kept else device.words[WORD * row] == key


def test_a_full_table_is_left_at_its_first_free_row() -> None:
    device = Device(Hash(1024, 1))
    for key in range(1, 513):
        assert device.row(key, 512) < 1024
    device.loads = 0
    assert {device.row(key, 512) for key in range(10_001, 11_001)} == {1024}
    assert device.loads < 10 * 1000  # rows that are half full; all would be 1,024 each


@pytest.mark.parametrize("most", [0, 20])
def test_lanes_claim_at_the_same_time(most: int) -> None:
    device = Device(Hash(64, 1))
    found: list[tuple[int, int]] = []

    def lane(number: int) -> None:
        keys = [1 + key * (1 + 2 * number) % 40 for key in range(40)]
        found.extend((device.row(key, most), key) for key in keys)

    lanes = [threading.Thread(target=lane, args=(number,)) for number in range(4)]
    for each in lanes:
        each.start()
    for each in lanes:
        each.join()
    assert len(set(device.keys)) == len(device.keys) == (most or 40)
    assert device.claimed == most
    for row, key in found:
        assert row == 64 or device.words[WORD * row] == key
