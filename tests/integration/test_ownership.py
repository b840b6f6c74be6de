"""Ownership of sessions, rings and runs: whatever is killed, removed or recovered, each event is in
exactly one run."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.support.preload import (
    EMBED_NOW,
    Preload,
    RunDirectory,
    base_environment,
    cli,
    wait_until,
)

LAUNCHES = 60_000
#: Small enough that a collector releases memory while the program runs, and no event is lost.
SMALL_RING = ("--collector", "--set", "ring.max=40MiB")
#: Launches, waits for the file that its argument names, launches again.
PROGRAM = """
int main(int n, char **a) {
    launch(30);
    puts("ready");
    fflush(stdout);
    while (n > 1 && access(a[1], F_OK)) sleep_ms(10);
    launch(10);
    return 3;
}"""
#: Its child continues after it has exited.
DAEMON = """
int main(int n, char **a) {
    (void)n;
    launch(5);
    puts("ready");
    fflush(stdout);
    if (fork()) return 3;
    setsid();
    fclose(stdout);
    fclose(stderr);
    launch(20);
    while (access(a[1], F_OK)) sleep_ms(10);
    launch(10);
    return 0;
}"""


@pytest.fixture
def slow(tmp_path: Path) -> Path:
    """A tool whose result waits for the file `go`; the file `begun` signals that it waits."""
    tool = tmp_path / "slow.py"
    tool.write_text(
        "import os, time\n"
        "from pasta.tool import Result, Tool\n"
        "class Slow(Tool):\n"
        "    'Waits.'\n"
        "    count = 0\n"
        "    def on_launches(self, launches): self.count += len(launches)\n"
        "    def result(self):\n"
        f"        open({str(tmp_path / 'begun')!r}, 'w').close()\n"
        f"        while not os.path.exists({str(tmp_path / 'go')!r}): time.sleep(0.01)\n"
        "        return Result(summary=f'{self.count} launches')\n"
    )
    return tool


def recover(*arguments: str | Path, before: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*before, *cli("pasta"), "recover", *map(str, arguments)],
        env=base_environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def said(process: subprocess.Popen[str]) -> str:
    output, _ = process.communicate(timeout=45)
    return output


def rings(session: Path) -> list[Path]:
    return sorted(path for path in (session / "rings").iterdir() if "." not in path.name)


def processes_of(*words: str | Path) -> list[int]:
    """Pids of processes with all these words in their command line."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = entry.read_bytes()
        except OSError:
            continue
        if all(os.fsencode(word) in line for word in words):
            found.append(int(entry.parent.name))
    return found


def wait_for_collectors(session: Path) -> None:
    """Waits until no collector works on a ring of the session."""
    wait_until(lambda: not processes_of("runtime.collector", session), "collectors have ended")


def kill_collectors(session: Path) -> None:
    for pid in processes_of("runtime.collector", session):
        os.kill(pid, signal.SIGKILL)
    wait_for_collectors(session)


def killed_while_collecting(
    pasta_preload: Preload, program: Path, slow: Path
) -> tuple[subprocess.Popen[str], Path]:
    """Kills a launcher while a collector writes the results."""
    options = (*SMALL_RING, "-t", str(slow), "-t", "kernel_freq")
    process = pasta_preload.popen(program, options=options)
    wait_until((slow.parent / "begun").exists, "the collector makes results")
    process.kill()
    (session,) = pasta_preload.sessions()
    return process, session


@pytest.fixture
def many(compile_c) -> Path:
    return Path(compile_c(f"int main(void) {{ launch({LAUNCHES}); sleep_ms(1000); return 0; }}"))


def reserves(pasta_preload: Preload) -> tuple[Path, Callable[[], list[int]]]:
    """The session, once a collector is in reserve, and a function for the pids of such."""
    wait_until(pasta_preload.sessions, "the session begins")
    (session,) = pasta_preload.sessions()
    found = partial(processes_of, "runtime.collector_reserve", session)
    wait_until(found, "a collector is in reserve")
    return session, found


@pytest.mark.parametrize("killed", ["nobody", "reserve", "launcher"])
def test_collector_in_reserve(pasta_preload, compile_c, tmp_path: Path, killed: str) -> None:
    """It writes the run of a program that ran for a second, and ends with the launcher."""
    go = tmp_path / "go"
    process = pasta_preload.popen(compile_c(PROGRAM), go)
    session, found = reserves(pasta_preload)
    if killed == "launcher":
        process.kill()
        wait_until(lambda: not found(), "the collector in reserve has ended")
        go.touch()
        wait_until(lambda: "still run" not in said(recover(session)), "the program has ended")
        return
    if killed == "reserve":
        os.kill(found()[0], signal.SIGKILL)
    go.touch()
    assert pasta_preload.finish(process).run.launches == 40
    assert process.returncode == 3 and not found()


def test_a_killed_reserve_is_replaced(pasta_preload, compile_c, slow: Path) -> None:
    """Also while it writes a run: it may have been killed before, which nobody has noticed."""
    end = slow.parent / "end"
    process = pasta_preload.popen(compile_c(PROGRAM), end, options=("-t", str(slow)))
    _, found = reserves(pasta_preload)
    end.touch()
    wait_until((slow.parent / "begun").exists, "the collector makes results")
    os.kill(found()[0], signal.SIGKILL)
    (slow.parent / "go").touch()
    assert pasta_preload.finish(process).run.launches == 40


def test_recover_skips_a_run_in_progress(pasta_preload, many: Path, slow: Path) -> None:
    process, session = killed_while_collecting(pasta_preload, many, slow)
    (ring,) = rings(session)
    for option in ((), ("--discard",)):
        assert "a collector is still writing its run" in said(recover(session, *option))
    (slow.parent / "go").touch()
    done = pasta_preload.finish(process)
    wait_for_collectors(session)
    pid = ring.name.partition("-")[0]
    assert said(recover(session)) == f"process {pid}: {done.run.path}\n"
    assert done.run.launches == LAUNCHES


def test_killed_collector_is_recovered(pasta_preload, many: Path, slow: Path) -> None:
    """The ring has only the end of the run; the rest is in the events recorded before."""
    process, session = killed_while_collecting(pasta_preload, many, slow)
    pasta_preload.finish(process)
    for again in (False, True):  # the recovering process may be killed, too
        kill_collectors(session)
        (slow.parent / "begun").unlink()
        if again:
            (slow.parent / "go").touch()
        process = recover(session)
        wait_until((slow.parent / "begun").exists, "it makes results")
        if not again:
            process.kill()
            process.communicate()
    output = said(process)
    (run,) = (pasta_preload.directory / "pasta-out").iterdir()
    assert str(run) in output
    found = RunDirectory(run)
    assert found.launches == LAUNCHES
    assert f"slow: {LAUNCHES} launches" in found.report
    assert "a collector was killed" in found.manifest["warnings"][0]
    assert sorted(path.name for path in run.iterdir() if path.is_dir()) == ["events", "results"]


@pytest.mark.parametrize("when", ["before the rename", "after the rename"])
def test_collector_killed_around_the_rename(
    pasta_preload, compile_c, slow: Path, when: str
) -> None:
    """The complete run is found, and moved if necessary, but computed only once."""
    code = (
        "import os, signal, sys\n"
        "from pasta.run.directory import RunDirectory\n"
        "from pasta.runtime import collector_process as collector\n"
        "def killed(*given, **how):\n"
        f"    if {when == 'after the rename'}: move(*given, **how)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "move, RunDirectory.move_to = RunDirectory.move_to, killed\n"
        "sys.exit(collector.main())\n"
    )
    (slow.parent / "go").touch()
    process = pasta_preload.popen(
        compile_c(PROGRAM), slow.parent / "never", options=("-t", str(slow))
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.kill()
    (session,) = pasta_preload.sessions()
    (slow.parent / "never").touch()
    (ring,) = rings(session)
    wait_until(lambda: not Path("/proc", ring.name[:-2]).exists(), "the program has ended")
    (ring.with_name(f"{ring.name}.ended")).write_text('{"how": "gone", "status": null}')
    collector = subprocess.run(
        [*cli("pasta")[:1], "-c", code, ring, "--plain-name"], env=base_environment(), cwd="/"
    )
    assert collector.returncode == -signal.SIGKILL
    begun = (slow.parent / "begun").stat().st_mtime_ns
    output = said(recover(session))
    done = pasta_preload.finish(process)
    assert str(done.run.path) in output
    assert done.run.launches == 40
    assert (slow.parent / "begun").stat().st_mtime_ns == begun, "results were made twice"


@pytest.mark.main
def test_concurrent_recovers(pasta_preload, many: Path, slow: Path) -> None:
    process, session = killed_while_collecting(pasta_preload, many, slow)
    kill_collectors(session)
    (slow.parent / "begun").unlink()
    first = recover(session)
    wait_until((slow.parent / "begun").exists, "the first makes results")
    for option in ((), ("--discard",)):
        second = said(recover(session, *option))
        assert (
            second
            == f"{session}: left alone, its launcher or another pasta recover is still running\n"
        )
    (slow.parent / "go").touch()
    said(first)
    assert pasta_preload.finish(process).run.launches == LAUNCHES


@pytest.mark.parametrize("apart", [False, True], ids=["same namespace", "other PID namespace"])
def test_recover_skips_a_daemon(pasta_preload, compile_c, tmp_path: Path, apart: bool) -> None:
    """A daemon outlives a killed launcher; its parent's run is recovered immediately."""
    before = ("unshare", "--pid", "--fork", "--mount-proc") if apart else ()
    if apart and subprocess.run([*before, "true"], capture_output=True).returncode:
        pytest.skip("PID namespaces cannot be made here")
    go = tmp_path / "go"
    process = pasta_preload.popen(compile_c(DAEMON), go)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    (session,) = pasta_preload.sessions()
    assert "left alone, its launcher" in said(recover(session, before=before))
    wait_until(lambda: len(rings(session)) == 2, "the daemon has a ring")
    process.wait()
    (background,) = processes_of("pasta_preload", go)
    os.kill(background, signal.SIGKILL)
    wait_until(lambda: not processes_of("pasta_preload", go), "the background launcher is gone")
    kill_collectors(session)
    for option in ((), ("--discard",)):
        output = said(recover(session, *option, before=before))
        assert "still running" in output
        assert session.exists()
    go.touch()
    wait_until(lambda: "still run" not in said(recover(session, before=before)), "it has ended")
    done = pasta_preload.finish(process)
    assert sorted(run.launches for run in done.runs) == [5, 30]


@pytest.mark.parametrize("way", ["afterwards", "embedded", "collector"])
def test_session_directory_removed(pasta_preload, compile_c, tmp_path: Path, way: str) -> None:
    """As systemd does at logout: the program's status and events are kept."""
    go = tmp_path / "go"
    options = {"afterwards": (), "embedded": EMBED_NOW, "collector": ("--collector",)}[way]
    process = pasta_preload.popen(compile_c(PROGRAM), go, options=options)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    (session,) = pasta_preload.sessions()
    time.sleep(1)  # the launcher has seen the ring, and the consumer has started
    shutil.rmtree(session)
    wait_until(lambda: (session / "session.json").exists(), "it is made again")
    go.touch()
    done = pasta_preload.finish(process)
    assert (done.exit_status, done.target_stderr) == (3, "")
    assert done.run.launches == 40
    (note,) = done.notes
    assert f"the session directory {session} was removed while the program ran" in note
    assert "loginctl enable-linger, or --set ring.directory=DIR" in note


@pytest.mark.parametrize("times", [3, 10**9], ids=["for a while", "for ever"])
def test_failing_launcher_keeps_the_exit_status(compile_c, tmp_path: Path, times: int) -> None:
    """Whatever fails while it watches the program; it completes the remaining work at the end."""
    code = (
        "import errno, os, sys\n"
        "from pasta.cli import preload\n"
        "from pasta.runtime.launcher import Launcher\n"
        "calls, look = [], Launcher.look\n"
        "def fail(self):\n"
        "    calls.append(0)\n"
        f"    if len(calls) > {times}: return look(self)\n"
        "    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))\n"
        "Launcher.look = fail\n"
        "sys.exit(preload.main(sys.argv[1:]))\n"
    )
    program = compile_c("int main(void) { launch(30); sleep_ms(700); return 3; }")
    options = ("-o", "run", "--set", f"ring.directory={tmp_path}")
    done = subprocess.run(
        [*cli("pasta")[:1], "-c", code, *options, program],
        env=base_environment(), cwd=tmp_path, capture_output=True, text=True, timeout=45,
    )  # fmt: skip
    assert done.returncode == 3
    assert done.stderr.count("the program cannot be watched (OSError: [Errno 24]") == 1
    assert "Traceback" not in done.stderr
    if times == 3:
        assert RunDirectory(tmp_path / "run").launches == 30
    else:
        assert "try again with pasta recover" in done.stderr


@pytest.mark.main
def test_exit_status_with_SIGCHLD_ignored(pasta_preload, compile_c) -> None:
    """The kernel then reaps children itself; the program inherits the ignored signal as without
    PASTA."""
    program = compile_c(
        """int main(void) {
            struct sigaction now;
            sigaction(SIGCHLD, NULL, &now);
            return now.sa_handler == SIG_IGN ? 7 : 1;
        }"""
    )

    def ignore() -> None:
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)

    assert pasta_preload(program, preexec_fn=ignore).exit_status == 7


# ---- access by other users


def modes(directory: Path) -> set[tuple[str, int]]:
    """Types and modes of files in a directory that others could access."""
    found = (directory, *directory.rglob("*"))
    return {("d" if path.is_dir() else "f", path.lstat().st_mode & 0o777) for path in found}


PRIVATE = {("d", 0o700), ("f", 0o600)}


@pytest.mark.parametrize("way", ["afterwards", "embedded", "collector"])
@pytest.mark.parametrize("mask", [0o000, 0o777])
def test_run_files_are_private(
    pasta_preload, compile_c, tmp_path: Path, way: str, mask: int
) -> None:
    """With any umask; the program keeps its own."""
    program = compile_c(
        r"""
        int main(int n, char **a) {
            launch(30);
            if (n > 1) wait_for_consumer();
            printf("%03o\n", umask(0));
            fflush(stdout);
            while (n > 1 && access(a[1], F_OK)) sleep_ms(10);
            return 3;
        }"""
    )
    go = tmp_path / "go"
    options = {"afterwards": (), "embedded": EMBED_NOW, "collector": ("--collector",)}[way]
    process = pasta_preload.popen(
        program, *([] if way == "afterwards" else [go]),
        options=(*options, "--record", "-t", "event_trace"), umask=mask,
    )  # fmt: skip
    assert process.stdout is not None
    if way != "afterwards":
        assert process.stdout.readline() == f"{mask:03o}\n"
        (session,) = pasta_preload.sessions()
        assert modes(session) == PRIVATE
        go.touch()
    done = pasta_preload.finish(process)
    assert done.exit_status == 3
    assert modes(done.run.path) == PRIVATE
    assert done.run.launches == 30


@pytest.mark.parametrize("verb", ["replay", "analyze", "merge"])
def test_derived_runs_are_private(
    pasta_preload, pasta, compile_c, tmp_path: Path, verb: str
) -> None:
    pasta_preload(compile_c("int main(void) { launch(30); return 0; }"), options=("--root", "all"))
    root = pasta_preload.directory / "all"
    source = next(root.glob("*/run.json")).parent if verb == "replay" else root
    tools = () if verb == "merge" else ("-t", "kernel_freq", "-q")
    done = pasta(verb, source, *tools, "-o", tmp_path / "out", umask=0)
    assert done.returncode == 0, done.stderr
    assert modes(tmp_path / "out") == PRIVATE


def test_modules_of_the_programs_python_are_not_used(
    pasta_preload, compile_c, tmp_path: Path
) -> None:
    """A package that shadows one required by a collector."""
    for name in ("numpy", "pyarrow"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('shadowed')\n")
    path = f"{tmp_path}:{base_environment().get('PYTHONPATH', '')}"
    program = compile_c('int main(void) { launch(30); puts(getenv("PYTHONPATH")); return 3; }')
    for options in ((), ("--collector",)):
        done = pasta_preload(
            program, options=(*options, "-f", "-o", "pasta-out/r"),
            environment={"PYTHONPATH": path},
        )  # fmt: skip
        assert (done.exit_status, done.stdout) == (3, f"{path}\n")
        assert done.run.launches == 30


def test_block_reader_uses_no_module_of_the_program(tmp_path: Path) -> None:
    (tmp_path / "pyarrow.py").write_text("raise SystemExit('shadowed')\n")
    program = tmp_path / "program.py"
    program.write_text(
        "import sys, pasta\n"
        "with pasta.profile('event_trace') as run:\n"
        "    pasta.mark('here')\n"
        "sys.path.pop(0)\n"
        "print(run.path)\n"
    )
    done = subprocess.run(
        [*cli("pasta")[:1], program], env=base_environment(), capture_output=True, text=True,
        timeout=45, umask=0,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
