"""Access records of pasta_trace.h in NumPy."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from pasta.probes.kinds import (
    DELTAS,
    FULL,
    KIND,
    KINDS,
    MAP_SHIFT,
    MAX_VALUE,
    ROWS,
    STRIDE,
    VALUES_SHIFT,
)
from pasta.processors.codes import bit_count

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: A record without the addresses that follow; `form` defines the use of `address` and `stride`.
ACCESS = np.dtype(
    [
        ("mask", "u4"),
        ("kind", "u1"),
        ("flags", "u1"),
        ("form", "u1"),
        ("sm", "u1"),
        ("bytes", "u4"),
        ("rows", "u2"),
        ("warp", "u2"),
        ("stride", "i8"),
        ("address", "u8"),
        ("pc", "u8"),
        ("launch", "u8"),
        ("block", "u8"),
    ]
)
#: The first word of a record.
ACCESS_HEAD = np.dtype(ACCESS.descr[:5])
#: An active lane; `access` is the index of its record.
LANE = np.dtype([("access", "i8"), ("address", "u8"), ("lane", "u1")])

WORDS = ACCESS.itemsize // 8
_SHAPE = (1 << VALUES_SHIFT) - 1
_IS_GLOBAL = np.zeros(256, bool)
_IS_GLOBAL[[kind.number for kind in KINDS if kind.space == "global"]] = True


def words_of(chunk: Any) -> NDArray[Any]:
    """Whole records as int64 words; aligned memory is not copied."""
    words = np.frombuffer(chunk, np.int64)
    return words if words.flags.aligned else words.copy()


@dataclass(frozen=True, eq=False)
class Accesses:
    """Access records of a `Trace` map, for `on_accesses`.

    `map` is the map's name. Records begin at `starts` (int64) in `words` (int64); `masks` (int64)
    are the lanes that wrote them. `find` returns object ids for launches and addresses.
    """

    map: str
    words: NDArray[Any]
    starts: NDArray[Any]
    masks: NDArray[Any]
    find: Callable[[NDArray[Any], NDArray[Any]], NDArray[Any]]

    def __len__(self) -> int:
        return len(self.starts)

    @cached_property
    def records(self) -> NDArray[Any]:
        """A structured array with a row (dtype ACCESS) for every record."""
        starts, count = self.starts, len(self.starts)
        if count and starts[-1] - starts[0] == WORDS * (count - 1):  # nothing is between them
            words = self.words[starts[0] : starts[-1] + WORDS].copy()
        else:
            words = self.words[starts[:, None] + np.arange(WORDS)].reshape(-1)
        records = words.view(ACCESS)
        records["mask"] = self.masks
        records["flags"] &= (1 << MAP_SHIFT) - 1
        records["form"] &= _SHAPE
        return np.asarray(records)

    @cached_property
    def columns(self) -> dict[str, NDArray[Any]]:
        """Arrays by field of `records`, and `lanes`, the number of lanes that wrote the record;
        `address` (uint64) is that of the lowest one; of the kinds TIMED the time of the device
        clock, ns."""
        from pasta.probes.columns import columns_of

        return columns_of(self.words, self.starts, self.masks)

    @property
    def raw(self) -> NDArray[Any]:
        """Words (int64) of the records as recorded, without the number of their map."""
        heads = np.ascontiguousarray(self.words[self.starts]).view(ACCESS_HEAD)
        lanes = bit_count(heads["mask"]).astype(np.int64)
        lengths = WORDS + _address_words(heads["form"], lanes)
        lengths += lanes * (heads["form"] >> VALUES_SHIFT)
        begins = np.cumsum(lengths) - lengths
        total = int(lengths.sum())
        if total == len(self.words):  # nothing is between them
            words = self.words.copy()
        else:
            words = self.words[np.repeat(self.starts - begins, lengths) + np.arange(total)]
        heads["flags"] &= (1 << MAP_SHIFT) - 1
        words[begins] = heads.view(np.int64)
        return np.asarray(words)

    @staticmethod
    def joined(parts: Sequence[Accesses]) -> Accesses:
        """Concatenated records of one map."""
        ends = np.cumsum([len(each.words) for each in parts])
        starts = [
            each.starts + (end - len(each.words)) for each, end in zip(parts, ends, strict=True)
        ]
        words = np.concatenate([each.words for each in parts])
        masks = np.concatenate([each.masks for each in parts])
        return replace(parts[0], words=words, starts=np.concatenate(starts), masks=masks)

    def some(self, which: NDArray[Any]) -> Accesses:
        """Records at these indices."""
        return replace(self, starts=self.starts[which], masks=self.masks[which])

    @property
    def lanes(self) -> NDArray[Any]:
        """A structured array with a row (dtype LANE) for every lane that wrote a record."""
        access, lane, place = self._active()
        lanes = np.empty(len(access), LANE)
        lanes["access"] = access
        lanes["lane"] = lane
        lanes["address"] = self._addresses(access, lane, place)
        wrote = (self.masks[access] >> lane) & 1 == 1
        return lanes if wrote.all() else np.asarray(lanes[wrote])

    def _active(self) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        """Record, number, and place among the active lanes of each active lane: what follows a
        record is of all of them, also of those that did not write it."""
        heads = np.ascontiguousarray(self.words[self.starts]).view(np.uint64)
        whole = heads & np.uint64(0xFFFF_FFFF)
        bits = (whole[:, None] >> np.arange(32, dtype=np.uint64)) & np.uint64(1) == 1
        access, lane = np.nonzero(bits)
        return access, lane, (np.cumsum(bits, axis=1) - 1)[access, lane]

    @property
    def values(self) -> NDArray[Any]:
        """Values of `lanes`, a masked array (uint64) of their number by 2, low word first; masked
        where the record has none."""
        access, lane, place = self._active()
        wrote = (self.masks[access] >> lane) & 1 == 1
        access, place = access[wrote], place[wrote]
        heads = np.ascontiguousarray(self.words[self.starts]).view(ACCESS_HEAD)
        lanes = bit_count(heads["mask"]).astype(np.int64)
        begins = self.starts + WORDS + _address_words(heads["form"], lanes)
        count = (heads["form"] >> VALUES_SHIFT).astype(np.int64)[access]
        found = np.ma.zeros((len(access), 2), np.uint64)
        at = begins[access] + place * count
        for word in range(2):
            some = count > word
            found[some, word] = self.words[at[some] + word].view(np.uint64)
        found[count == 0] = np.ma.masked
        return found

    def _addresses(
        self, access: NDArray[Any], lane: NDArray[Any], place: NDArray[Any]
    ) -> NDArray[Any]:
        """Addresses of active lanes, by index of their record, number and place."""
        records, tails = self.records, self.starts + WORDS
        form = records["form"]
        strides = np.where(form == STRIDE, records["stride"], 0)
        addresses = records["address"].view(np.int64)[access] + strides[access] * lane
        deltas, full = form == DELTAS, form == FULL
        if deltas.any():
            some = deltas[access]
            halves = np.ascontiguousarray(self.words).view(np.int32)
            addresses[some] += halves[2 * tails[access[some]] + place[some]]
        if full.any():
            some = full[access]
            addresses[some] = self.words[tails[access[some]] + place[some]]
        return np.asarray(addresses.view(np.uint64))

    def objects(self, lanes: NDArray[Any]) -> NDArray[Any]:
        """Ids (int64) of the objects that held the addresses of `lanes`; -1 for none."""
        access = lanes["access"]
        kinds, launches = (self.records[name][access] for name in ("kind", "launch"))
        return self._objects(kinds, launches, lanes["address"])

    @property
    def first_objects(self) -> NDArray[Any]:
        """Ids (int64) of the objects that held `columns["address"]`; -1 for none."""
        return self._objects(self.columns["kind"], self.columns["launch"], self.columns["address"])

    def _objects(
        self, kinds: NDArray[Any], launches: NDArray[Any], addresses: NDArray[Any]
    ) -> NDArray[Any]:
        there = _IS_GLOBAL[kinds]
        if there.all():
            return np.asarray(self.find(launches, addresses))
        found = np.full(len(kinds), -1, np.int64)
        found[there] = self.find(launches[there], addresses[there])
        return found


def _address_words(forms: NDArray[Any], lanes: NDArray[Any]) -> NDArray[Any]:
    """Words of addresses that follow records of these forms."""
    shape = forms & _SHAPE
    after = np.where(shape == DELTAS, (lanes + 1) >> 1, 0)
    return np.where(shape == FULL, lanes, after).astype(np.int64)


@dataclass(frozen=True)
class Access:
    """A record to encode; `addresses` are those of the active lanes, lowest lane first. Kinds with
    a time have it instead. `values`: as unsigned integers of up to 16 bytes."""

    kind: str
    addresses: Sequence[int] = ()
    bytes: int = 0
    flags: int = 0
    mask: int | None = None
    pc: int = 0
    launch: int = 0
    block: int = 0
    warp: int = 0
    sm: int = 0
    rows: int = 1
    stride: int = 0
    form: int | None = None
    time: int = 0
    values: Sequence[int] | None = None

    def encoded(self) -> builtins.bytes:
        """Encode the record for pasta_trace.h, in the shortest form unless one is given.

        Raises ValueError if mask and addresses differ, or the form cannot hold them.
        """
        kind = KIND[self.kind]
        mask = (1 << max(1, len(self.addresses))) - 1 if self.mask is None else self.mask
        lanes = [lane for lane in range(32) if mask >> lane & 1]
        addresses = list(self.addresses) or [self.time] * len(lanes)
        if len(addresses) != len(lanes) or mask >> 32:
            raise ValueError(f"{len(addresses)} addresses for {len(lanes)} lanes")
        transfer = self.rows != 1 or self.stride or self.form == ROWS
        if transfer and len(lanes) != 1:
            raise ValueError("a transfer has one lane")
        record = np.zeros(1, ACCESS)
        values = {
            "mask": mask, "kind": kind.number, "flags": self.flags, "sm": self.sm,
            "bytes": self.bytes, "rows": self.rows, "warp": self.warp, "pc": self.pc,
            "launch": self.launch, "block": self.block,
        }  # fmt: skip
        for name, value in values.items():
            record[name] = value
        if transfer:
            form, base, stride, tail = ROWS, addresses[0], self.stride, b""
        else:
            form, base, stride, tail = _formed(lanes, addresses, self.form)
        after = self._values(len(lanes))
        words = len(after) // 8 // len(lanes) if after else 0
        record["form"], record["stride"] = form | words << VALUES_SHIFT, stride
        record["address"] = base % (1 << 64)
        return record.tobytes() + tail + builtins.bytes(-len(tail) % 8) + after

    def _values(self, lanes: int) -> builtins.bytes:
        """The values as they follow a record, a word or two for each lane."""
        if self.values is None:
            return b""
        if len(self.values) != lanes or not 0 < self.bytes <= MAX_VALUE:
            raise ValueError(f"{len(self.values)} values of {self.bytes} bytes for {lanes} lanes")
        words = -(-self.bytes // 8)
        return b"".join(value.to_bytes(8 * words, "little") for value in self.values)

    def on(self, launch: int) -> Access:
        """The access in another launch."""
        return replace(self, launch=launch)


def _formed(
    lanes: list[int], addresses: list[int], form: int | None
) -> tuple[int, int, int, bytes]:
    """Form, base address, stride, and the bytes after the record."""
    base, stride = addresses[0], 0
    if len(lanes) > 1:
        stride = (addresses[1] - addresses[0]) // (lanes[1] - lanes[0])
    start = base - lanes[0] * stride
    pairs = zip(lanes, addresses, strict=True)
    strided = all(start + lane * stride == address for lane, address in pairs)
    deltas = [address - base for address in addresses]
    fits = all(-(1 << 31) <= delta < 1 << 31 for delta in deltas)
    if form is None:
        form = STRIDE if strided else DELTAS if fits else FULL
    if (form == STRIDE and not strided) or (form == DELTAS and not fits):
        raise ValueError(f"form {form} cannot hold these addresses")
    if form == STRIDE:
        return form, start, stride, b""
    if form == DELTAS:
        return form, base, 0, np.asarray(deltas, np.int32).tobytes()
    return FULL, 0, 0, np.asarray([each % (1 << 64) for each in addresses], np.uint64).tobytes()
