"""Third-party programs behave with PASTA as without: status, output, files, processes left.

Lists of programs are TOML files beside this one.  Each table is a program, with lines of shell that
run in an empty directory with a few files.  Every line runs without PASTA, with it, and without it
again: what differs between the runs without PASTA is listed, and of it only the lines that all
print are compared.  A difference counts if it remains in three more pairs of runs.  Programs that
are not installed are listed as not run.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from tests.campaigns import third_party_record
from tests.campaigns.programs import alive, compile_program, kill, wait_for
from tests.campaigns.result import Row
from tests.support.places import PROGRAMS
from tests.support.preload import base_environment, cli

NAME = "third-party"
_HERE = Path(__file__).parent
_ASPECTS = ("status", "stdout", "stderr", "files", "left")
#: Names the trial in the environment of all its processes.
_MARK = "THIRD_PARTY_TRIAL"
#: How long processes may live on after a program, in s.
_GRACE = 3.0
#: Further pairs of runs in which a difference must be there.
_REPETITIONS = 3

#: What a program prints differently each time, by the names that the lists use: what replaces it.
RULES: dict[str, tuple[re.Pattern[bytes], bytes]] = {
    name: (re.compile(pattern), replacement)
    for name, pattern, replacement in (
        ("pids", rb"\b\d{2,7}\b", b"PID"),
        ("addresses", rb"0x[0-9A-Fa-f]{4,16}|\b[0-9A-Fa-f]{12,16}\b", b"ADDRESS"),
        ("numbers", rb"\d+", b"N"),
        ("seconds", rb"\b\d+(\.\d+)? ?([mun]?s|sec|seconds?|min|minutes?)\b", b"SECONDS"),
        ("times", rb"\d\d:\d\d(:\d\d(\.\d+)?)?", b"TIME"),
        ("dates", rb"\d{4}-\d\d-\d\d|(Mon|Tue|Wed|Thu|Fri|Sat|Sun)\w* +\w+ +\d+", b"DATE"),
        ("words", rb"\b(?=\w*\d)(?=\w*[a-z])\w{6,12}\b", b"WORD"),
    )
}
#: Not a pattern: the order of the lines.
ORDER = "order"


@dataclass(frozen=True)
class Program:
    """A program of a list.

    `group`: of similar programs; `needs`: commands, one of each `a|b` group; `imports`: modules of
    the Python that runs the lines; `ignore`: names of rules; `ignore_files`: patterns of paths that
    are not compared; `accelerated`: whether it runs with --accelerated too.
    """

    name: str
    group: str
    lines: tuple[str, ...]
    needs: tuple[str, ...]
    imports: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    ignore_files: tuple[str, ...] = ()
    limit: float = 120.0  # s
    accelerated: bool = True

    def missing(self, python: str, path: str) -> list[str]:
        """Commands that are not in `path`, and modules that are not installed."""
        absent = [
            each
            for each in self.needs
            if not any(shutil.which(name, path=path) for name in each.split("|"))
        ]
        return absent + [name for name in self.imports if not _has_module(python, name)]


class Listing(NamedTuple):
    """A list: variables and files of every line, and programs."""

    environment: dict[str, str]
    files: dict[str, str]
    programs: list[Program]


@dataclass(frozen=True)
class Way:
    """A way to run programs with PASTA: its options."""

    name: str
    options: tuple[str, ...]


@dataclass(frozen=True)
class Kind:
    """A list, and the ways in which its programs run.

    `prints`: a line that prints nothing has failed; `accelerated`: every process launches kernels.
    """

    name: str
    help: str
    listing: str
    ways: tuple[Way, ...]
    prints: bool = False
    accelerated: bool = False


KINDS = {
    each.name: each
    for each in (
        Kind("programs", "Debian programs", "third_party.toml",
             (Way("events", ("-c", "events")),)),
        Kind("accelerated", "Debian programs, each process of which launches kernels when it "
             "starts", "third_party.toml",
             (Way("embedded", ("-t", "event_trace", "--set", "python.embed-delay=0")),),
             accelerated=True),
        Kind("suites", "test suites of CPython and Python packages", "third_party_suites.toml",
             (Way("operators", ("-c", "torch")),), prints=True),
        Kind("gpu", "libraries that use a GPU", "third_party_gpu.toml",
             (Way("sampled probes", ("-t", "access_count", "--sample")),
              Way("CUPTI", ("-t", "kernel_freq", "--set", "nvidia.source=cupti")),
              Way("PyTorch", ("-c", "torch"))), prints=True),
    )
}  # fmt: skip


@dataclass(frozen=True)
class Seen:
    """What a user sees of a program: `files` by path, `left` the names of processes that remain."""

    status: str
    stdout: bytes
    stderr: bytes
    files: dict[str, str]
    left: tuple[str, ...]
    ours: str = ""  # a fault of PASTA's own: lines that it printed, sessions that it left
    seconds: float = 0.0


@dataclass
class Compared:
    """The result for one line: differences by way and aspect, and what is not deterministic."""

    program: Program
    line: str
    differences: dict[tuple[str, str], str] = field(default_factory=dict)
    unstable: dict[str, str] = field(default_factory=dict)  # how two runs alone differ, by aspect
    seconds: float = 0.0  # of the slowest run with PASTA
    printed: int = 0  # lines of stdout
    error: str = ""  # what the line printed on stderr, if it failed and printed nothing else

    @property
    def title(self) -> str:
        return f"{self.program.name}: {self.line.strip().splitlines()[0]}"


@cache
def _has_module(python: str, name: str) -> bool:
    code = f"import importlib.util as u, sys; sys.exit(u.find_spec({name!r}) is None)"
    return subprocess.run([python, "-c", code], capture_output=True).returncode == 0


def read_list(path: Path) -> Listing:
    """Reads a list. Raises KeyError for an unknown rule."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    document: dict[str, Any] = tomllib.loads(path.read_text())
    environment = document.pop("environment", {})
    files = {
        "text": "".join(f"line {i} abc\n" for i in range(2000)), "other": "line 0 abc\nother\n",
        **document.pop("files", {}),
    }  # fmt: skip
    programs = []
    for name, table in document.items():
        unknown = set(table.get("ignore", ())) - {*RULES, ORDER}
        if unknown:
            raise KeyError(f"{path.name}: {name}: no rule {', '.join(sorted(unknown))}")
        values: dict[str, Any] = {"group": name, "needs": (name,), **table}
        values = {key: tuple(v) if isinstance(v, list) else v for key, v in values.items()}
        programs.append(Program(name, **values))
    return Listing(environment, files, programs)


def normalise(text: bytes, rules: Iterable[str]) -> bytes:
    """The text without what the rules name, and without PASTA's lines."""
    text = re.sub(rb"^pasta: .*\n?", b"", text, flags=re.MULTILINE)
    ordered = True
    for name in rules:
        if name == ORDER:
            ordered = False
        else:
            pattern, replacement = RULES[name]
            text = pattern.sub(replacement, text)
    return text if ordered else b"".join(sorted(text.splitlines(keepends=True)))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", default="", metavar="REGEX", help="programs or lines that match")
    parser.add_argument("--jobs", type=int, default=2, help="programs at a time")
    parser.add_argument("--list", default="", metavar="FILE", help="another list of programs")
    parser.add_argument("--python", default=sys.executable, metavar="FILE",
        help="the Python of test suites and of programs for a GPU (default: this one)")  # fmt: skip
    parser.add_argument("--device", default="cuda", help="of --gpu; cpu: a rehearsal without one")
    parser.add_argument("--record", action="store_true",
        help="record the results, in tests/campaigns/*.json and docs/third-party.md")  # fmt: skip
    parser.add_argument("--missing", action="store_true",
        help="only programs without a recorded result")  # fmt: skip
    for kind in KINDS.values():
        parser.add_argument(f"--{kind.name}", dest="kind", action="store_const", const=kind,
            default=KINDS["programs"], help=kind.help)  # fmt: skip


def run(arguments: argparse.Namespace) -> list[Row]:
    kind: Kind = arguments.kind
    if arguments.record and arguments.list:
        sys.exit("--record: not with --list")
    path = Path(arguments.list) if arguments.list else _HERE / kind.listing
    environment, files, programs = read_list(path)
    programs = [each for each in programs if each.accelerated or not kind.accelerated]
    recorded = third_party_record.results(kind, programs)
    commands = environment.get("PATH", os.environ.get("PATH", os.defpath))
    wanted = re.compile(arguments.only)
    work: list[tuple[Program, str]] = []
    rows: dict[str, Row] = {}
    for each in programs:
        lines = [x for x in each.lines if wanted.search(each.name) or wanted.search(x)]
        if not lines or (arguments.missing and each.name in recorded):
            continue
        if missing := each.missing(arguments.python, commands):
            print(f"not run: {each.name}: no {', '.join(missing)}")
            continue
        rows[each.name] = Row(each.name)
        work += [(each, line) for line in lines]
    variables = {
        "PYTHON": arguments.python, "DEVICE": arguments.device, "PROGRAMS": str(PROGRAMS),
        **environment,
    }  # fmt: skip
    results: dict[str, list[Compared]] = {}
    with tempfile.TemporaryDirectory(prefix="third-party-") as place, _worker(kind) as worker:
        trials = _Trials(Path(place), files, kind, variables, worker)
        with ThreadPoolExecutor(arguments.jobs) as pool:
            for done in as_completed([pool.submit(trials.compare, *each) for each in work]):
                found = done.result()
                program = found.program
                _note(rows[program.name], found)
                of_program = results.setdefault(program.name, [])
                of_program.append(found)
                if arguments.record and len(of_program) == len(program.lines):
                    third_party_record.record(kind, of_program, arguments.python, commands)
                    third_party_record.write_section(kind, programs)
    if arguments.record:
        third_party_record.write_section(kind, programs)
    return list(rows.values())


def _note(row: Row, found: Compared) -> None:
    for aspect, text in sorted(found.unstable.items()):
        print(f"not the same by itself: {found.title}: {aspect}: {text}")
    if found.error:
        print(f"fails by itself: {found.title}: {found.error}")
    for (way, aspect), text in found.differences.items():
        print(f"{found.title}: {way}: {aspect}: {text}", file=sys.stderr, flush=True)
    row.count(found.seconds, {aspect for _, aspect in found.differences})


@contextmanager
def _worker(kind: Kind) -> Iterator[Path | None]:
    """A library that launches kernels in the constructor, for --accelerated."""
    if not kind.accelerated:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="third-party-") as directory:
        source = "__attribute__((constructor)) static void begin(void) { launch(3); }"
        yield compile_program(source, Path(directory), "worker.so", "-shared", "-fPIC")


@dataclass
class _Trials:
    """Runs lines in directories below `place`, which other users can enter, as some lines do."""

    place: Path
    files: Mapping[str, str]
    kind: Kind
    variables: Mapping[str, str]
    worker: Path | None = None

    def __post_init__(self) -> None:
        self.place.chmod(0o755)

    def compare(self, program: Program, line: str) -> Compared:
        """Differences between a line's behaviour with PASTA and without."""
        directory = Path(tempfile.mkdtemp(dir=self.place))
        directory.chmod(0o755)
        found = Compared(program, line)
        alone = [self._see(directory, program, line, None)]
        with_pasta = {way: self._see(directory, program, line, way) for way in self.kind.ways}
        found.seconds = max(each.seconds for each in with_pasta.values())
        alone.append(self._see(directory, program, line, None))
        for way, seen in with_pasta.items():
            differing = [x for x in _ASPECTS if _differs(x, alone, seen)]
            for _ in range(_REPETITIONS if differing else 0):
                seen = self._see(directory, program, line, way)
                alone.append(self._see(directory, program, line, None))
                differing = [x for x in differing if _differs(x, alone, seen)]
            for aspect in differing:
                found.differences[way.name, aspect] = _describe(aspect, alone[0], seen)
        first = alone[0]
        found.printed = len(first.stdout.splitlines())
        if first.status == "hangs":
            found.differences["alone", "status"] = "did not end in time: nothing was compared"
        elif self.kind.prints and not first.stdout.strip():
            said = b" | ".join(first.stderr.splitlines()[-2:]).decode(errors="replace")
            found.differences["alone", "stdout"] = f"printed nothing, nothing was compared: {said}"
        elif first.status != "0" and not first.stdout and first.stderr:
            found.error = first.stderr.splitlines()[0].decode(errors="replace")
        found.unstable = {
            x: _describe(x, first, different)
            for x in _ASPECTS
            if (different := next((y for y in alone if getattr(y, x) != getattr(first, x)), None))
        }
        _remove(directory)
        return found

    def _see(self, directory: Path, program: Program, line: str, way: Way | None) -> Seen:
        work, sessions = directory / "work", directory / "sessions"
        _remove(work)
        (work / "tmp").mkdir(parents=True)
        sessions.mkdir(exist_ok=True, mode=0o700)
        for name, content in self.files.items():
            (work / name).write_text(content)
        mark = f"{directory.name}-{time.monotonic_ns()}"
        command = ["sh", "-c", line]
        if self.worker:
            command = ["env", f"LD_PRELOAD={self.worker}", *command]
        if way:
            # sessions on the disk have the rights of those in shared memory
            options = ("-q", "-f", "-o", str(directory / "run"), *way.options)
            places = ("--set", f"ring.directory={sessions}")
            command = [*cli("pasta-preload"), *options, *places, "--", *command]
        begin = time.monotonic()
        process = subprocess.Popen(
            command, cwd=work, env={**self._environment(work), _MARK: mark}, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        try:
            stdout, stderr = process.communicate(timeout=program.limit)
            status = _status(process.returncode)
        except subprocess.TimeoutExpired:
            status = "hangs"
            os.killpg(process.pid, signal.SIGKILL)
            _end(mark)
            stdout, stderr = process.communicate()
        seconds = time.monotonic() - begin
        left = _left(mark)
        _end(mark)
        if status != "hangs" and not wait_for(lambda: not any(sessions.iterdir()), _GRACE + 2):
            left += ("a session",)
        _remove(sessions)
        ours = b"\n".join(re.findall(rb"^pasta: .*", stderr, re.MULTILINE)).decode(errors="replace")
        return Seen(
            status, normalise(stdout, program.ignore), normalise(stderr, program.ignore),
            _tree(work, program.ignore_files), left, ours, seconds,
        )  # fmt: skip

    def _environment(self, work: Path) -> dict[str, str]:
        cache = os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache"))
        return {
            **base_environment(), **self.variables, "HOME": str(work / "home"), "LC_ALL": "C.UTF-8",
            "TMPDIR": str(work / "tmp"), "XDG_CACHE_HOME": cache, "PYTHONHASHSEED": "0",
            "PYTHONDONTWRITEBYTECODE": "1",
        }  # fmt: skip


def _status(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else str(code)


def _values(aspect: str, seen: Iterable[Seen]) -> list[Any]:
    """Distinct values of an aspect."""
    found: list[Any] = []
    for each in seen:
        value = getattr(each, aspect)
        found += [value] * (value not in found)
    return found


def _differs(aspect: str, alone: list[Seen], seen: Seen) -> bool:
    """Whether an aspect with PASTA is none of those without; of text that differs by itself, the
    lines that all have must be there."""
    before, after = _values(aspect, alone), getattr(seen, aspect)
    if after in before:
        return False
    if len(before) == 1:
        return True
    if not isinstance(after, bytes):
        return False
    common = set.intersection(*(set(each.splitlines()) for each in before))
    return not common <= set(after.splitlines())


def _describe(aspect: str, alone: Seen, seen: Seen) -> str:
    before, after = getattr(alone, aspect), getattr(seen, aspect)
    if aspect == "files":
        paths = sorted(p for p in {*before, *after} if before.get(p) != after.get(p))
        texts = [f"{p}: {before.get(p, 'absent')} became {after.get(p, 'absent')}" for p in paths]
        return "; ".join(texts[:4])
    if isinstance(before, bytes):
        old, new = before.splitlines(), after.splitlines()
        pairs = enumerate(zip(old, new, strict=False))
        at = next((i for i, (a, b) in pairs if a != b), min(len(old), len(new)))
        texts = [b" | ".join(lines[at : at + 2]) for lines in (old, new)]
        return f"line {at + 1}: {texts[0]!r} became {texts[1]!r}"
    return f"{before!r} became {after!r} {seen.ours}".rstrip()


def _tree(top: Path, ignored: Iterable[str]) -> dict[str, str]:
    """Type, mode and content of everything below a directory."""
    found = {}
    for directory, directories, names in os.walk(top):
        for name in (*directories, *names):
            path = Path(directory, name)
            relative = str(path.relative_to(top))
            if any(fnmatch(relative, pattern) for pattern in ignored):
                continue
            status = path.lstat()
            text = stat.filemode(status.st_mode)
            if stat.S_ISLNK(status.st_mode):
                text += f" to {path.readlink()}"
            elif stat.S_ISREG(status.st_mode):
                text += f" {status.st_size} bytes {_digest(path)}"
            found[relative] = text
    return found


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.sha256(file.read()).hexdigest()[:16]


def _remove(directory: Path) -> None:
    """Removes a directory that a program may have made unreadable."""
    shutil.rmtree(directory, ignore_errors=True)
    if directory.exists():
        subprocess.run(["chmod", "-R", "u+rwX", str(directory)], capture_output=True)
        shutil.rmtree(directory)


def _processes(mark: str) -> dict[int, str]:
    """Names of live processes of a trial; not PASTA's launchers, which wait for them."""
    wanted = f"{_MARK}={mark}\0".encode()
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            ours = b"pasta_preload" in (entry / "cmdline").read_bytes()
            if wanted in (entry / "environ").read_bytes() and not ours and alive(int(entry.name)):
                found[int(entry.name)] = (entry / "comm").read_text().strip()
        except OSError:
            continue
    return found


def _left(mark: str) -> tuple[str, ...]:
    """Names of the processes that a program leaves running."""
    wait_for(lambda: not _processes(mark), _GRACE)
    return tuple(sorted(_processes(mark).values()))


def _end(mark: str) -> None:
    """Ends a trial's processes."""
    for pid in _processes(mark):
        kill(pid, signal.SIGKILL)
