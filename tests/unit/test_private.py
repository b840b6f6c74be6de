"""Private files: how they are created, and checks before they are trusted."""

from __future__ import annotations

import argparse
import json
import os
import resource
import socket
import stat
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pasta import paths, plugins, private
from pasta.cli import recover
from pasta.config import Config
from pasta.errors import RunError, ToolError
from pasta.run.directory import MANIFEST, RunDirectory
from pasta.runtime.processes import TABLE_BYTES, ProcessTable
from pasta.runtime.session import Ended, Session, beside, read_ended

NOBODY = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs files of two users")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


# ---- creation


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077, 0o777])
def test_file_modes_ignore_the_umask(tmp_path: Path, mask: int) -> None:
    with umask(mask):
        directory = tmp_path / "a" / "b"
        private.make_directory(directory)
        private.append(directory / "log", b"one\n")
        private.append(directory / "log", b"two\n")
        private.write_atomically(directory / "document", b"{}")
    assert [mode(tmp_path / "a"), mode(directory)] == [0o700, 0o700]
    assert [mode(directory / "log"), mode(directory / "document")] == [0o600, 0o600]
    assert (directory / "log").read_bytes() == b"one\ntwo\n"


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o777])
def test_a_session_is_private(tmp_path: Path, mask: int) -> None:
    with umask(mask):
        session = Session.create(Config(ring_directory=str(tmp_path)), ["program"], 0)
        session.log("line")
    try:
        assert mode(session.directory) == 0o700
        modes = {path.name: mode(path) for path in session.directory.iterdir()}
        assert modes == {
            "rings": 0o700, "modules": 0o700, "processes": 0o600, "session.json": 0o600,
            "log.txt": 0o600,
        }  # fmt: skip
        assert Session.open(session.directory).document == session.document
    finally:
        session.remove()
        session.disown()


@as_root
@pytest.mark.parametrize("mask", [0o000, 0o777])
def test_unprivileged_user_can_use_its_files(mask: int) -> None:
    """Even with a umask that forbids everything, which root would not notice."""
    with tempfile.TemporaryDirectory() as place:
        os.chmod(place, 0o1777)
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                os.setgroups([])
                os.setgid(NOBODY)
                os.setuid(NOBODY)
                os.umask(mask)
                session = Session.create(Config(ring_directory=f"{place}/shm"), ["x"], 0)
                session.log("line")
                private.write_atomically(session.directory / "rings" / "1-0.ended", b"{}")
                Session.open(session.directory)
                read_ended(session.directory / "rings" / "1-0")
                session.disown()
                taken = Session.take(session.directory)
                status = 0 if taken is not None else 2
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


@pytest.mark.parametrize("mask", [0o000, 0o077])
def test_a_run_is_private(tmp_path: Path, mask: int) -> None:
    """Including files written by tools."""
    with umask(mask):
        run = RunDirectory.create(tmp_path / ".staging")
        run.write_manifest({"schema": 1})
        (run.results / "tool").mkdir(parents=True)
        (run.results / "tool" / "trace.json").write_text("[]")
        (run.results / "tool" / "trace.json").chmod(0o666)
        moved = run.move_to(tmp_path / "out" / "run", force=False, suffix="1")
    for path in (moved.path, *moved.path.rglob("*")):
        assert mode(path) == (0o700 if path.is_dir() else 0o600), path


# ---- trust


@as_root
def test_another_user_s_directory(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "theirs").mkdir(mode=0o700)
    os.chown(tmp_path / "theirs", NOBODY, NOBODY)
    with pytest.raises(private.NotPrivate, match=f"belongs to user {NOBODY}"):
        private.open_directory(tmp_path / "theirs")
    with pytest.raises(private.NotPrivate, match=f"belongs to user {NOBODY}"):
        RunDirectory.create(tmp_path / "theirs")


@pytest.mark.parametrize("bits", [0o770, 0o707, 0o750, 0o705])
def test_directory_accessible_to_others(tmp_path: Path, bits: int) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(bits)
    with pytest.raises(private.NotPrivate, match=rf"other users have access \(mode {bits:o}\)"):
        private.open_directory(tmp_path / "open")


def test_symbolic_links_are_not_followed(tmp_path: Path) -> None:
    private.make_directory(tmp_path / "real")
    private.write_atomically(tmp_path / "real" / "file", b"content")
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "real" / "link").symlink_to("file")
    for attempt in (
        lambda: private.open_directory(tmp_path / "link"),
        lambda: private.read(tmp_path / "link" / "file"),
        lambda: private.read(tmp_path / "real" / "link"),
        lambda: private.create(tmp_path / "real" / "link", 0),
    ):
        with pytest.raises((OSError, private.NotPrivate)):
            attempt()
    assert private.read(tmp_path / "real" / "file") == b"content"


def test_special_files_are_rejected(tmp_path: Path) -> None:
    private.make_directory(tmp_path / "d")
    os.mkfifo(tmp_path / "d" / "fifo")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "d" / "socket"))
        for name in ("fifo", "socket", "."):
            with pytest.raises((OSError, private.NotPrivate)):
                private.read(tmp_path / "d" / name)


@pytest.mark.parametrize("bits", [0o620, 0o602, 0o666])
def test_file_writable_by_others(tmp_path: Path, bits: int) -> None:
    private.make_directory(tmp_path / "rings")
    ring = tmp_path / "rings" / "1-0"
    for path in (ring, beside(ring, ".ended"), beside(ring, ".state")):
        private.write_atomically(path, b"{}")
        path.chmod(bits)
        with pytest.raises(private.NotPrivate):
            private.read(path)
    with pytest.raises(private.NotPrivate):
        read_ended(ring)


@contextmanager
def file_size_limit() -> Iterator[None]:
    """Of 64 KiB."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_session_above_the_limit_on_file_sizes(tmp_path: Path) -> None:
    config = Config(ring_directory=str(tmp_path))
    with file_size_limit(), pytest.raises(RunError) as raised:
        Session.create(config, ["program"], 0)
    assert "(File too large)" in raised.value.message and "ulimit -f" in raised.value.remedy
    assert not list(tmp_path.iterdir())


def test_a_document_without_room(tmp_path: Path) -> None:
    """What was written of it is removed: others need the room. The former one stays."""
    path = tmp_path / "document"
    private.write_atomically(path, b"former")
    with file_size_limit(), pytest.raises(OSError):
        private.write_atomically(path, bytes(1 << 17))
    assert [each.name for each in tmp_path.iterdir()] == ["document"]
    assert private.read(path) == b"former"


def test_damaged_files_of_a_ring(tmp_path: Path) -> None:
    ring = tmp_path / "1-0"
    assert read_ended(ring) is None
    private.write_atomically(beside(ring, ".ended"), b'{"how"')
    assert read_ended(ring) == Ended("gone")


@pytest.mark.parametrize(
    "content",
    [b"", b"\xff" * 16, b"\xff" * 12, (5).to_bytes(8, "little"), os.urandom(4096)],
    ids=["empty", "count", "short", "missing", "random"],
)
def test_damaged_process_table(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "processes").write_bytes(content)
    table = ProcessTable(tmp_path / "processes")
    table.update()
    assert table.living() == set()


def test_process_table_skips_an_unwritten_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = [3, 0, os.getpid()]
    content = len(entries).to_bytes(8, "little")
    content += b"".join(pid.to_bytes(4, "little") + bytes(4) for pid in entries)
    (tmp_path / "processes").write_bytes(content.ljust(TABLE_BYTES, b"\0"))
    table = ProcessTable(tmp_path / "processes")
    table.update()
    assert os.getpid() not in table.last_load
    monkeypatch.setattr("pasta.runtime.processes._ARRIVAL_SECONDS", -1)
    table.update()
    assert table.last_load[os.getpid()] == 2


# ---- sessions of others


def planted(place: Path, number: int, tool: Path) -> Path:
    """A session whose document names a tool."""
    directory = place / f"pasta-{os.getuid()}-{number}-{number:016x}"
    session = Session.create(Config(ring_directory=str(place), tools=[str(tool)]), ["x"], 0)
    session.disown()
    document = {**session.document, "launcher": {"pid": 1, "started": 1}}
    (session.directory / "session.json").write_text(json.dumps(document))
    session.directory.rename(directory)
    return directory


@as_root
def test_recover_trusts_only_sessions_of_this_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tool = tmp_path / "planted.py"
    tool.write_text(f"open({str(tmp_path / 'imported')!r}, 'w')\n")
    place = tmp_path / "shm"
    place.mkdir()
    monkeypatch.setattr(recover, "places", lambda: [place])
    theirs, wide, link, mine = (planted(place, number, tool) for number in range(1, 5))
    for path in (theirs, *theirs.rglob("*")):
        os.chown(path, NOBODY, NOBODY)
    wide.chmod(0o777)
    os.rename(link, tmp_path / "elsewhere")
    link.symlink_to(tmp_path / "elsewhere")
    (place / f"pasta-{os.getuid()}-\x1b[31m").mkdir()
    assert list(recover.abandoned()) == [mine]
    options = argparse.Namespace(sessions=[], discard=True)
    assert recover.run(options) == 0
    assert capsys.readouterr().out == (
        f"ignored {theirs}: belongs to user {NOBODY}\n"
        f"ignored {wide}: other users have access (mode 777)\n"
        f"{mine}: discarded\n"
    )
    assert (theirs.exists(), wide.exists(), mine.exists()) == (True, True, False)
    with pytest.raises(RunError, match=f"belongs to user {NOBODY}"):
        recover.run(argparse.Namespace(sessions=[theirs], discard=False))
    with pytest.raises(RunError):
        recover.run(argparse.Namespace(sessions=[link], discard=False))
    assert not (tmp_path / "imported").exists()


def test_recover_removes_only_sessions(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for discard in (False, True):
        with pytest.raises(RunError, match="is not a session directory"):
            recover.run(argparse.Namespace(sessions=[tmp_path], discard=discard))
    assert (tmp_path / "file").exists()


def test_new_session_is_owned(tmp_path: Path) -> None:
    session = Session.create(Config(ring_directory=str(tmp_path)), ["x"], 0)
    assert Session.take(session.directory) is None
    session.disown()
    taken = Session.take(session.directory)
    assert taken is not None and Session.take(session.directory) is None
    taken.disown()


@pytest.mark.parametrize("removes", [False, True], ids=["doctor", "recover"])
def test_a_new_session_that_another_process_looks_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, removes: bool
) -> None:
    """Between its making and its lock: `pasta doctor` lets go of it, `pasta recover` removes it."""
    make = private.make_directory
    looking: list[threading.Timer] = []

    def made_and_taken(path: Path) -> None:
        make(path)
        if looking or not path.name.startswith("pasta-"):
            return
        taken = Session.take(path)
        assert taken is not None

        def let_go() -> None:
            if removes:
                taken.remove()
            taken.disown()

        looking.append(threading.Timer(0.1, let_go))
        looking[0].start()

    monkeypatch.setattr(private, "make_directory", made_and_taken)
    session = Session.create(Config(ring_directory=str(tmp_path)), ["x"], 0)
    looking[0].join()
    assert session.is_complete and Session.take(session.directory) is None
    session.disown()


def test_file_open_in_another_process(tmp_path: Path) -> None:
    path = tmp_path / "table"
    private.write_atomically(path, bytes(4096))
    assert private.is_open_elsewhere(path) in (False, None)
    pid = os.fork()
    if pid == 0:
        import mmap
        import signal

        with path.open("r+b") as file:
            mapped = mmap.mmap(file.fileno(), 0)
        (tmp_path / "mapped").touch()
        signal.pause()
        os._exit(len(mapped))
    try:
        while not (tmp_path / "mapped").exists():
            pass
        assert private.is_open_elsewhere(path) in (True, None)
    finally:
        os.kill(pid, 9)
        os.waitpid(pid, 0)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({}, "discarded"),
        ({"launcher": {"pid": os.getpid(), "started": None}}, "discarded"),
        ({"pid_namespace": 1}, "left alone, its processes are not visible"),
        ({"pid_namespace": 1, "boot": "another"}, "discarded"),
    ],
    ids=["here", "a later process of that pid", "other namespace", "other boot"],
)
def test_file_system_without_leases(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    change: dict[str, Any], said: str,
) -> None:  # fmt: skip
    """The table of processes decides, if its pids are of this namespace."""
    session = planted(tmp_path, 1, tmp_path / "none.py")
    document = json.loads((session / "session.json").read_text())
    (session / "session.json").write_text(json.dumps({**document, **change}))
    monkeypatch.setattr(private, "is_open_elsewhere", lambda path: None)
    assert recover.run(argparse.Namespace(sessions=[session], discard=True)) == 0
    assert f"{session}: {said}" in capsys.readouterr().out
    assert session.exists() == (said != "discarded")


# ---- tools

TOOL = """
from pasta.tool import Result, Tool
class Mine(Tool):
    'Nothing.'
    name = 'mine'
    def result(self): return Result()
"""


@pytest.mark.parametrize("what", ["file", "directory"])
def test_world_writable_tool_is_rejected(tmp_path: Path, what: str) -> None:
    directory = tmp_path / "tools"
    directory.mkdir()
    file = directory / "mine.py"
    file.write_text(TOOL)
    (file if what == "file" else directory).chmod(0o777)
    with pytest.raises(ToolError, match=f"tool mine is not loaded: .* -t {file} if you trust it"):
        plugins.load_tools(["mine"], paths=[directory])
    assert [tool.name for tool in plugins.load_tools([str(file)])] == ["mine"]


@as_root
def test_tool_that_became_untrusted_is_rejected(tmp_path: Path) -> None:
    """A tool may change after the start of the run: `pasta recover` may run days later."""
    file = tmp_path / "mine.py"
    file.write_text(TOOL)
    config = Config(ring_directory=str(tmp_path / "s"), tools=[str(file)])
    session = Session.create(config, ["x"], 0)
    session.check_tools()
    file.write_text(TOOL + "# mended\n")
    session.check_tools()
    os.chown(file, NOBODY, NOBODY)
    with pytest.raises(RunError, match=f"tool file {file} is not used: .* user {NOBODY}"):
        session.check_tools()
    session.remove()
    session.disown()


@as_root
def test_compiled_code_of_others_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with umask(0):
        assert paths.cache("probes", make=True) == tmp_path / "cache" / "pasta" / "probes"
    assert mode(tmp_path / "cache" / "pasta") == 0o700
    (tmp_path / "cache" / "pasta").chmod(0o777)
    assert paths.cache(make=True) == tmp_path / "cache" / f"pasta-{os.geteuid()}"
    os.chown(tmp_path / "cache" / f"pasta-{os.geteuid()}", NOBODY, NOBODY)
    with pytest.raises(RunError, match="set XDG_CACHE_HOME to a directory that you own"):
        paths.cache()


# ---- the place of a run


def run_in(path: Path, number: int) -> RunDirectory:
    run = RunDirectory.create(path)
    run.write_manifest({"schema": 1, "number": number})
    return run


def test_concurrent_runs_replace_each_other(tmp_path: Path) -> None:
    """-f -o same: there is always one run, no move fails, and none goes elsewhere."""
    place = tmp_path / "run"

    def replace(number: int) -> Path:
        run = run_in(tmp_path / f".staging-{number}", number)
        return run.move_to(place, force=True, suffix=str(number)).path

    with ThreadPoolExecutor(20) as pool:
        assert set(pool.map(replace, range(200))) == {place}
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    assert (place / MANIFEST).exists()


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("what", ["directory", "file", "link"])
def test_only_a_run_is_replaced(tmp_path: Path, what: str, force: bool) -> None:
    place = tmp_path / "run"
    if what == "directory":
        place.mkdir()
        (place / "thesis").touch()
    elif what == "file":
        place.touch()
    else:
        place.symlink_to(run_in(tmp_path / "other", 1).path)
    before: Any = os.lstat(place)
    moved = run_in(tmp_path / ".staging", 2).move_to(place, force=force, suffix="7")
    assert moved.path == tmp_path / "run-7"
    assert os.path.samestat(before, os.lstat(place))
