"""The NVIDIA side of probes without a GPU: counts of replayed kernels appear in results."""

from __future__ import annotations

import json
import random
import re
import subprocess
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from pasta import abi
from pasta.backends.nvidia.areas import BIN_STRIPES
from pasta.backends.nvidia.libraries import find_ptxas
from pasta.errors import MissingDependency
from pasta.sass.disassembly import disassemble, find_nvdisasm
from tests.support import fake_gpu
from tests.support.preload import Done, Preload

TOOL = """
from pasta.lazy import np
from pasta.probes import Counter, Histogram, PerPC, probe
from pasta.processors.kernel_names import instruction_columns
from pasta.table import Table
from pasta.tool import Result, Tool


class Played(Tool):
    total = Counter(by="launch", fields=("seen", "bytes"))
    heat = Histogram(by="object", bin="4KiB")
    objects = Counter(by=("object", "launch"), fields="hits")
    pairs = Counter(by=("launch", "object", "pc"), pairs=16)
    pcs = PerPC("requests")

    @probe.global_memory
    def count(access, maps):
        maps.total.add(seen=1, bytes=access.bytes)
        maps.heat.add(access.object, access.offset)
        maps.objects.add(access.object)
        maps.pairs.add(access.object, access.pc)
        maps.pcs.add(access.pc, requests=1)

    def result(self):
        rows = self.context.objects.rows
        size = lambda ids: np.where(ids < 0, 0, rows["bytes"][ids]) if len(rows) else 0 * ids
        total, heat, objects, pcs, pairs = (
            each.rows() for each in (self.total, self.heat, self.objects, self.pcs, self.pairs)
        )
        named = lambda **columns: Table({name: np.asarray(c) for name, c in columns.items()})
        return Result(
            summary="",
            tables={
                "total": named(**{name: total[name] for name in ("launch", "seen", "bytes")}),
                "heat": named(size=size(heat["object"]), bin=heat["bin"], count=heat["count"]),
                "objects": named(
                    launch=objects["launch"], size=size(objects["object"]), hits=objects["hits"]
                ),
                "pairs": named(
                    launch=pairs["launch"], size=size(pairs["object"]), pc=pairs["pc"],
                    count=pairs["count"],
                ),
                "pcs": named(pc=pcs["pc"], requests=pcs["requests"]),
                "lines": Table(instruction_columns(self.context, pcs["pc"])),
            },
        )
"""
#: Marks granules by launch, and of the whole run.
MARKING = """
from pasta.probes import Bitmap, probe
from pasta.tool import Result, Tool


class Marking(Tool):
    touched = Bitmap(by="launch", granularity=32)
    ever = Bitmap(by="object", granularity=32)

    @probe.global_memory
    def mark(access, maps):
        maps.touched.touch(access)
        maps.ever.touch(access)

    def result(self):
        return Result(summary="")
"""
BIN = 4096
S = 0x51  # a stream
Access = tuple[int, int, int]  # address, how often, program counter


@dataclass
class Script:
    """Lines for the program, and the expected counts of its kernels. Objects differ in size."""

    lines: list[str] = field(default_factory=list)
    live: dict[int, int] = field(default_factory=dict)
    launches: int = 0
    total: dict[int, tuple[int, int]] = field(default_factory=dict)
    heat: Counter[tuple[int, int]] = field(default_factory=Counter)
    objects: Counter[tuple[int, int]] = field(default_factory=Counter)
    pcs: Counter[int] = field(default_factory=Counter)
    pairs: Counter[tuple[int, int, int]] = field(default_factory=Counter)

    def say(self, *words: str | int) -> None:
        self.lines.append(" ".join(w if isinstance(w, str) else f"{w:x}" for w in words))

    def alloc(self, address: int, size: int) -> None:
        self.say("alloc", address, size)
        self.live[address] = size

    def free(self, address: int) -> None:
        self.say("free", address)
        del self.live[address]

    def launch(self, stream: int, *accesses: Access, counts: bool = True) -> None:
        self.say("launch", stream, *_texts(accesses))
        self._played(accesses, counts)

    def graph(self, stream: int, nodes: int, *accesses: Access, counts: bool = True) -> None:
        self.say("graph", stream, nodes, *_texts(accesses))
        for _ in range(nodes):
            self._played(accesses, counts)

    def mixed(self, stream: int, nodes: int, *accesses: Access) -> None:
        """A graph whose second, fourth, … nodes are not selected."""
        self.say("mixed", stream, nodes, *_texts(accesses))
        for number in range(nodes):
            self._played(accesses, number % 2 == 0)

    def fail(self, stream: int) -> None:
        self.say("fail", stream)
        self._played((), True)

    def _played(self, accesses: Iterable[Access], counts: bool) -> None:
        launch, self.launches = self.launches, self.launches + 1
        for address, count, pc in accesses if counts else ():
            seen, bytes = self.total.get(launch, (0, 0))
            self.total[launch] = seen + count, bytes + 4 * count
            self.pcs[pc] += count
            start, size = self._holder(address)
            self.objects[launch, size] += count
            self.pairs[launch, size, pc] += count
            self.heat[size, (address - start) // BIN if size else 0] += count

    def _holder(self, address: int) -> tuple[int, int]:
        for start, size in self.live.items():
            if start <= address < start + size:
                return start, size
        return 0, 0


def _texts(accesses: Iterable[Access]) -> list[str]:
    return [f"{address:x}:{count:x}:{pc:x}" for address, count, pc in accesses]


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("fake-gpu")
    fake_gpu.build(directory)
    (directory / "played.py").write_text(TOOL)
    estimating = TOOL.replace("(Tool):", "(Tool):\n    estimates = True\n")
    (directory / "estimating.py").write_text(estimating)
    following = estimating.replace("(Tool):", '(Tool):\n    needs = ("tensors",)\n')
    (directory / "following.py").write_text(following)
    (directory / "marking.py").write_text(MARKING)
    by_kernel = estimating.replace('total = Counter(by="launch"', 'total = Counter(by="kernel"')
    by_kernel = by_kernel.replace('in ("launch", "seen"', 'in ("kernel", "seen"')
    (directory / "by_kernel.py").write_text(by_kernel)
    return directory


Play = Callable[..., Done]


@pytest.fixture
def play(built: Path, pasta_preload: Preload) -> Play:
    def run(
        script: Script,
        *options: str,
        cubin: Path | None = None,
        tool: str = "played.py",
        **fake: str,
    ) -> Done:
        environment = {
            **({"FAKE_PROGRAM_CUBIN": str(cubin)} if cubin else {}),
            **fake_gpu.environment(built),
            **{f"FAKE_SANITIZER_{name}": value for name, value in fake.items()},
        }
        return pasta_preload(
            built / "program",
            options=("-t", str(built / tool), "--set", "probes.sm=90", *options),
            input="".join(f"{line}\n" for line in script.lines),
            environment=environment,
        )

    return run


def rows(done: Done, table: str) -> list[tuple[int, ...]]:
    read = pq.read_table(done.run.path / "results" / "played" / f"{table}.parquet")
    return [tuple(row.values()) for row in read.to_pylist()]


def expect(done: Done, script: Script) -> None:
    """Checks the program's output and status, and exactly the counts that it played."""
    assert (done.exit_status, done.stdout, done.target_stderr) == (7, "done\n", "")
    expect_counts(done, script)


def expect_counts(done: Done, script: Script) -> None:
    assert_counted(done, script)
    assert sorted(rows(done, "pcs")) == sorted(script.pcs.items())
    heat = sorted((size, bin, count) for (size, bin), count in script.heat.items())
    assert sorted(rows(done, "heat")) == heat
    pairs = {tuple(key): count for *key, count in rows(done, "pairs")}
    lost = re.search(r"([\d,]+) accesses left out of pairs: raise its pairs", done.run.report)
    other = int(lost[1].replace(",", "")) if lost else 0
    assert sum(pairs.values()) + other == sum(script.pairs.values())
    assert all(script.pairs[key] == count for key, count in pairs.items())


def assert_counted(done: Done, script: Script) -> None:
    assert sorted(rows(done, "total")) == sorted(
        (launch, *both) for launch, both in script.total.items()
    )
    objects = sorted((launch, size, n) for (launch, size), n in script.objects.items())
    assert sorted(rows(done, "objects")) == objects


@pytest.mark.main
def test_launches_and_objects(play: Play) -> None:
    script = Script()
    script.alloc(0x200000000, 100_000)
    script.alloc(0x7F0000000000, (5 << 30) + 1)
    script.alloc(0x7F0000000000 + (5 << 30) + 512, 5000)
    for n in range(1, 150):  # more than two batches, the last one partial
        script.launch(
            S,
            (0x200000000 + n * 600, n, 0x10),
            (0x7F0000000000 + (n << 25), 2, 0x20),
            (0x7F0000000000 + (5 << 30) + 512 + n, 3, 0x20 + n % 3 * 16),
            (0x1000, 1, 0x40),
        )
    done = play(script)
    expect(done, script)
    assert done.notes == []


@pytest.mark.slow
def test_program_runs_without_probes_that_do_not_compile(
    built: Path, tmp_path: Path, pasta_preload: Preload
) -> None:
    """The compiler is still at work when the program starts."""
    failing = tmp_path / "ptxas"
    failing.write_text("#!/bin/sh\necho wrong >&2\nexit 1\n")
    failing.chmod(0o755)
    done = pasta_preload(
        built / "program",
        options=("-t", str(built / "played.py"), "--set", "probes.sm=90"),
        input=f"launch {S:x}\n",
        environment={**fake_gpu.environment(built), "PASTA_PTXAS": str(failing)},
    )
    assert (done.exit_status, done.stdout) == (7, "done\n")
    (log,) = re.findall(r"probes do not run: they failed to compile, see (.*)", done.stderr)
    assert "rejects the patches: wrong" in Path(log).read_text()
    assert rows(done, "total") == []


def test_addresses_are_reused_between_launches(play: Play) -> None:
    script, random_ = Script(), random.Random(1)
    script.say("hold", S)  # nothing completes before the end: every table is in use
    for n in range(200):
        if len(script.live) > 5:
            script.free(random_.choice(list(script.live)))
        address = random_.choice([0x200000000, 0x300000000, 0x7F0000000000]) + (n % 5 << 20)
        if address not in script.live:
            script.alloc(address, 5000 + n)
        accesses = [(each + random_.randrange(9000), 1 + n, 0x10) for each in script.live]
        script.launch(S, *accesses)
    script.say("release", S)
    expect(play(script), script)


def test_tables_are_reused_while_streams_lag(play: Play) -> None:
    script = Script()
    for n in range(400):
        if n % 40 == 0:
            script.say("hold", S)
        address = 0x200000000 + (n % 7 << 20)
        script.alloc(address, 5000 + n)
        script.launch(S if n % 3 else S + 1, (address + 100, 1 + n, 0x10))
        script.free(address)
        if n % 40 == 39:
            script.say("release", S)
            script.say("sync")
    expect(play(script), script)


def test_many_objects_share_hashed_rows(play: Play) -> None:
    script = Script()
    script.launch(S, (0x200000000, 1, 0x10))  # the batch is opened without rows
    for n in range(1500):
        script.alloc(0x200000000 + n * 8192, 4096 + n)
    for n in range(70):
        mine = range(n * 20, n * 20 + 20)
        script.launch(S, *((0x200000000 + i * 8192 + 5, i + 1, 0x10) for i in mine))
    expect(play(script), script)


def test_launch_touches_more_objects_than_rows(play: Play) -> None:
    script = Script()
    for n in range(700):
        script.alloc(0x200000000 + n * 8192, 4096 + n)
    script.launch(
        S, *((0x200000000 + n * 8192, n + 1, 0x10) for n in range(700)), (0x1000, 3, 0x10)
    )
    script.launch(S, (0x200000000, 5, 0x10))
    for n in range(700, 2000):  # another batch, with more rows
        script.alloc(0x200000000 + n * 8192, 4096 + n)
    for _ in range(70):
        script.launch(S, *((0x200000000 + n * 8192, n + 1, 0x10) for n in range(0, 2000, 3)))
    expect(play(script), script)


def test_accesses_to_objects_beyond_memory_are_unattributed(play: Play) -> None:
    script, objects, room = Script(), 5000, 4096
    for n in range(objects):
        script.alloc(0x200000000 + n * 8192, 4096 + n)
    script.launch(S, *((0x200000000 + n * 8192, 1, 0x10) for n in range(objects)))
    done = play(script, "--set", "probes.memory=32MiB")
    counted = rows(done, "objects")
    assert sum(hits for _, _, hits in counted) == objects
    (others,) = (hits for _, size, hits in counted if not size)
    assert others == objects + 1 - room  # one row is for unattributed accesses
    assert len(counted) == objects - others + 1


def test_launches_in_flight_take_precedence_over_object_rows(play: Play) -> None:
    script, objects = Script(), 5000
    for n in range(objects):
        script.alloc(0x200000000 + n * 8192, 4096 + n)
    script.say("hold", S)
    for n in range(370):  # more than fit in memory with rows for all objects
        script.launch(S, (0x200000000 + n * 8192, n + 1, 0x10))
    script.say("release", S)
    expect(play(script, "--set", "probes.memory=42MiB"), script)


def test_memory_without_a_context(play: Play) -> None:
    script = Script()
    script.alloc(0x200000000, 5000)
    script.say("nobody", 0x302000000, 7000)
    script.live[0x302000000] = 7000
    script.launch(S, (0x200000010, 1, 0x10), (0x302000010, 2, 0x10))
    script.free(0x302000000)
    script.launch(S, (0x200000010, 1, 0x10), (0x302000010, 3, 0x10))
    expect(play(script), script)


def test_streams(play: Play) -> None:
    """More than are polled at once, all with launches that no marker covers at exit."""
    script = Script()
    script.alloc(0x200000000, 1 << 20)
    for n in range(300):
        script.launch(0x100 + n, (0x200000000 + n * 64, n + 1, 0x10))
    expect(play(script, "--set", "probes.memory=4GiB"), script)


def test_threads(play: Play) -> None:
    script, threads, launches = Script(), 8, 200
    script.alloc(0x200000000, 1 << 20)
    script.say("threads", threads, launches, 0x200000100)
    done = play(script)
    assert (done.exit_status, done.stdout, done.target_stderr) == (7, "done\n", "")
    found = sorted(rows(done, "total"))
    assert [launch for launch, _, _ in found] == list(range(threads * launches))
    expected = Counter(i + 1 for i in range(launches) for _ in range(threads))
    assert Counter(seen for _, seen, _ in found) == expected
    assert {size for _, size, _ in rows(done, "objects")} == {1 << 20}
    assert rows(done, "pcs") == [(0x10, threads * sum(range(1, launches + 1)))]


def test_graph(play: Play) -> None:
    script = Script()
    script.alloc(0x200000000, 1 << 20)
    script.launch(S, (0x200000000, 5, 0x10))
    script.graph(S, 100, (0x200000000, 1, 0x10), (0x200001000, 2, 0x20))
    script.launch(S, (0x200000000, 6, 0x10))
    script.graph(S, 3, (0x200000000, 7, 0x10))
    expect(play(script), script)


def test_nodes_of_a_graph_have_their_own_counts(play: Play) -> None:
    """Also if the last one is not probed, and in graphs with more nodes than a batch has slots."""
    script = Script()
    script.alloc(0x200000000, 1 << 20)
    for number, nodes in enumerate((1, 2, 300, 2, 700, 64, 701)):
        script.mixed(S, nodes, (0x200000000, number + 1, 0x10))
    assert_counted(play(script, "-k", r"^played\("), script)


def test_nodes_of_a_large_graph_that_share_a_row_are_not_counted(play: Play) -> None:
    script = Script()
    script.alloc(0x200000000, 1 << 20)
    script.graph(S, 1, (0x200000000, 5, 0x10))
    script.graph(S, 3, (0x200000000, 6, 0x10), counts=False)
    script.graph(S, 1, (0x200000000, 7, 0x10))
    done = play(script, GRID_STEP=str(1 << 16))
    assert_counted(done, script)
    assert done.stderr.count("a CUDA graph has more than 65536 kernels") == 1


@pytest.mark.parametrize("last", [False, True])
def test_failed_launches(play: Play, last: bool) -> None:
    script = Script()
    script.alloc(0x200000000, 1 << 20)
    for n in range(100):
        script.launch(S, (0x200000000, n + 1, 0x10))
        if n % 3 == 0:
            script.fail(S)
    if last:
        script.fail(S)
    expect(play(script), script)


@pytest.mark.parametrize("failed", [False, True])
def test_stream_destroyed_with_an_open_batch(play: Play, failed: bool) -> None:
    script = Script()
    script.alloc(0x200000000, 1 << 20)
    for round in range(20):
        script.say("hold", S + round)
        for n in range(1 + round):
            script.launch(S + round, (0x200000000, n + 1, 0x10))
        if failed:
            script.fail(S + round)
        script.say("end", S + round)
    expect(play(script), script)


def test_context_destroyed_before_exit(play: Play) -> None:
    script = Script()
    script.alloc(0x200000000, 1 << 20)
    script.say("hold", S)
    for n in range(100):
        script.launch(S if n % 2 else S + 1, (0x200000000, n + 1, 0x10))
    script.fail(S)
    script.say("destroy")
    expect(play(script), script)


def test_kernels_that_run_at_exit(play: Play) -> None:
    script = Script()
    script.alloc(0x200000000, 1 << 20)
    for n in range(10):
        script.launch(S, (0x200000000, n + 1, 0x10))
    script.say("sync")
    script.say("hold", S + 1)
    script.launch(S + 1, (0x200000000, 99, 0x10), counts=False)
    done = play(script, "--set", "python.exit-timeout=500ms")
    assert (done.exit_status, done.stdout, done.target_stderr) == (7, "done\n", "")
    assert_counted(done, script)
    assert [note for note in done.notes if "still running" in note] == [
        "probes: kernels were still running at exit; the results of their launches are missing"
    ]
    report = " ".join(done.run.report.split())
    assert "counted in 10 of 11 launches" in report
    assert "1 launch not counted because kernels were still running at exit" in report


def test_kernels_that_run_at_exit_while_the_thread_looks(play: Play) -> None:
    """The thread holds the lock of its reading when the exit stops waiting for its end."""
    script = Script()
    script.alloc(0x200000000, 1 << 20)
    script.launch(S, (0x200000000, 1, 0x10))
    script.say("sync")
    script.say("hold", S + 1)
    script.launch(S + 1, (0x200000000, 99, 0x10), counts=False)
    # the exit waits 1 s for the end, then up to 0.25 s for the lock, which is held for 1.05 s
    done = play(script, "--set", "python.exit-timeout=500ms", WORD_MS="1050")
    assert (done.exit_status, done.stdout) == (7, "done\n")
    assert_counted(done, script)
    report = " ".join(done.run.report.split())
    assert "counted in 1 of 2 launches" in report
    assert "1 launch not counted because kernels were still running at exit" in report
    assert done.target_stderr == "fake sanitizer: a word is copied\n"  # before the exit went on


def test_error_disables_probes_and_keeps_results(play: Play) -> None:
    script = Script()
    script.alloc(0x200000000, 1 << 20)
    for n in range(3):
        script.launch(S, (0x200000000, n + 1, 0x10))
    script.say("sync")
    script.say("pause")
    for n in range(100):
        script.launch(S, (0x200000000, 1, 0x10), counts=False)
        if n % 10 == 0:
            script.say("sync")
    done = play(script, FAIL="copy_out=7@3")  # a read of launches takes two copies
    assert (done.exit_status, done.stdout, done.target_stderr) == (7, "done\n", "")
    assert_counted(done, script)
    assert "counted in 3 of 103 launches" in " ".join(done.run.report.split())
    (line,) = done.notes
    assert re.fullmatch(
        r"probes of context 0 stopped: sanitizerMemcpyDeviceToHost failed with 7 \(Some error\); "
        r"results so far are kept",
        line,
    )


def test_results_that_cannot_be_read_are_reported(play: Play) -> None:
    script = Script()
    script.alloc(0x200000000, 1 << 20)
    script.say("hold", S)
    for _ in range(5):
        script.launch(S, (0x200000000, 1, 0x10), counts=False)
    script.say("release", S)
    done = play(script, FAIL="copy_out=7")
    assert rows(done, "total") == []
    text = "no launches were probed, of 5; 5 launches not counted after an error, see log.txt"
    assert text in " ".join(done.run.report.split())


@pytest.mark.parametrize(
    "call", ["add_patches", "patch_instructions", "set_launch_data", "set", "copy_in"]
)
def test_error_before_a_launch_is_one_line(play: Play, call: str) -> None:
    script = Script()
    script.alloc(0x200000000, 1 << 20)
    script.launch(S, (0x200000000, 1, 0x10), counts=False)
    script.launch(S, (0x200000000, 1, 0x10), counts=False)
    done = play(script, FAIL=f"{call}=7")
    assert (done.exit_status, done.stdout, done.target_stderr) == (7, "done\n", "")
    (line,) = done.notes
    assert re.fullmatch(r"probes of context 0 stopped: \w+ failed with 7 \(Some error\); .*", line)
    assert rows(done, "total") == []
    report = " ".join(done.run.report.split())
    assert "no launches were probed, of 2" in report and "probes.memory" not in report
    during = call in ("set_launch_data", "copy_in")
    assert ("1 launch not counted after an error, see log.txt" in report) == during


def test_insufficient_memory_is_reported_once(play: Play) -> None:
    script = Script()
    script.alloc(0x200000000, 1 << 20)
    for _ in range(200):
        script.launch(S, (0x200000000, 1, 0x10), counts=False)
    done = play(script, "--set", "probes.memory=64KiB")
    assert (done.exit_status, done.stdout, done.target_stderr) == (7, "done\n", "")
    assert len([note for note in done.notes if "are not probed" in note]) == 1
    assert len(done.notes) == len(set(done.notes))
    assert rows(done, "total") == []
    text = "no launches were probed, of 200; 200 launches not counted for lack of device memory"
    assert f"{text}: raise probes.memory" in " ".join(done.run.report.split())


MIB = 1 << 20
COUNTS = (4, 20, 40, 90, 180, 300)  # live objects: each for twice as many rows


def expect_all_counted_in_16_mib(play: Play, script: Script) -> None:
    """The script must say `used`, the device memory in use."""
    done = play(script, "--set", "probes.memory=16MiB")
    assert (done.exit_status, done.target_stderr) == (7, "")
    expect_counts(done, script)
    assert "not counted" not in done.run.report and done.notes == []
    (used,) = re.findall(r"used (\d+)", done.stdout)
    assert int(used) <= 16 * MIB


def test_batches_fit_any_number_of_objects(play: Play) -> None:
    """Objects become more and fewer; batches of each number of rows would not fit side by side."""
    script, number = Script(), 0
    for live in (*COUNTS, *reversed(COUNTS), *COUNTS):
        for address in [*script.live][live:]:
            script.free(address)
        for n in range(len(script.live), live):
            number += 1
            script.alloc(0x200000000 + n * 8192, 4096 + number)
        for n in range(300):
            script.launch(S, (0x200000000 + n % live * 8192, n + 1, 0x10))
        script.say("sync")
        script.say("pause")
    script.say("used")
    expect_all_counted_in_16_mib(play, script)


def test_launches_in_flight_have_fewer_stripes(play: Play) -> None:
    """Those with as many stripes as planned need more memory than there is."""
    script, live, launches = Script(), 300, 300
    for n in range(live):
        script.alloc(0x200000000 + n * 8192, 4096 + n)
    script.say("hold", S)
    for n in range(launches):
        script.launch(S, (0x200000000 + n % live * 8192, n % 7 + 1, 0x10))
    script.say("used")
    script.say("release", S)
    expect_all_counted_in_16_mib(play, script)


@pytest.mark.parametrize("quiet", [False, True])
def test_launches_without_memory_are_reported_and_estimated(play: Play, quiet: bool) -> None:
    """All that are in flight do not fit; the kernel does the same in each."""
    script, launches = Script(), 10_000
    script.alloc(0x200000000, 1 << 20)
    script.say("hold", S)
    for _ in range(launches):
        script.launch(S, (0x200000000, 3, 0x10))
    script.say("release", S)
    options = ("--set", "probes.memory=8MiB", *(("-q",) if quiet else ()))
    done = play(script, *options, tool="by_kernel.py")
    assert (done.exit_status, done.stdout) == (7, "done\n")
    ((_, seen, bytes),) = rows(done, "total")
    assert (seen, bytes) == (3 * launches, 12 * launches)
    report = " ".join(done.run.report.split())
    found = re.search(r"counted in ([\d,]+) of 10,000 launches", report)
    assert found, report
    probed = int(found[1].replace(",", ""))
    assert 500 < probed < launches
    lost = f"{launches - probed:,} launches not counted for lack of device memory"
    assert f"{lost}: raise probes.memory" in report
    table = pq.read_table(done.run.path / "results" / "played" / "probed.parquet").to_pylist()
    assert [(row["launches"], row["probed"]) for row in table] == [(launches, probed)]


def test_filtered_launches_without_memory_are_not_reported(play: Play) -> None:
    script = Script()
    script.alloc(0x200000000, 1 << 20)
    for number in range(10):
        script.say("kernel", 0x4000, 0xF0 + number % 2, 1)
        script.launch(S, (0x200000000, 1, 0x10), counts=False)
    done = play(script, "-k", r"^played\(", "--set", "probes.memory=64KiB")
    report = " ".join(done.run.report.split())
    assert "no launches were probed, of 5; 5 launches not counted for lack" in report


def test_nodes_without_memory_for_their_table_are_reported(play: Play) -> None:
    script = Script()
    script.alloc(0x200000000, 1 << 20)
    script.launch(S, (0x200000000, 1, 0x10))
    script.graph(S, 30, (0x200000000, 5, 0x10), counts=False)
    done = play(script, "--set", "probes.memory=3900KiB")
    assert_counted(done, script)
    report = " ".join(done.run.report.split())
    assert "counted in 1 of 31 launches" in report
    assert "30 launches not counted for lack of device memory: raise probes.memory" in report


def test_storage_of_freed_objects_is_reused(play: Play) -> None:
    """All have bins of 4 KiB, and memory suffices for four objects at a time; results are
    separate."""
    script = Script()
    for n in range(9):
        script.alloc(0x200000000, (512 << 20) - n)
        script.launch(S, *((0x200003000 + (i << 20) * n, n + 1, 0x10) for i in range(5)))
        script.free(0x200000000)
        script.say("sync")
        # more than half in use is cleared: wait until at most two have storage
        script.say("cleared", BIN_STRIPES * max(0, n - 1))
    done = play(script)
    expect(done, script)
    assert done.notes == []


def test_storage_in_use_is_not_reused(play: Play) -> None:
    """Storage of an object that is freed before the kernels that access it run."""
    script = Script()
    script.say("hold", S)
    for n in range(2):
        script.alloc(0x200000000, (512 << 20) - n)
        script.launch(S, (0x200000000 + (n << 20), n + 1, 0x10))
        script.free(0x200000000)
    script.alloc(0x300000000, 64 << 20)
    for n in range(3):
        script.launch(S + 1, (0x300000000 + (n << 20), n + 5, 0x20))
        script.say("pause")
    script.say("release", S)
    for n in range(2):
        script.say("sync")
        script.say("pause")
        script.launch(S + 1, (0x300000000 + (n << 16), 3, 0x20))
    expect(play(script), script)


def test_streams_mark_granules_in_different_parts_of_planes(play: Play) -> None:
    script = Script()
    for stream in range(4):
        script.say("planes", S + stream)
        script.say("planes", S + stream)
    script.alloc(0x200000000, 4 << 30)  # half of the room of two planes: larger than a part
    script.say("planes", S)
    script.say("planes", S + 1)
    done = play(script, tool="marking.py")
    *lines, last = done.stdout.splitlines()
    assert (done.exit_status, last, done.target_stderr) == (7, "done", "")
    planes = [[int(word, 16) for word in line.split()[1:]] for line in lines]
    (ever,) = {ever for _, ever in planes}  # has no parts
    by_launch = [touched for touched, _ in planes]
    part = (256 << 20) // 2 // 2 // 4  # bytes: half of the memory, two planes, four parts
    assert by_launch[:8:2] == by_launch[1:8:2]
    assert sorted(by_launch[:8:2]) == [by_launch[0] + i * part for i in range(4)]
    assert by_launch[8:] == [by_launch[0]] * 2 and ever not in by_launch


def test_modules_are_loaded_and_unloaded(play: Play) -> None:
    script = Script()
    script.alloc(0x200000000, 1 << 20)
    script.say("load", 0x5000)
    script.launch(S, (0x200000000, 1, 0x10))
    script.say("unload", 0x5000)
    script.say("unload", 0x4000)
    script.say("load", 0x4000)
    script.launch(S, (0x200000000, 2, 0x10))
    expect(play(script), script)


# ---- patches of single modules -------------------------------------------------------------------

KERNELS = {  # module, function: what the program launches, in this order, a step
    "wanted": (0x5000, 0xF0),
    "beside": (0x5000, 0xF1),
    "other": (0x6000, 0xF2),
}


def steps(script: Script, count: int, *, counted: Callable[[str, int], bool]) -> None:
    """Launches each of KERNELS in every step; `counted`: which launches of them are probed."""
    script.alloc(0x200000000, 1 << 20)
    script.say("load", 0x5000)
    script.say("load", 0x6000)
    for step in range(count):
        for name, (module, function) in KERNELS.items():
            script.say("kernel", module, function, 1)
            script.launch(S, (0x200000000, step + 1, 0x10), counts=counted(name, step))
    script.say("report")


def patched(done: Done) -> dict[int, tuple[int, ...]]:
    """By module: launches with patches, without; patches put in, taken out."""
    lines = [re.findall(r"\w+", line) for line in done.stdout.splitlines()[:-1]]
    return {int(words[1], 16): tuple(int(w) for w in words if w.isdigit())[-4:] for words in lines}


def test_modules_without_a_selected_kernel_lose_their_patches(play: Play) -> None:
    script, count = Script(), 50
    steps(script, count, counted=lambda name, _: name == "wanted")
    done = play(script, "-k", r"played\(")
    assert_counted(done, script)
    # the one launch with patches: of a function that was loaded later
    assert patched(done)[0x6000][:2] == (1, count - 1)
    assert patched(done)[0x5000] == (2 * count, 0, 1, 0)
    text = (
        "1 kernel was not selected but slowed down, because selected kernels are in the same"
        " modules"
    )
    assert f"{text}: playeda" in " ".join(done.run.report.split())


def test_no_selected_kernel(play: Play) -> None:
    script, count = Script(), 20
    steps(script, count, counted=lambda *_: False)
    found = patched(play(script, "-k", "nothing_matches"))
    assert found[0x5000][:2] == (2, 2 * count - 2) and found[0x6000][:2] == (1, count - 1)


def test_no_patches_while_profiling_is_stopped(play: Play) -> None:
    script, count = Script(), 20
    steps(script, count, counted=lambda *_: False)
    found = patched(play(script, "--profile-from-start", "off"))
    assert found[0x5000][:2] == (2, 2 * count - 2) and found[0x6000][:2] == (1, count - 1)


def test_patches_follow_windows(play: Play) -> None:
    script, count = Script(), 40
    launches = len(KERNELS) * count
    windows = [number % 30 < 6 for number in range(launches)]
    number = iter(windows)
    steps(script, count, counted=lambda *_: next(number))
    done = play(script, "--set", "probes.window=launches 6/30")
    assert_counted(done, script)
    found = patched(done)
    assert sum(found[module][0] for module in (0x5000, 0x6000)) == sum(windows)
    assert found[0x5000][2] == launches // 30  # loaded in the first window


def test_patches_of_known_shapes_are_taken_out(play: Play) -> None:
    """Launches with patches, and changes of patches, do not grow with the length of the run, though
    one shape in a module will never have enough launches."""
    script, count = Script(), 900
    script.alloc(0x200000000, 1 << 20)
    script.say("load", 0x5000)
    script.say("load", 0x6000)
    script.say("kernel", 0x5000, 0xF2, 7)
    script.launch(S, (0x200000000, 1, 0x10))
    kernels = ((0x5000, 0xF0), (0x5000, 0xF1), (0x6000, 0xF3))
    for _ in range(count):
        for module, function in kernels:
            script.say("kernel", module, function, 1)
            script.launch(S, (0x200000000, 1, 0x10))
    script.say("kernel", 0x6000, 0xF3, 7)  # a new shape, in a module without patches
    for _ in range(5):
        script.launch(S, (0x200000000, 1, 0x10))
    script.say("report")
    done = play(script, "--sample", "--set", "probes.spot-check=100")
    counted = [launch for launch, *_ in sorted(rows(done, "total"))]
    assert counted[0] == 0 and counted[-3:] == [3 * count + 1, 3 * count + 2, 3 * count + 3]
    later = Counter[int]()
    for first, (module, _) in enumerate(kernels, start=1):
        own = [launch for launch in counted[1:-3] if launch % 3 == first % 3]
        # 3, one soon after, and one more in rounds after 100 launches of each of the four shapes,
        # and 200; the additional one may count for the first round
        assert own[:3] == [first, first + 3, first + 6]
        assert own[3] < 600 and 400 < own[4] < 1800 and len(own) <= 6
        later[module] += len(own) - 3
    for module, launches, early in ((0x5000, 2 * count + 1, 7), (0x6000, count + 5, 3 + 3)):
        with_patches, without, put_in, taken_out = patched(done)[module]
        assert with_patches + without == launches
        # patches stay in for at most four launches after a probed one
        after_early_ones = 1 + later[module] + (module == 0x6000)
        assert put_in == taken_out <= after_early_ones
        assert with_patches <= early + later[module] + 4 * after_early_ones


def test_calls_have_no_callbacks_while_no_launch_is_due(play: Play) -> None:
    """Then decisions are made for 64 launches at a time, so up to 65 are missed. A new function is
    seen at once, since it may have patches; what its calls launch is learned at its second
    launch."""
    script, launches = Script(), 4500
    script.alloc(0x200000000, 1 << 20)
    kernels = ((0x4000, 0xF0, 1), (0x4000, 0xF0, 7), (0x4000, 0xF1, 7), (0x4000, 0xF1, 8))
    for module, function, grid in (*kernels, (0x5000, 0xF5, 8)):
        if module == 0x5000:
            script.say("load", module)
        script.say("kernel", module, function, grid)
        for number in range(launches):
            script.launch(S, (0x200000000, 1, 0x10))
            if number in (0, 64, launches - 1):
                script.say("pause")
    total = rows(play(script, "--sample", "--set", "probes.spot-check=0"), "total")
    assert {(requests, accesses) for _, requests, accesses in total} == {(1, 4)}
    probed = [launch for launch, *_ in total]
    firsts = probed[::3]
    assert probed == [first + n for first in firsts for n in range(3)]
    missed = [first - n * launches for n, first in enumerate(firsts)]
    assert (missed[0], missed[2], missed[4]) == (0, 2, 0)  # a new module has patches
    assert all(0 < each <= 65 for each in missed[1::2])


def test_an_empty_subscription_for_benchmarks(play: Play) -> None:
    """While recording is off, launches have the callbacks of a process with nvidia.empty, whichever
    they had before."""
    script = Script()
    script.alloc(0x200000000, 1 << 20)
    for launches in (10, 2000):
        for _ in range(launches):
            script.launch(S, (0x200000000, 1, 0x10))
        for on in (None, 0, 1):
            if on is not None:
                script.say("profile", on)
            script.say("pause")
            script.say("enabled")
    options = ("--sample", "--set", "probes.spot-check=0", "--set", "nvidia.empty_while_off=true")
    enabled = re.findall(r"enabled (.*)", play(script, *options).stdout)
    all_three, empty, resting = "1 1 1", "0 1 1", "0 1 0"
    assert enabled == [all_three, empty, all_three, resting, empty, resting]
    alone = play(Script(["enabled"]), "--set", "nvidia.empty=true")
    assert re.findall(r"enabled (.*)", alone.stdout) == [empty]


def test_a_module_that_is_loaded_while_calls_have_no_callbacks_loses_its_patches(
    play: Play,
) -> None:
    script = Script()
    script.alloc(0x200000000, 1 << 20)
    for _ in range(4500):
        script.launch(S)
    script.say("pause")
    script.say("load", 0x5000)
    script.say("kernel", 0x5000, 0xF5, 1)  # is not selected
    for number in range(500):
        script.launch(S)
        if number == 2:
            script.say("pause")
    script.say("report")
    done = play(script, "--sample", "-k", r"^played\(", "--set", "probes.spot-check=0")
    with_patches, without, *switches = patched(done)[0x5000]
    assert with_patches + without == 500
    assert 0 < with_patches < 10
    assert switches == [1, 1]


@pytest.mark.parametrize("put_off", [True, False])
def test_tensors_between_probed_launches_have_no_records(
    built: Path, pasta_preload: Preload, put_off: bool
) -> None:
    """Those that live when a launch is probed again are recorded before it, unless a tool looks at
    tensors at other times."""
    script, segment = Script(), 0x200000000
    script.alloc(segment, 1 << 20)
    script.say("tensor", segment, 0x1000)
    for number in range(4500):
        script.launch(S, (segment, 1, 0x10))
        if number == 4400:
            script.say("pause")
    for number in range(100):
        script.say("tensor", segment + 0x2000 + 0x200 * number, 0x200)
        script.say("freed", segment + 0x2000 + 0x200 * number, 0x200)
    script.say("tensor", segment + 0x1000, 0x700)
    script.say("freed", segment, 0x1000)
    script.say("kernel", 0x4000, 0xF1, 1)
    for _ in range(10):
        script.launch(S, (segment + 0x1000, 5, 0x10))
        script.say("pause")
    tool = built / ("estimating.py" if put_off else "following.py")
    done = pasta_preload(
        *fake_gpu.build_for_python(built),
        options=(
            *("-t", str(tool), "--set", "probes.sm=90", "--set", "torch.follow=yes"),
            *("--sample", "--set", "probes.spot-check=0"),
        ),
        input="".join(f"{line}\n" for line in script.lines),
        environment=fake_gpu.environment(built),
    )
    objects = rows(done, "objects")
    assert {size for launch, size, _ in objects if launch < 4500} == {0x1000}
    assert {(size, hits) for launch, size, hits in objects if launch >= 4500} == {(0x700, 5)}
    events = json.loads((done.run.path / "run.json").read_text())["events"]
    assert (events["tensor_alloc"], events["tensor_free"]) == ((2, 1) if put_off else (102, 101))


def launches_of(done: Done) -> list[dict[str, int]]:
    return [
        row
        for file in sorted((done.run.path / "events").glob("kernel_launch-*.parquet"))
        for row in pq.read_table(file, columns=["ordinal", "thread", "flags"]).to_pylist()
    ]


def test_threads_while_calls_lose_and_get_their_callbacks(play: Play) -> None:
    """Each probed launch has its own counts: in every thread, one access more than the last."""
    script, threads, launches = Script(), 8, 0x4000
    script.alloc(0x200000000, 1 << 20)
    script.say("threads", threads, launches, 0x200000100)
    script.say("sync")
    script.say("report")
    done = play(script, "--sample", "--set", "probes.spot-check=100")
    expected, counts = {}, Counter[int]()
    for launch in sorted(launches_of(done), key=lambda each: each["ordinal"]):
        counts[launch["thread"]] += 1
        if launch["flags"] & abi.FLAG_PROBED:
            expected[launch["ordinal"]] = counts[launch["thread"]]
    assert len(counts) == threads
    assert set(counts.values()) == {launches}
    assert {launch: requests for launch, requests, _ in rows(done, "total")} == expected
    put_in = re.search(r"put in (\d+)", done.stdout)
    assert put_in
    assert int(put_in[1]) >= 5
    assert len(expected) >= 5


def graphs(script: Script, replays: int, counted: Callable[[int], bool]) -> None:
    for number in range(replays):
        script.graph(S, 1, (0x200000000, number + 1, 0x10), counts=counted(number))


def test_nodes_that_are_not_selected_have_no_data(play: Play) -> None:
    """A patch of a node that was given none would read any address."""
    script = Script()
    script.alloc(0x200000000, 1 << 20)
    script.say("make")
    graphs(script, 5, lambda _: False)
    assert_counted(play(script, "-k", "nothing"), script)


def test_graphs_are_made_with_patches(play: Play) -> None:
    """They could not be put in later: the nodes are another shape than the launches before."""
    script = Script()
    script.alloc(0x200000000, 1 << 20)
    for number in range(9):
        script.launch(S, (0x200000000, number + 1, 0x10), counts=number < 3)
    script.say("capture", 1)
    script.say("kernel", 0x4000, 0xF0, 7)
    script.launch(
        S, (0x200000000, 1, 0x10), counts=False
    )  # a new shape, but patches stay as they are
    script.say("capture", 0)
    script.say("make")
    graphs(script, 9, lambda number: number < 3)
    script.launch(S, (0x200000000, 2, 0x10))  # patches are put in again
    graphs(script, 2, lambda _: False)
    assert_counted(play(script, "--sample", "--set", "probes.spot-check=0"), script)


def test_modules_of_many_graphs_stay_without_patches(play: Play) -> None:
    script = Script()
    script.alloc(0x200000000, 1 << 20)
    for number in range(3 + 9):
        script.launch(S, (0x200000000, number + 1, 0x10), counts=number < 3)
        if number >= 3:  # patches have just been taken out
            script.say("make")
    graphs(script, 3, lambda _: False)
    script.say("kernel", 0x4000, 0xF0, 7)
    script.launch(S, (0x200000000, 1, 0x10), counts=False)
    graphs(script, 3, lambda _: False)
    assert_counted(play(script, "--sample", "--set", "probes.spot-check=0"), script)


def test_instructions_of_a_sample_are_estimated(play: Play, built: Path) -> None:
    """Two shapes execute the same instructions; every launch of one is like the others."""
    script = Script()
    script.alloc(0x200000000, 1 << 20)
    probed: Counter[int] = Counter()
    for number in range(200):
        grid = 1 if number % 10 else 7
        probed[grid] += 1
        script.say("kernel", 0x4000, 0xF0, grid)
        accesses = [(0x200000000 + 4 * n, grid * (n + 1), 0x10 * (n + 1)) for n in range(40)]
        script.launch(S, *accesses, counts=probed[grid] <= 3)
    every: Counter[int] = Counter()
    for grid, launches in probed.items():
        every.update({0x10 * (n + 1): launches * grid * (n + 1) for n in range(40)})
    options = ("--sample", "--set", "probes.spot-check=0")
    done = play(script, *options, tool="estimating.py")
    assert_counted(done, script)
    assert sorted(rows(done, "pcs")) == sorted(every.items())
    report = " ".join(done.run.report.split())
    assert "counted in 6 of 200 launches; totals are estimated for all launches; probed" in report


def test_instructions_of_all_launches_are_counted_in_the_table_of_the_run(play: Play) -> None:
    script = Script()
    script.alloc(0x200000000, 1 << 20)
    script.launch(S, *((0x200000000 + 4 * n, n + 1, 0x10 * (n + 1)) for n in range(40)))
    expect(play(script, tool="estimating.py"), script)


def test_threads_at_the_edges_of_windows(play: Play) -> None:
    """Whoever takes patches out does not see all threads: no launch in a window may lose its
    counts."""
    script, threads, launches = Script(), 8, 700
    script.alloc(0x200000000, 1 << 20)
    script.say("threads", threads, launches, 0x200000100)
    done = play(script, "--set", "probes.window=launches 3/7")
    probed = [
        row["ordinal"]
        for file in sorted((done.run.path / "events").glob("kernel_launch-*.parquet"))
        for row in pq.read_table(file, columns=["ordinal", "flags"]).to_pylist()
        if row["flags"] & abi.FLAG_PROBED
    ]
    assert len(probed) == threads * launches * 3 // 7
    assert sorted(launch for launch, _, _ in rows(done, "total")) == sorted(probed)


def test_results_survive_a_kill(play: Play) -> None:
    script = Script()
    script.alloc(0x200000000, 1 << 20)
    for n in range(100):
        script.launch(S, (0x200000000 + n, n + 1, 0x10))
    script.say("sync")
    script.say("pause")
    script.say("kill")
    done = play(script)
    assert done.exit_status in (-9, 137)
    assert_counted(done, script)


# ---- coverage of the code ------------------------------------------------------------------------

ENTRY = 0x40A0  # kernel address reported by the fake library
CODE = """
.version 8.0
.target sm_90
.address_size 64
.file 1 "/src/kernel.cu"
.visible .entry _Z6playedv(.param .u64 p, .param .align 64 .b8 map[128])
{
    .reg .b64 a, m;
    .reg .b32 v, s;
    .shared .align 128 .b8 tile[1024];
    .loc 1 5 1
    ld.param.u64 a, [p];
    ld.global.u32 v, [a];
    .loc 1 6 1
    add.u32 v, v, 1;
    st.global.u32 [a+4], v;
    .loc 1 7 1
    mov.b64 m, map;
    mov.b32 s, tile;
    STORE
    ret;
}
"""
TENSOR_STORE = "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [m, {0, 0}], [s];"


@pytest.fixture(scope="session")
def cubin(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The module of the replayed kernel, with this instruction at its end."""
    try:
        ptxas = find_ptxas()
    except MissingDependency as error:
        pytest.skip(str(error))
    if find_nvdisasm() is None:
        pytest.skip("nvdisasm was not found")
    directory = tmp_path_factory.mktemp("code")

    def make(store: str) -> Path:
        source, output = directory / "kernel.ptx", directory / f"{bool(store)}.cubin"
        source.write_text(CODE.replace("STORE", store))
        subprocess.run(
            [ptxas, "-arch", "sm_90", "--generate-line-info", source, "-o", output], check=True
        )
        return output

    return make


def offsets(cubin: Path) -> dict[str, int]:
    """Offsets of the kernel's instructions, by prefix of their opcodes."""
    (function,) = disassemble(cubin, ["_Z6playedv"])
    return {each.opcode.text.partition(".")[0]: each.offset for each in function.instructions}


def coverage(done: Done) -> dict[str, tuple[str, int | None, int | None, str]]:
    """Of each kind: verdict of the kernel, instructions, executed, state."""
    table = pq.read_table(done.run.path / "results" / "played" / "coverage.parquet").to_pylist()
    assert {row["kernel"] for row in table} == {"played"}
    return {
        row["kind"]: (row["coverage"], row["instructions"], row["executed"], row["state"])
        for row in table
    }


def summary(done: Done) -> str:
    return str(
        json.loads((done.run.path / "results" / "played" / "result.json").read_text())["summary"]
    )


def test_missed_accesses_are_reported(play: Play, cubin: Callable[[str], Path]) -> None:
    module = cubin(TENSOR_STORE)
    at, script = offsets(module), Script()
    script.launch(S, (0x200000000, 3, ENTRY + at["LDG"]))
    done = play(script, cubin=module)
    expect(done, script)
    found = coverage(done)
    assert found["global"] == ("partly", 2, 1, "1 of 2 executed")
    verdict, instructions, executed, state = found["tensor_store"]
    assert (verdict, instructions, executed) == ("partly", 1, 0)
    assert state.startswith("not seen: the Sanitizer library 13.5 has no callback")
    assert "1 of 1 kernel seen only in part (played: 1 tensor_store" in summary(done)
    assert not (done.run.path / "modules").exists()


def test_all_accesses_are_covered(play: Play, cubin: Callable[[str], Path]) -> None:
    module, script = cubin(""), Script()
    at = offsets(module)
    script.launch(S, (0x200000000, 3, ENTRY + at["LDG"]), (0x200000004, 3, ENTRY + at["STG"]))
    done = play(script, cubin=module)
    expect(done, script)
    assert coverage(done)["global"] == ("seen", 2, 2, "2 of 2 executed")
    assert "all 2 such instructions of 1 kernel can be seen" in summary(done)


@pytest.mark.parametrize(
    ("options", "environment", "why"),
    [
        (("--set", "probes.code-memory=0"), {}, "module not kept, see probes.code-memory"),
        ((), {"broken": "1"}, "a module"),
    ],
    ids=["not_kept", "broken"],
)
def test_unknown_code_is_reported(
    play: Play, cubin: Callable[[str], Path], tmp_path: Path, options, environment, why: str
) -> None:
    module, script = cubin(""), Script()
    if environment:
        module = tmp_path / "broken.cubin"
        module.write_bytes(b"\x7fELF of no module")
    script.alloc(0x200000000, 64)
    script.launch(S, (0x200000000, 3, 0x10))
    done = play(script, *options, cubin=module)
    expect(done, script)
    assert "coverage unknown for 1 kernel" in summary(done)
    assert why in summary(done)
    assert "tensor_store would not be seen" in summary(done)


@pytest.mark.main
def test_source_lines(play: Play, cubin: Callable[[str], Path]) -> None:
    module, script = cubin(""), Script()
    at = offsets(module)
    script.launch(S, *((0x200000000, 1, ENTRY + at[each]) for each in ("LDG", "STG")))
    done = play(script, cubin=module)
    expect(done, script)
    table = pq.read_table(done.run.path / "results" / "played" / "lines.parquet").to_pylist()
    assert {(row["kernel"], row["offset"], row["line"]) for row in table} == {
        ("played", at["LDG"], "/src/kernel.cu:5"),
        ("played", at["STG"], "/src/kernel.cu:6"),
    }
