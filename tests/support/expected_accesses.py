"""What the scenarios of programs/nvidia/accesses.cu access, computed from their address formulas.

A scenario's function writes down, per kernel, one `Access` per memory instruction: which thread
makes it at which address. `Expected` counts them by these definitions:

- An instruction is one execution by a warp with at least one active lane.
- An access is one active lane of it. Bulk and tensor transfers are one access each; `ldmatrix` and
  `stmatrix` make one per row of 16 bytes (8 per matrix); a `cp.async` whose source size is 0 makes
  none.
- Bytes are those read or written: of a transfer, those inside the tensor; of a `cp.async`, those
  that are not filled with zeros.
- An atomic is neither a read nor a write; a `red` is an atomic.
- Sectors are the distinct aligned 32-byte pieces that a warp's lanes, or a transfer, touch; ideal
  sectors are the fewest that could hold the distinct bytes. Both are summed over instructions.
- Wavefronts of shared memory: the most distinct 4-byte words in one of 32 banks, summed over the
  groups of lanes that the hardware serves together (32, 16 or 8 lanes of 4, 8 or 16 bytes).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

Lanes = NDArray[np.int64]  # one row per execution, 32 columns

NOWHERE = -1  # address of an inactive lane
SECTOR = 32
TRANSFERS = {"bulk_load", "bulk_store", "bulk_reduction", "tensor_load", "tensor_store"}
GLOBAL = TRANSFERS | {"global", "async_copy"}
SHARED = {"shared", "remote_shared", "matrix", "bulk_shared", "async_store"}
UNKNOWN = "unknown"


@dataclass(frozen=True)
class Access:
    """One memory instruction of a kernel, as all warps of a launch execute it."""

    kind: str  # as in @probe.on
    op: str  # load, store, atom, red; as the kind for barriers and calls
    bytes: int | Lanes  # per lane
    at: Lanes
    times: int = 1  # each row is executed this often
    threads: int | None = None  # that execute it, where not each of them accesses memory
    runs: Lanes | None = None  # (n, 2) address and length of the pieces of transfers
    issued_off: int = 0  # further executions without active lanes, which counters may include

    @property
    def active(self) -> NDArray[np.bool_]:
        active: NDArray[np.bool_] = self.at != NOWHERE
        return active

    @property
    def sizes(self) -> Lanes:
        return np.broadcast_to(np.asarray(self.bytes, np.int64), self.at.shape)


@dataclass(frozen=True)
class Launch:
    """A kernel launch; `exact` unless it waits in a loop, fails, or uses library code."""

    kernel: str
    warps: int
    accesses: tuple[Access, ...] = ()
    exact: bool = True

    def unique_bytes(self, granularity: int = SECTOR) -> int:
        """Bytes of global memory touched, in whole aligned pieces of `granularity`."""
        pieces: set[int] = set()
        for access in self.accesses:
            if access.kind in GLOBAL:
                if access.runs is None:
                    on = access.active & (access.sizes > 0)
                    runs = np.unique(np.stack([access.at[on], access.sizes[on]], axis=1), axis=0)
                else:
                    runs = access.runs
                for address, length in runs.tolist():
                    last = (address + length - 1) // granularity
                    pieces.update(range(address // granularity, last + 1))
        return granularity * len(pieces)


@dataclass(frozen=True)
class Counts:
    """Sums over the accesses of one kind, op or kernel; accesses, bytes and the split by lanes."""

    instructions: int = 0
    accesses: int = 0
    bytes: int = 0
    reads: int = 0
    writes: int = 0
    atomics: int = 0
    sectors: int = 0
    ideal_sectors: int = 0
    wavefronts: int = 0
    issued_off: int = 0
    threads: int = 0
    lanes: dict[int, int] = field(default_factory=dict)  # active lanes → instructions
    objects: dict[str, int] = field(default_factory=dict)  # role → accesses


@dataclass(frozen=True)
class Memory:
    """Objects by role and size in bytes, each at an address of its own."""

    objects: dict[str, int]

    SHIFT = 40

    def __getitem__(self, role: str) -> int:
        return (list(self.objects).index(role) + 1) << self.SHIFT

    def roles(self, at: Lanes) -> Counter[str]:
        """Number of these addresses in each object; object ends are exact."""
        names = list(self.objects)
        found: Counter[str] = Counter()
        for number in np.unique(at >> self.SHIFT).tolist():
            offsets = at[at >> self.SHIFT == number] - (number << self.SHIFT)
            inside = int((offsets < self.objects[names[number - 1]]).sum())
            found[names[number - 1]] += inside
            found[UNKNOWN] += len(offsets) - inside
        return +found


@dataclass(frozen=True)
class Expected:
    """A scenario: its objects, and its launches in order."""

    memory: Memory
    launches: tuple[Launch, ...]

    @cached_property
    def kernels(self) -> dict[str, int]:
        """Launches per kernel."""
        return dict(Counter(launch.kernel for launch in self.launches))

    def kinds(self, kernel: str | None = None) -> set[str]:
        return {access.kind for access, _ in self._accesses(kernel)}

    def count(
        self,
        kind: str | Iterable[str] | None = None,
        op: str | None = None,
        kernel: str | None = None,
        launch: int | None = None,
    ) -> Counts:
        """Sums over matching accesses; `launch` is an index into `launches`."""
        kinds = None if kind is None else {kind} if isinstance(kind, str) else set(kind)
        totals: dict[str, Any] = {}
        lanes: Counter[int] = Counter()
        objects: Counter[str] = Counter()
        for access, repeats in self._accesses(kernel, launch):
            if (kinds is None or access.kind in kinds) and op in (None, access.op):
                one = self._count(access)
                for name, value in vars(one).items():
                    if isinstance(value, int):
                        totals[name] = totals.get(name, 0) + value * repeats
                lanes.update({n: many * repeats for n, many in one.lanes.items()})
                objects.update({role: many * repeats for role, many in one.objects.items()})
        return Counts(**totals, lanes=dict(lanes), objects=dict(objects))

    def _accesses(
        self, kernel: str | None = None, launch: int | None = None
    ) -> list[tuple[Access, int]]:
        """Accesses and how many launches make them; launches that are alike share theirs."""
        chosen = self.launches if launch is None else (self.launches[launch],)
        repeats: dict[int, tuple[Access, int]] = {}
        for one in chosen:
            if kernel in (None, one.kernel):
                for access in one.accesses:
                    repeats[id(access)] = (access, repeats.get(id(access), (access, 0))[1] + 1)
        return list(repeats.values())

    def _count(self, access: Access) -> Counts:
        per_row = access.active.sum(axis=1)
        accesses = int(per_row.sum()) * access.times
        executed = len(access.at) * access.times
        reads = accesses if access.op == "load" else 0
        writes = accesses if access.op == "store" else 0
        lanes = Counter(per_row.tolist())
        is_global = access.kind in GLOBAL
        roles = self.memory.roles(access.at[access.active]) if access.kind in GLOBAL else Counter()
        return Counts(
            instructions=executed,
            accesses=accesses,
            bytes=int(access.sizes[access.active].sum()) * access.times,
            reads=reads,
            writes=writes,
            atomics=accesses if access.op in ("atom", "red") else 0,
            sectors=_sectors(access) * access.times if is_global else 0,
            ideal_sectors=_ideal_sectors(access) * access.times if is_global else 0,
            wavefronts=_wavefronts(access) * access.times if access.kind in SHARED else 0,
            issued_off=access.issued_off * access.times,
            threads=accesses if access.threads is None else access.threads * access.times,
            lanes={lane: many * access.times for lane, many in lanes.items()},
            objects={role: many * access.times for role, many in roles.items()},
        )


def _sectors(access: Access) -> int:
    """Distinct sectors per row, summed; aligned accesses of up to 16 bytes lie in one each. The
    pieces of a transfer share none."""
    if access.runs is not None:
        first, length = access.runs.T
        return int(((first + length - 1) // SECTOR - first // SECTOR + 1).sum())
    sector = np.sort(np.where(access.active, access.at // SECTOR, NOWHERE), axis=1)
    new = np.concatenate([sector[:, :1] != NOWHERE, (sector[:, 1:] != sector[:, :-1])], axis=1)
    return int(new.sum())


def _ideal_sectors(access: Access) -> int:
    """ceil(distinct bytes / 32) per row, summed; equal addresses have equal sizes."""
    order = np.argsort(access.at, axis=1)
    at = np.take_along_axis(access.at, order, axis=1)
    sizes = np.take_along_axis(access.sizes, order, axis=1)
    new = np.concatenate([at[:, :1] != NOWHERE, at[:, 1:] != at[:, :-1]], axis=1)
    distinct = (sizes * new).sum(axis=1)
    return int((-(-distinct // SECTOR)).sum())


def _wavefronts(access: Access) -> int:
    """The most distinct words in a bank per group of lanes; none where no lane is active."""
    size = int(access.sizes.flat[0])
    group = 32 if size <= 4 else 128 // size
    total = 0
    for row in access.at.tolist():
        for first in range(0, 32, group):
            words = {
                word
                for address in row[first : first + group]
                if address != NOWHERE
                for word in range(address // 4, (address + size - 1) // 4 + 1)
            }
            total += max(Counter(word % 32 for word in words).values(), default=0)
    return total


class Grid:
    """The threads of a launch: arrays with one row per warp and one column per lane."""

    def __init__(self, blocks: int, block: int) -> None:
        warps = -(-block // 32)
        self.warps = blocks * warps
        self.lane = np.tile(np.arange(32), (self.warps, 1))
        self.warp = np.arange(self.warps)[:, None] % warps  # in its block
        self.block = np.arange(self.warps)[:, None] // warps
        self.tid = 32 * self.warp + self.lane
        self.exists = self.tid < block
        self.i = self.block * block + self.tid  # global index

    def access(
        self,
        kind: str,
        op: str,
        size: int | Lanes,
        at: Lanes | int,
        where: NDArray[np.bool_] | bool = True,
        **more: Any,
    ) -> Access:
        """Access by the threads for which `where` holds; warps without such threads do not execute
        it."""
        on = self.exists & where
        rows = on.any(axis=1)
        address = np.where(on, at, NOWHERE)[rows]
        sizes = size if isinstance(size, int) else np.broadcast_to(size, on.shape)[rows]
        return Access(kind, op, sizes, address, **more)

    def load(self, size: int, at: Lanes, where: Any = True, **more: Any) -> Access:
        return self.access("global", "load", size, at, where, **more)

    def store(self, size: int, at: Lanes, where: Any = True, **more: Any) -> Access:
        return self.access("global", "store", size, at, where, **more)

    def launch(self, kernel: str, *accesses: Access, exact: bool = True) -> Launch:
        return Launch(kernel, self.warps, accesses, exact)


def ceil(threads: int, block: int) -> int:
    return -(-threads // block)


Scenario = Callable[..., Expected]
SCENARIOS: dict[str, Scenario] = {}


def scenario(function: Scenario) -> Scenario:
    SCENARIOS[function.__name__] = function
    return function


def expected(name: str, **arguments: int) -> Expected:
    """What `kernels NAME --ARGUMENT VALUE...` accesses; ValueError for an unknown scenario."""
    if name not in SCENARIOS:
        raise ValueError(f"no scenario {name!r}: one of {', '.join(SCENARIOS)}")
    return SCENARIOS[name](**arguments)


# ---- global memory -----------------------------------------------------------------------------


def strided(n: int, block: int, stride: int) -> Expected:
    """Thread i < n: to[i * stride] = from[i * stride] + 1, floats."""
    memory = Memory({"from": 4 * n * stride, "to": 4 * n * stride})
    g = Grid(ceil(n, block), block)
    offset, on = 4 * stride * g.i, g.i < n
    return Expected(
        memory,
        (
            g.launch(
                "strided",
                g.load(4, memory["from"] + offset, on),
                g.store(4, memory["to"] + offset, on),
            ),
        ),
    )


@scenario
def stride1(n: int = 4096, block: int = 128) -> Expected:
    """4 sectors per full warp, 2n accesses."""
    return strided(n, block, 1)


@scenario
def stride2(n: int = 4096, block: int = 128) -> Expected:
    """8 sectors per full warp where 4 would do."""
    return strided(n, block, 2)


@scenario
def stride32(n: int = 4096, block: int = 128) -> Expected:
    """32 sectors per full warp where 4 would do."""
    return strided(n, block, 32)


@scenario
def tail(n: int = 1003, block: int = 50) -> Expected:
    """Per full block a warp of 32 lanes and one of 18; the last block has n % block threads."""
    return strided(n, block, 1)


@scenario
def one_thread(n: int = 64) -> Expected:
    """n blocks of one thread: n instructions of one lane each way."""
    return strided(n, 1, 1)


@scenario
def many_blocks(n: int = 70000 * 32) -> Expected:
    """More blocks than 16 bits count."""
    return strided(n, 32, 1)


@scenario
def divergent(n: int = 1024) -> Expected:
    """Half-warps load from two arrays; in round k of a loop the lanes k..31 load one word."""
    memory = Memory({"narrow": 4 * n, "wide": 8 * n, "to": 4 * n})
    g = Grid(ceil(n, 128), 128)
    low = g.lane < 16
    rounds = [g.load(4, memory["narrow"] + 4 * k + 0 * g.i, g.lane >= k) for k in range(32)]
    loop = Access("global", "load", 4, np.concatenate([access.at for access in rounds]))
    return Expected(
        memory,
        (
            g.launch(
                "divergent_loads",
                g.load(4, memory["narrow"] + 4 * g.i, low),
                g.load(8, memory["wide"] + 8 * g.i, ~low),
                loop,
                g.store(4, memory["to"] + 4 * g.i),
            ),
        ),
    )


@scenario
def early_exit(n: int = 1024) -> Expected:
    """Every second warp stores, with 20 lanes: n / 64 instructions."""
    memory = Memory({"to": 4 * n})
    g = Grid(ceil(n, 128), 128)
    on = (g.warp % 2 == 0) & (g.lane < 20)
    return Expected(memory, (g.launch("exit_early", g.store(4, memory["to"] + 4 * g.i, on)),))


@scenario
def atomics_one(n: int = 4096) -> Expected:
    """n reductions of one word, then n atomics on another, with a store of what they return."""
    memory = Memory({"sum": 4, "ticket": 8, "to": 4 * n})
    g = Grid(ceil(n, 128), 128)
    return Expected(
        memory,
        (
            g.launch("red_one", g.access("global", "red", 4, memory["sum"])),
            g.launch(
                "atom_one",
                g.access("global", "atom", 4, memory["ticket"]),
                g.store(4, memory["to"] + 4 * g.i),
            ),
        ),
    )


@scenario
def atomics_distinct(n: int = 4096) -> Expected:
    """A word of its own per thread: a reduction, an atomic, and one of system scope."""
    memory = Memory({"sums": 4 * n, "to": 4 * n})
    g = Grid(ceil(n, 128), 128)
    own, to = memory["sums"] + 4 * g.i, memory["to"] + 4 * g.i
    return Expected(
        memory,
        (
            g.launch("red_distinct", g.access("global", "red", 4, own)),
            g.launch("atom_distinct", g.access("global", "atom", 4, own), g.store(4, to)),
            g.launch("atom_system", g.access("global", "atom", 4, own), g.store(4, to)),
        ),
    )


# ---- shared and local memory -------------------------------------------------------------------


def shared_words(kernel: str, n: int, size: int, ways: int) -> Expected:
    """Lane l stores, then loads, `size` bytes at l * ways * size; then each stores what it read."""
    memory = Memory({"to": size * n})
    g = Grid(ceil(n, 128), 128)
    at = g.lane * ways * size
    return Expected(
        memory,
        (
            g.launch(
                kernel,
                g.access("shared", "store", size, at),
                g.access("shared", "load", size, at),
                g.store(size, memory["to"] + size * g.i),
            ),
        ),
    )


@scenario
def shared_broadcast(n: int = 1024) -> Expected:
    """All lanes the same word: 1 wavefront."""
    return shared_words("shared_4bytes", n, 4, 0)


@scenario
def shared_1way(n: int = 1024) -> Expected:
    """A bank of its own per lane: 1 wavefront."""
    return shared_words("shared_4bytes", n, 4, 1)


@scenario
def shared_2way(n: int = 1024) -> Expected:
    """16 banks with 2 words each: 2 wavefronts."""
    return shared_words("shared_4bytes", n, 4, 2)


@scenario
def shared_8way(n: int = 1024) -> Expected:
    """4 banks with 8 words each: 8 wavefronts."""
    return shared_words("shared_4bytes", n, 4, 8)


@scenario
def shared_32way(n: int = 1024) -> Expected:
    """One bank with 32 words: 32 wavefronts."""
    return shared_words("shared_4bytes", n, 4, 32)


@scenario
def shared_8bytes(n: int = 1024) -> Expected:
    """256 bytes without conflict: 2 wavefronts."""
    return shared_words("shared_wide8", n, 8, 1)


@scenario
def shared_16bytes(n: int = 1024) -> Expected:
    """512 bytes without conflict: 4 wavefronts."""
    return shared_words("shared_wide16", n, 16, 1)


@scenario
def local(n: int = 1024, trips: int = 16) -> Expected:
    """`trips` stores and `trips` loads per thread; all lanes at the same offset."""
    memory = Memory({"to": 4 * n})
    g = Grid(ceil(n, 128), 128)
    return Expected(
        memory,
        (
            g.launch(
                "local_words",
                g.access("local", "store", 4, 0, times=trips),
                g.access("local", "load", 4, 0, times=trips),
                g.store(4, memory["to"] + 4 * g.i),
            ),
        ),
    )


# ---- asynchronous copies -----------------------------------------------------------------------


@scenario
def async_copy(n: int = 1024) -> Expected:
    """cp.async of 4, 8 and 16 bytes per thread; of 4 to 16; of 16 by even lanes only."""
    memory = Memory({"from": 16 * n, "to": 16 * n})
    g = Grid(ceil(n, 128), 128)

    def copy(kernel: str, size: int, source: int | Lanes, where: Any = True) -> Launch:
        # Before each LDGSTS ptxas puts three LDS that no lane executes.
        off, threads = 3 * g.warps, int(g.exists.sum())
        copied = g.access(
            "async_copy", "load", source, memory["from"] + size * g.i, where, threads=threads
        )
        staged = g.access("shared", "load", size, size * g.tid, issued_off=off)
        return g.launch(kernel, copied, staged, g.store(size, memory["to"] + size * g.i))

    return Expected(
        memory,
        (
            copy("async_copy4", 4, 4),
            copy("async_copy8", 8, 8),
            copy("async_copy16", 16, 16),
            copy("async_copy_zfill", 16, 4 + g.lane % 4 * 4),
            copy("async_copy_skip", 16, 16, g.lane % 2 == 0),
        ),
    )


# ---- bulk copies and the tensor memory accelerator ---------------------------------------------


def transfers(kind: str, op: str, pieces: list[list[tuple[int, int]]]) -> Access:
    """One transfer per list of (address, length), by lane 0 of its block."""
    at = np.full((len(pieces), 32), NOWHERE, np.int64)
    sizes = np.zeros((len(pieces), 32), np.int64)
    for row, runs in enumerate(pieces):
        at[row, 0] = runs[0][0]
        sizes[row, 0] = sum(length for _, length in runs)
    return Access(kind, op, sizes, at, runs=np.array([run for runs in pieces for run in runs]))


@scenario
def bulk(blocks: int = 4, bytes: int = 1024) -> Expected:
    """Per block: `bytes` loaded, stored, and added to one array that all blocks share."""
    memory = Memory({"from": blocks * bytes, "to": blocks * bytes, "sum": bytes})
    g = Grid(blocks, 64)

    def each(role: str, step: int) -> list[list[tuple[int, int]]]:
        return [[(memory[role] + block * step, bytes)] for block in range(blocks)]

    return Expected(
        memory,
        (
            g.launch(
                "bulk_copies",
                transfers("bulk_load", "load", each("from", bytes)),
                transfers("bulk_store", "store", each("to", bytes)),
                transfers("bulk_reduction", "red", each("sum", 0)),
            ),
        ),
    )


def boxes(
    base: int, size: tuple[int, int, int], box: tuple[int, int, int], shift: tuple[int, int, int]
) -> list[list[tuple[int, int]]]:
    """Rows of floats inside the tensor of each box, which begins at block * box - shift."""
    inside: list[list[range]] = [
        [range(max(0, k * b - off), min(n, k * b - off + b)) for k in range(ceil(n + off, b))]
        for n, b, off in zip(size, box, shift, strict=True)
    ]
    return [
        [(base + 4 * ((z * size[1] + y) * size[0] + xs.start), 4 * len(xs)) for z in zs for y in ys]
        for zs, ys, xs in product(inside[2], inside[1], inside[0])
    ]


@scenario
def tensor() -> Expected:
    """A box per block, loaded and stored; the bytes are each tensor's, once each way."""
    shapes = {
        1: ((1000, 1, 1), (256, 1, 1), (0, 0, 0)),
        2: ((100, 50, 1), (32, 16, 1), (0, 0, 0)),
        3: ((40, 20, 10), (16, 8, 4), (0, 0, 0)),
    }
    sizes = {rank: 4 * int(np.prod(shape[0])) for rank, shape in shapes.items()}
    memory = Memory({f"{way}{rank}": sizes[rank] for rank in shapes for way in ("from", "to")})
    launches = []
    for rank, shape in shapes.items():
        loads, stores = (boxes(memory[f"{way}{rank}"], *shape) for way in ("from", "to"))
        launches.append(
            Grid(len(loads), 32).launch(
                f"tensor_{rank}d",
                transfers("tensor_load", "load", loads),
                transfers("tensor_store", "store", stores),
            )
        )
    return Expected(memory, tuple(launches))


@scenario
def matrix(blocks: int = 8) -> Expected:
    """ldmatrix and stmatrix of 1, 2 and 4 matrices of 8 rows of 16 bytes, per warp."""
    memory = Memory({"to": 4 * 32 * blocks})
    g = Grid(blocks, 32)
    row, threads = 16 * g.lane, 32 * blocks
    moves = [
        g.access("matrix", op, 16, row, g.lane < 8 * count, threads=threads)
        for op in ("load", "store")
        for count in (1, 2, 4)
    ]
    return Expected(
        memory,
        (
            g.launch(
                "matrices",
                g.access("shared", "store", 16, row),
                *moves,
                g.access("shared", "load", 16, row),
                g.store(4, memory["to"] + 4 * g.i),
            ),
        ),
    )


@scenario
def cluster(n: int = 1024) -> Expected:
    """Per thread st.async, a load, then a store and a load of the other block's shared memory."""
    memory = Memory({"to": 4 * n})
    g = Grid(ceil(n, 128), 128)
    word = 4 * g.tid
    return Expected(
        memory,
        (
            g.launch(
                "exchange",
                g.access("async_store", "store", 4, word),
                g.access("shared", "load", 4, word),
                g.access("remote_shared", "store", 4, word),
                g.access("remote_shared", "load", 4, word),
                g.store(4, memory["to"] + 4 * g.i),
            ),
        ),
    )


# ---- control -----------------------------------------------------------------------------------


@scenario
def barrier(n: int = 1024, rounds: int = 5) -> Expected:
    """`rounds` barriers per warp."""
    memory = Memory({"to": 4 * n})
    g = Grid(ceil(n, 256), 256)
    return Expected(
        memory,
        (
            g.launch(
                "meet",
                g.access("barrier", "barrier", 0, 0, times=rounds),
                g.store(4, memory["to"] + 4 * g.i),
            ),
        ),
    )


@scenario
def call(n: int = 1024) -> Expected:
    """Three calls per warp: by all lanes, nested in it, and by 16 lanes."""
    memory = Memory({"to": 4 * n})
    g = Grid(ceil(n, 128), 128)
    return Expected(
        memory,
        (
            g.launch(
                "call_functions",
                g.access("call", "call", 0, 0),
                g.access("call", "call", 0, 0),
                g.access("call", "call", 0, 0, g.lane < 16),
                g.store(4, memory["to"] + 4 * g.i),
            ),
        ),
    )


@scenario
def cooperative(blocks: int = 16) -> Expected:
    """`data` is written once and read once; the grid's barrier has accesses of its own."""
    n = 128 * blocks
    memory = Memory({"data": 4 * n, "to": 8 * n})
    g = Grid(blocks, 128)
    return Expected(
        memory,
        (
            g.launch(
                "shift_in_grid",
                g.store(4, memory["data"] + 4 * g.i),
                g.load(4, memory["data"] + 4 * ((g.i + 128) % n)),
                g.store(4, memory["to"] + 4 * g.i),
                exact=False,
            ),
        ),
    )


# ---- launches, streams, contexts, modules ------------------------------------------------------


def accumulate(memory: Memory, to: str, source: str, n: int) -> Launch:
    """to[i] += from[i]: two loads and a store."""
    g = Grid(ceil(n, 128), 128)
    on = g.i < n
    return g.launch(
        "accumulate",
        g.load(4, memory[source] + 4 * g.i, on),
        g.load(4, memory[to] + 4 * g.i, on),
        g.store(4, memory[to] + 4 * g.i, on),
    )


def write_index(memory: Memory, to: str, n: int) -> Launch:
    """to[i] = i."""
    g = Grid(ceil(n, 128), 128)
    return g.launch("write_index", g.store(4, memory[to] + 4 * g.i, g.i < n))


def increment(memory: Memory, values: str, n: int) -> Launch:
    """values[i] += 1: a load and a store."""
    g = Grid(ceil(n, 128), 128)
    at, on = memory[values] + 4 * g.i, g.i < n
    return g.launch("increment", g.load(4, at, on), g.store(4, at, on))


@scenario
def graph(n: int = 4096, replays: int = 5) -> Expected:
    """One node, launched `replays` times."""
    memory = Memory({"from": 4 * n, "to": 8 * n})
    return Expected(memory, (accumulate(memory, "to", "from", n),) * replays)


@scenario
def two_streams(n: int = 4096, launches: int = 10) -> Expected:
    """Per stream `launches` of two kernels: on its own buffers, and on a buffer of both."""
    memory = Memory({"both": 20 * n, "from0": 4 * n, "to0": 12 * n, "from1": 8 * n, "to1": 16 * n})
    g = Grid(ceil(n, 128), 128)
    both = g.launch("red_distinct", g.access("global", "red", 4, memory["both"] + 4 * g.i))
    own = [accumulate(memory, f"to{s}", f"from{s}", n) for s in range(2)]
    return Expected(memory, (own[0], both, own[1], both) * launches)


@scenario
def two_contexts(n: int = 4096) -> Expected:
    """Of `first` n words, of `second` 2n and then n."""
    memory = Memory({"first": 4 * n, "second": 8 * n})
    first, second = (increment(memory, role, n) for role in ("first", "second"))
    return Expected(memory, (first, increment(memory, "second", 2 * n), first, second))


@scenario
def pair() -> Expected:
    """A consumer that polls `flag` until the producer, on another stream, has set it."""
    memory = Memory({"data": 128, "flag": 256, "late": 384, "to": 512})
    g = Grid(1, 32)
    data, word = memory["data"] + 4 * g.i, 4 * g.i
    return Expected(
        memory,
        (
            g.launch("consume", g.load(4, data), g.store(4, memory["to"] + word), exact=False),
            g.launch(
                "produce",
                g.store(4, data),
                g.access("barrier", "barrier", 0, 0),
                g.store(4, memory["flag"] + word, g.i == 0),
            ),
        ),
    )


@scenario
def unload() -> Expected:
    """Two modules with a kernel of one name: 64 stores, then 128."""
    memory = Memory({"to": 1024})
    g = Grid(1, 64)
    once, again = (g.store(4, memory["to"] + 4 * (g.i + first)) for first in (0, 128))
    return Expected(memory, (g.launch("from_module", once), g.launch("from_module", again, once)))


@scenario
def reset(n: int = 4096) -> Expected:
    """n stores, cudaDeviceReset, 2n stores."""
    memory = Memory({"before": 4 * n, "after": 8 * n})
    return Expected(memory, (write_index(memory, "before", n), write_index(memory, "after", 2 * n)))


# ---- how programs end --------------------------------------------------------------------------


@scenario
def fault(n: int = 4096) -> Expected:
    """A valid kernel, then one that writes to unmapped memory."""
    memory = Memory({"to": 4 * n})
    bad = Grid(1, 32).launch("write_nowhere", exact=False)
    return Expected(memory, (write_index(memory, "to", n), bad))


@scenario
def trap(n: int = 4096) -> Expected:
    """A valid kernel, then one that traps."""
    memory = Memory({"to": 4 * n})
    bad = Grid(1, 32).launch("stop_here", exact=False)
    return Expected(memory, (write_index(memory, "to", n), bad))


@scenario
def no_sync(n: int = 1 << 20) -> Expected:
    """Four launches without synchronization: their counts are not exact."""
    memory = Memory({"to": 4 * n})
    one = write_index(memory, "to", n)
    return Expected(memory, (Launch(one.kernel, one.warps, one.accesses, exact=False),) * 4)


# ---- sizes -------------------------------------------------------------------------------------


@scenario
def many(n: int = 1 << 20, trips: int = 4097) -> Expected:
    """n * trips loads: more than 32 bits count. In each round the 8 warps of a block read the 8
    aligned groups of 32 words, each another one: 4 sectors per instruction."""
    memory = Memory({"from": 1024, "to": 4 * n})
    block, g = Grid(1, 256), Grid(ceil(n, 256), 256)
    return Expected(
        memory,
        (
            g.launch(
                "reread",
                block.load(4, memory["from"] + 4 * block.i, times=ceil(n, 256) * trips),
                g.store(4, memory["to"] + 4 * g.i),
            ),
        ),
    )


@scenario
def large(gib: int = 5) -> Expected:
    """A store per MiB and one to the last word: a sector each."""
    bytes = gib << 30
    memory = Memory({"big": bytes})
    steps = bytes >> 20
    g = Grid(ceil(steps + 1, 128), 128)
    at = memory["big"] + np.where(g.i < steps, g.i << 20, bytes - 4)
    return Expected(memory, (g.launch("touch", g.store(4, at, g.i <= steps)),))


@scenario
def many_objects(objects: int = 5000) -> Expected:
    """A pointer loaded and a word stored per object."""
    memory = Memory({"table": 8 * objects, **{f"object{k}": 256 for k in range(objects)}})
    g = Grid(ceil(objects, 128), 128)
    on = g.i < objects
    own = memory["object0"] + (g.i << memory.SHIFT) + g.i % 64 * 4
    return Expected(
        memory,
        (g.launch("touch_all", g.load(8, memory["table"] + 8 * g.i, on), g.store(4, own, on)),),
    )


# ---- kinds and lives of memory -----------------------------------------------------------------


@scenario
def reuse(n: int = 1 << 20) -> Expected:
    """Three objects at the same address, each half as large as the previous one."""
    memory = Memory({f"round{k}": 4 * (n >> k) for k in range(3)})
    return Expected(memory, tuple(write_index(memory, f"round{k}", n >> k) for k in range(3)))


@scenario
def unknown() -> Expected:
    """128 words of `inside`, then 128 outside any object; none of `neighbour`, which follows."""
    memory = Memory({"to": 2048, "inside": 512, "neighbour": 512})
    g = Grid(2, 128)
    past = memory["inside"] + 4 * g.i
    return Expected(
        memory,
        (
            g.launch("write_index", g.store(4, past)),
            g.launch("copy_words", g.load(4, past), g.store(4, memory["to"] + 4 * g.i)),
        ),
    )


@scenario
def memory_kinds() -> Expected:
    """1024 words of managed memory, 2048 of pinned host memory, and so on: a load and a store each.
    `mapped` is as large as the device's page."""
    n = 1024
    words = {"managed": n, "pinned": 2 * n, "pooled": 3 * n, "mapped": 4 * n, "symbol": 6 * n}
    memory = Memory({role: 4 * count for role, count in words.items()} | {"mapped": 2 << 20})
    return Expected(memory, tuple(increment(memory, role, count) for role, count in words.items()))
