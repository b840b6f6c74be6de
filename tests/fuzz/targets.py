"""Fuzz targets: their inputs, mutations and forbidden outcomes.

Each has a corpus of files in `corpus/NAME`, to which crashing inputs are added.
"""

from __future__ import annotations

import contextlib
import random
import shutil
import string
import subprocess
import tempfile
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

from tests.fuzz import bases, readers
from tests.fuzz.hostile import mutate

HERE = Path(__file__).resolve().parent
#: Time limit for an input of Python targets, in seconds.
SLOW = 10


@dataclass
class Outcome:
    """Outcome of a target's inputs; `crashes` are texts."""

    executions: int = 0
    slowest: float = 0.0
    crashes: list[str] = field(default_factory=list)


class Target(ABC):
    """A reader of untrusted input."""

    name: str

    @property
    def corpus(self) -> list[Path]:
        return sorted((HERE / "corpus" / self.name).iterdir())

    @abstractmethod
    def replay(self) -> Outcome:
        """Reads each file of the corpus once."""

    @abstractmethod
    def fuzz(self, seconds: float, seed: int) -> Outcome:
        """Reads inputs for this many seconds; adds crashing inputs to the corpus."""

    def keep(self, data: bytes) -> Path:
        path = HERE / "corpus" / self.name / f"crash-{sha256(data).hexdigest()[:12]}"
        path.write_bytes(data)
        return path


class PythonTarget(Target):
    """A target in this process: `execute` raises for a forbidden outcome."""

    @abstractmethod
    def execute(self, data: bytes) -> None: ...

    @abstractmethod
    def seeds(self) -> list[bytes]: ...

    def make(self, rng: random.Random, seeds: list[bytes]) -> bytes:
        return havoc(rng, rng.choice(seeds), seeds)

    @contextlib.contextmanager
    def prepared(self) -> Iterator[None]:
        yield

    def replay(self) -> Outcome:
        outcome = Outcome()
        with self.prepared():
            for path in self.corpus:
                self._try(path.read_bytes(), outcome, lambda data, path=path: path)
        return outcome

    def fuzz(self, seconds: float, seed: int) -> Outcome:
        outcome, rng = Outcome(), random.Random(seed)
        seeds = [*self.seeds(), *(path.read_bytes() for path in self.corpus)]
        end = time.monotonic() + seconds
        with self.prepared():
            while time.monotonic() < end:
                self._try(self.make(rng, seeds), outcome, self.keep)
        return outcome

    def _try(self, data: bytes, outcome: Outcome, kept: Callable[[bytes], Path]) -> None:
        began = time.process_time()
        try:
            self.execute(data)
            if time.process_time() - began > SLOW:
                raise TimeoutError(f"above {SLOW} s")
        except Exception:
            outcome.crashes.append(f"{kept(data)}\n{traceback.format_exc(limit=-6)}")
        outcome.executions += 1
        outcome.slowest = max(outcome.slowest, time.process_time() - began)


_TOKENS = (
    b"0" * 400, b"-1", b"9" * 30, b"nan", b"\xff", b"\0", b"[[[[", b'"""', b"\xc3\xa9", b"\x1b[2J",
    b"1e999", b"\n\n",
)  # fmt: skip


def havoc(rng: random.Random, data: bytes, others: list[bytes]) -> bytes:
    """Changes, removes and repeats bytes, and splices other inputs."""
    found = bytearray(data)
    for _ in range(rng.choice([1, 1, 2, 4, 16])):
        at, other = rng.randrange(len(found) + 1), rng.choice(others)
        end = min(at + rng.choice([1, 2, 8, 60]), len(found))
        what = rng.randrange(6)
        if what == 0 and at < len(found):
            found[at] ^= 1 << rng.randrange(8)
        elif what == 1:
            found[at:end] = b""
        elif what == 2:
            found[at:at] = found[at:end] * rng.choice([1, 3, 500])
        elif what == 3 and other:
            begin = rng.randrange(len(other))
            found[at:end] = other[begin : begin + rng.choice([1, 8, 100])]
        elif what == 4:
            found[at:at] = rng.choice(string.printable).encode() * rng.choice([1, 2, 300])
        else:
            found[at:at] = rng.choice(_TOKENS)
    return bytes(found[: 1 << 18])


class Toml(PythonTarget):
    """TOML configurations and presets, and the options of tools in them."""

    name = "toml"

    def seeds(self) -> list[bytes]:
        from pasta import paths

        return [path.read_bytes() for path in sorted(paths.presets().glob("*.toml"))]

    @contextlib.contextmanager
    def prepared(self) -> Iterator[None]:
        with tempfile.TemporaryDirectory(prefix="pasta-fuzz-") as scratch:
            self._path = Path(scratch) / "input.toml"
            yield

    def execute(self, data: bytes) -> None:
        from pasta.config import Config
        from pasta.errors import PastaError
        from pasta.plugins import built_in_names, load_tools

        self._path.write_bytes(data)
        config = Config()
        with contextlib.suppress(PastaError):
            config.load(str(self._path))
            tools = [tool for tool in config.tools if tool in built_in_names()]  # not files
            load_tools(tools, config.tool_options)


class Sass(PythonTarget):
    """Instructions in the form of nvdisasm, and all that is derived from them."""

    name = "sass"

    def seeds(self) -> list[bytes]:
        place = bases.REPOSITORY / "tests" / "data" / "sass"
        return [path.read_bytes()[:20_000] for path in sorted(place.glob("*.sass"))]

    def execute(self, data: bytes) -> None:
        from pasta.sass.blame import blame
        from pasta.sass.disassembly import summarize
        from pasta.sass.lines import Lines
        from tests.support.sass import bits, code_of

        texts = [line[28:] for line in data.decode("utf-8", "replace").splitlines()][:400]
        boards = [bits(write=at % 8, wait=[at % 7 % 6]) for at in range(len(texts))]
        code = code_of(*texts, control=boards)
        hash(summarize(code, Lines()))
        samples = {16 * at: {"long_scoreboard": 3, "wait": 2} for at in range(0, len(texts), 9)}
        charged = blame(code, samples)
        rest = sum(each.samples for each in charged.unattributed)
        assert charged.attributed + rest == 5 * len(samples)


class Cubins(PythonTarget):
    """Modules: sections, symbols, line tables."""

    name = "cubins"

    def seeds(self) -> list[bytes]:
        place = bases.REPOSITORY / "tests" / "data" / "sass"
        return [path.read_bytes() for path in sorted(place.glob("s*80.cubin"))]

    def execute(self, data: bytes) -> None:
        from pasta.errors import PastaError
        from pasta.sass.cubin import Cubin
        from pasta.sass.lines import read_lines

        with contextlib.suppress(PastaError):
            cubin = Cubin(data)
            for name in cubin.names():
                cubin.code(name)
            read_lines(cubin)


class Runs(PythonTarget):
    """Run directories: an input is the number of a mutated run, as text, and names of readers."""

    name = "runs"
    _READERS = tuple(each for each in readers.READERS if each != "replay accesses")  # compiles

    def seeds(self) -> list[bytes]:
        return []

    def make(self, rng: random.Random, seeds: list[bytes]) -> bytes:
        return f"{rng.randrange(1 << 40)} {rng.choice(self._READERS)}".encode()

    @contextlib.contextmanager
    def prepared(self) -> Iterator[None]:
        with tempfile.TemporaryDirectory(prefix="pasta-fuzz-") as scratch:
            self._place = Path(scratch)
            bases.fixture(self._place / "base")
            yield

    def execute(self, data: bytes) -> None:
        number, _, reader = data.decode().strip().partition(" ")
        directory = self._place / "scene"
        directory.mkdir()
        scene = readers.Scene(directory)
        readers.make_canary(directory)
        for place, rank in ((scene.run, 0), (scene.good, 1)):
            shutil.copytree(self._place / "base", place)
            bases.ranked(place, rank, 2)
        scene.out.mkdir()
        done = mutate(random.Random(int(number)), scene.run)
        failures = readers.read(reader, scene)
        shutil.rmtree(directory)
        if failures:
            raise AssertionError(f"{done}: {failures}")


class Decoder(Target):
    """The event decoder, in C, under ASan and UBSan; has its own mutator, or uses libFuzzer."""

    name = "decoder"
    _SOURCES = (HERE / "decoder.c", bases.REPOSITORY / "shim" / "python" / "reader.c")

    def _build(self, place: Path) -> Path:
        program = place / "decoder"
        subprocess.run(
            ["cc", "-std=c11", "-g", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread",
             "-fsanitize=address,undefined", "-fno-sanitize-recover=all",
             f"-I{bases.REPOSITORY / 'shim' / 'include'}", *self._SOURCES, "-o", program],
            check=True,
        )  # fmt: skip
        return program

    def _run(self, *arguments: object) -> tuple[Outcome, str]:
        with tempfile.TemporaryDirectory(prefix="pasta-fuzz-") as scratch:
            command = [self._build(Path(scratch)), *map(str, arguments)]
            done = subprocess.run(command, capture_output=True, text=True)
        outcome = Outcome()
        if done.returncode:
            outcome.crashes.append(f"{' '.join(map(str, arguments))}\n{done.stderr}")
        return outcome, done.stdout

    def replay(self) -> Outcome:
        outcome, _ = self._run(*self.corpus)
        outcome.executions = len(self.corpus)
        return outcome

    def fuzz(self, seconds: float, seed: int) -> Outcome:
        outcome, printed = self._run(seed, seconds, *self.corpus)
        if printed:
            executions, slowest = printed.split()
            outcome.executions, outcome.slowest = int(executions), float(slowest)
        return outcome


TARGETS: dict[str, Target] = {
    target.name: target for target in (Decoder(), Runs(), Toml(), Sass(), Cubins())
}
