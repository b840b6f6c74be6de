"""Functions that patches call, in the lanes of a warp. They are part of each patch that does.

All values are int64, addresses and masks with the bits of the unsigned number. `user` is the
address of the launch's descriptor, a `pasta_probe_launch`.
"""

# mypy: disable-error-code="no-any-return"
# (intrinsics have no types)

from pasta.backends.nvidia.intrinsics import (
    activemask,
    all_equal,
    any_sync,
    atomic_add_u64,
    atomic_cas_u64,
    atomic_exchange_u64,
    atomic_fetch_add_u64,
    ballot_sync,
    bytes_of,
    is_first,
    load_u64,
    load_u64_volatile,
    lshr,
    match_any_sync,
    popc,
)
from pasta.backends.nvidia.structs import constants

__all__ = [
    "bank_ways", "copied_bytes", "equal_lanes", "group_max", "group_of", "group_sum", "hash_row",
    "hash_row_bounded", "lane_groups", "pair_row", "shadow_exchange", "sized", "touch_word",
]  # fmt: skip

_CONSTANTS = constants()
_MIX = -7046029254386353131
#: Rows that are looked at for a key of a bounded table, of which at least half are free.
_KEY_TRIES = 64
#: More lanes than a device runs at once.
_LANES = 1 << 19
_PC_BITS, _OBJECT_BITS = _CONSTANTS["PC_BITS"], 67 - _CONSTANTS["PC_BITS"]
_PAIR_TRIES = 64
#: Of the index of an object in its table.
_OBJECT_INDEX_BITS = 27


def claim(table: int, shift: int, key: int, rows: int, tries: int) -> int:
    """Row of a key, not 0, in a table of 1 << `shift` bytes per row, which begin with the key;
    claimed if new. `rows`, a power of two, if none of `tries` is free."""
    mask = rows - 1
    row = lshr((key - 1) * _MIX, 40) & mask
    for _ in range(tries):
        at = table + (row << shift)
        there = load_u64(at)
        if there == key:  # at once: lanes that reconverge inside such a loop stay diverged
            return row
        if there == 0:
            there = atomic_cas_u64(at, 0, key)
            if there == 0 or there == key:
                return row
        row = (row + 1) & mask
    return rows


def place_of(at: int, shift: int, key: int) -> int:
    """Which of four rows has a key; 4: none. They are loaded at once."""
    a = load_u64_volatile(at)
    b = load_u64_volatile(at + (1 << shift))
    c = load_u64_volatile(at + (2 << shift))
    d = load_u64_volatile(at + (3 << shift))
    if (a == key) | (b == key) | (c == key) | (d == key):
        return (b == key) + 2 * (c == key) + 3 * (d == key)
    return 4


def claim_one(at: int, shift: int, key: int, first: int, claims: int, most: int) -> int:
    """Claim one of four rows from `first` on. Returns which; 4: others have them; 5: `most` rows of
    the table are claimed."""
    held = 0
    claimed = load_u64_volatile(claims)
    if claimed + _LANES >= most:  # a place is taken first: all lanes may claim at once
        if claimed < most:
            held = int(atomic_fetch_add_u64(claims, 1) < most)
            if held == 0:
                atomic_add_u64(claims, -1)
        if held == 0:
            i = place_of(at, shift, key)  # what was loaded before may be out of date
            return i + (i >> 2)  # 5 for 4, without a branch
    for i in range(first, 4):
        there = atomic_cas_u64(at + (i << shift), 0, key)
        if (there == 0) | (there == key):
            if (there == 0) != held:
                atomic_add_u64(claims, (there == 0) - held)
            return i
    if held != 0:
        atomic_add_u64(claims, -1)
    return 4


def claim_bounded(
    table: int, shift: int, key: int, rows: int, tries: int, claims: int, most: int
) -> int:
    """As `claim`, in a table of at most `most` keys, whose number is at `claims`: a full one
    would need all tries for each new key. Four rows are loaded at once (there is a multiple of
    four), since a warp waits for the lane that needs most."""
    mask = rows - 1
    row = lshr((key - 1) * _MIX, 40) & mask & ~3
    for _ in range(tries >> 2):
        at = table + (row << shift)
        a = load_u64(at)
        b = load_u64(at + (1 << shift))
        c = load_u64(at + (2 << shift))
        d = load_u64(at + (3 << shift))
        # as in place_of: with a function for both, pc_dependency takes 5 % longer
        if (a == key) | (b == key) | (c == key) | (d == key):
            return row + (b == key) + 2 * (c == key) + 3 * (d == key)
        if (a == 0) | (b == 0) | (c == 0) | (d == 0):
            first = (a != 0) + ((a != 0) & (b != 0)) + ((a != 0) & (b != 0) & (c != 0))
            i = claim_one(at, shift, key, first, claims, most)
            if i < 4:
                return row + i
            if i == 5:
                return rows
        row = (row + 4) & mask
    return rows


def hash_row(table: int, key: int, rows: int) -> int:
    """Row of a key in a table of the run, claimed if new; the last one, `rows`, if it is full."""
    return claim(table, 3, key + 1, rows, rows)


def hash_row_bounded(table: int, key: int, rows: int, claims: int, most: int) -> int:
    """As `hash_row`, with at most `most` keys; nearly all have a row within the tries."""
    return claim_bounded(table, 3, key + 1, rows, _KEY_TRIES, claims, most)


def shadow_exchange(
    table: int, key: int, rows: int, claims: int, most: int, value: int
) -> tuple[int, int]:
    """Replace the value of a key in a table of pairs. Returns the previous value, 0 for the first,
    and whether the key has a row."""
    row = claim_bounded(table, 4, key + 1, rows, _KEY_TRIES, claims, most)
    if row == rows:
        return 0, 0
    return atomic_exchange_u64(table + (row << 4) + 8, value), 1


def pair_row(table: int, object: int, pc: int, rows: int) -> int:
    """Row of an object (its index) and an instruction in the launch's table, claimed if new; the
    last one, `rows`, if it has none within some tries."""
    # instructions are at multiples of 16: 45 bits tell them apart
    if lshr(pc, _PC_BITS) != 0 or lshr(object, _OBJECT_BITS) != 0:
        return rows
    key = 1 + (lshr(pc, 4) | (object << (_PC_BITS - 4)))
    return claim(table, 3, key, rows, _PAIR_TRIES)


def sized(found: int, bytes: int) -> int:
    """A key of 32 bits for an object and the size of an access, at most 16 bytes."""
    return found + (bytes << _OBJECT_INDEX_BITS)


def group_of(key: int) -> int:
    """The lanes with the same key, which usually all lanes have."""
    group = activemask()
    return group if all_equal(group, key) else match_any_sync(group, key)


def equal_lanes(mask: int, bytes: int) -> int:
    """The lanes of `mask` that copy as many bytes as this one; usually all."""
    if all_equal(mask, bytes):
        return mask
    return match_any_sync(mask, bytes)


def copied_bytes(mask: int, bytes: int) -> int:
    """Sum of the bytes of the lanes of `mask`, which copy at most 16 each, usually as many."""
    total = popc(mask) * bytes if all_equal(mask, bytes) else group_sum(mask, bytes)
    return total & 1023  # which tells the compiler that it fits 32 bits


def group_sum(group: int, amount: int) -> int:
    """Sum over the lanes of `group`, which all call this with their own amount."""
    total = 0
    bit = 0
    while True:  # tested at its end: LLVM does not rotate loops that begin with a vote
        total += popc(ballot_sync(group, lshr(amount, bit) & 1)) << bit
        bit += 1
        if bit == 64 or any_sync(group, lshr(amount, bit)) == 0:
            return total


def group_max(group: int, value: int) -> int:
    """The largest value below 64 over the lanes of `group`."""
    most = 0
    for bit in (32, 16, 8, 4, 2, 1):
        if any_sync(group, value >= most + bit):
            most += bit
    return most


def touch_word(user: int, object: int, word: int, epoch: int, bits: int, granule: int) -> int:
    """Mark granules in a word of a plane. Returns the bytes of those unmarked in this epoch."""
    while True:
        old = load_u64_volatile(word)
        before = 0
        if lshr(old, 32) == epoch:
            before = old & 0xFFFFFFFF
        if atomic_cas_u64(word, old, (epoch << 32) | before | bits) == old:
            break
    return bytes_of(user, object, bits & ~before, granule)


def bank_ways(mask: int, lane: int, address: int, bytes: int) -> int:
    """Wavefronts of an access to shared memory: the sum over groups of lanes that are served
    together of the maximum number of distinct words in one bank."""
    shift = 2
    width = 32
    if bytes == 8:
        shift = 3
        width = 16
    if bytes == 16:
        shift = 4
        width = 8
    served = ((1 << width) - 1) << (lane & ~(width - 1))
    group = mask & served
    unit = lshr(address, shift)
    same = match_any_sync(mask, unit & 0xFFFFFFFF) & group
    firsts = ballot_sync(mask, is_first(same))
    bank = match_any_sync(mask, unit & (width - 1)) & group & firsts
    most = group_max(group, popc(bank))
    mine = 0
    if is_first(group):
        mine = most
    return group_sum(mask, mine)


def lane_groups(mask: int, bytes: int) -> int:
    """Number of groups of lanes that are served one after another."""
    if bytes == 8:
        return ((mask & 0xFFFF) != 0) + ((mask >> 16) != 0)
    if bytes == 16:
        count = 0
        for i in range(4):
            count += ((mask >> (8 * i)) & 0xFF) != 0
        return count
    return 1
