"""The launcher is transparent to the program and to its parent."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import subprocess
import termios
from pathlib import Path
from typing import Any

import pytest

from tests.support.preload import TIMEOUT, base_environment, wait_until

LAUNCH = "int main(void) { launch(3); return 0; }"


def unprofiled(*command: str | Path, **how: Any) -> subprocess.CompletedProcess[str]:
    how = {"stdin": subprocess.DEVNULL, **how}
    environment = {**base_environment(), **how.pop("environment", {})}
    return subprocess.run(
        [*how.pop("before", ()), *map(str, command)],
        env=environment, capture_output=True, timeout=TIMEOUT, **{"text": True, **how},
    )  # fmt: skip


# ---- exit status


@pytest.mark.main
@pytest.mark.parametrize("status", [0, 1, 7, 127, 255])
def test_exit_status(pasta_preload, compile_c, status: int) -> None:
    program = compile_c("int main(int n, char **a) { return n > 1 ? atoi(a[1]) : 0; }")
    done = pasta_preload(program, str(status))
    assert done.exit_status == status
    assert (done.stdout, done.stderr, done.runs) == ("", "", [])


@pytest.mark.parametrize(
    "name", ["SIGTERM", "SIGKILL", "SIGSEGV", "SIGABRT", "SIGINT", "SIGPIPE", "SIGRTMIN"]
)
def test_target_signal_is_propagated(pasta_preload, compile_c, name: str) -> None:
    number = getattr(signal, name)
    program = compile_c(
        "int main(int n, char **a) { launch(3); return n > 1 ? raise(atoi(a[1])) : 0; }"
    )
    done = pasta_preload(program, str(int(number)))
    assert done.exit_status == -number
    assert done.target_stderr == ""
    assert done.run.ended == f"ended by {name}"
    assert done.run.launches == 3


# ---- output


@pytest.mark.main
def test_output_is_the_programs(pasta_preload, compile_c) -> None:
    """stdout and stderr are unchanged; PASTA's lines are on stderr, each after `pasta: `."""
    program = compile_c(
        r"""int main(void) {
            printf("before \001\377 no newline");
            fflush(stdout);
            fprintf(stderr, "of the program\n");
            launch(2);
            printf("\nafter");
            return 0;
        }"""
    )
    options: dict[str, Any] = {"encoding": "latin-1"}
    alone = unprofiled(program, **options)
    done = pasta_preload(program, **options)
    assert done.stdout == alone.stdout == "before \x01\xff no newline\nafter"
    assert done.target_stderr == alone.stderr == "of the program\n"
    assert done.stderr != done.target_stderr
    assert done.run.launches == 2


@pytest.mark.main
def test_quiet(pasta_preload, compile_c) -> None:
    done = pasta_preload(compile_c(LAUNCH), options=("-q",))
    assert (done.stdout, done.stderr) == ("", "")
    assert done.run.launches == 3


@pytest.mark.main
def test_prints_the_run_directory(pasta_preload, compile_c) -> None:
    done = pasta_preload(compile_c(LAUNCH))
    pid = done.run.manifest["pid"]
    assert done.lines[-1] == f"process {pid}: pasta-out/{done.run.path.name}"
    assert done.notes == []


def test_no_run_without_an_accelerator(pasta_preload, compile_c) -> None:
    """No line, no directory, and no Python in the process."""
    program = compile_c(
        """int main(void) {
            sleep_ms(700);
            printf("pasta %d python %d", is_mapped("libpasta"), is_mapped("libpython"));
        }"""
    )
    done = pasta_preload(program)
    assert (done.exit_status, done.stdout, done.stderr) == (0, "pasta 1 python 0", "")
    assert list(done.directory.iterdir()) == []


def test_short_program_starts_no_python(pasta_preload, compile_c) -> None:
    program = compile_c(
        """int main(void) {
            launch(3);
            printf("%d %d", is_mapped("libpython"), is_mapped("/_embed"));
        }"""
    )
    done = pasta_preload(program)
    assert done.stdout == "0 0"
    assert (done.run.consumer, done.run.launches) == ("afterwards", 3)


# ---- inheritance

STATE = r"""
int main(void) {
    sigset_t mask;
    sigprocmask(SIG_BLOCK, NULL, &mask);
    for (int i = 1; i < 65; i++) {
        struct sigaction action;
        if (sigaction(i, NULL, &action)) continue;
        const char *what = action.sa_handler == SIG_DFL ? "default"
                           : action.sa_handler == SIG_IGN ? "ignored" : "handled";
        printf("%d %s %s\n", i, what, sigismember(&mask, i) == 1 ? "blocked" : "open");
    }
    launch(1);
    return 0;
}
"""


@pytest.mark.parametrize("ignored", ["none", "SIGHUP", "SIGINT", "SIGTERM"])
def test_signal_dispositions(pasta_preload, compile_c, ignored: str) -> None:
    """As without PASTA, including signals ignored by nohup or a shell's `&`."""

    def ignore() -> None:
        if ignored != "none":
            signal.signal(getattr(signal, ignored), signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})

    program = compile_c(STATE)
    alone = unprofiled(program, preexec_fn=ignore)
    done = pasta_preload(program, preexec_fn=ignore)
    assert done.stdout == alone.stdout
    assert "handled" not in done.stdout
    if ignored != "none":
        assert f"{int(getattr(signal, ignored))} ignored open" in done.stdout.splitlines()
    assert f"{int(signal.SIGUSR2)} default blocked" in done.stdout.splitlines()


@pytest.mark.main
def test_environment_is_otherwise_unchanged(pasta_preload) -> None:
    given = {"A": "1", "EMPTY": "", "MULTI": "two\nlines"}
    alone = unprofiled("env", "-0", environment=given)
    done = pasta_preload("env", "-0", environment=given)
    added = {
        "LD_PRELOAD",
        "PASTA_SHIM",
        "CUDA_INJECTION64_PATH",
        "NVTX_INJECTION64_PATH",
        "REFACC_INJECTION_PATH",
        "ROCP_TOOL_LIBRARIES",  # if there is a rocprofiler-sdk
    }
    ours = [entry for entry in done.stdout.split("\0") if entry.partition("=")[0] not in added]
    assert ours == alone.stdout.split("\0")


@pytest.mark.main
def test_stdin_and_arguments(pasta_preload) -> None:
    done = pasta_preload(
        "sh", "-c", 'printf "<%s>" "$@"; cat', "-", "-t", "a b", "", "--", input="typed"
    )
    assert done.stdout == "<-t><a b><><-->typed"


def test_working_directory(pasta_preload, compile_c, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    program = compile_c(
        "int main(int n, char **a) {"
        "  launch(1); char b[4096]; puts(getcwd(b, 4096)); return n && chdir(a[1]); }"
    )
    done = pasta_preload(program, elsewhere)
    assert done.stdout == f"{done.directory}\n"
    assert done.run.launches == 1  # the launcher's directory, not the program's later one
    assert list(elsewhere.iterdir()) == []


def test_file_descriptors(pasta_preload, compile_c, tmp_path: Path) -> None:
    """Inherited ones are passed on, and no others are open."""
    program = compile_c(
        r"""int main(int n, char **a) {
            for (int i = 0; i < 2000; i++) if (fcntl(i, F_GETFD) >= 0) printf("%d ", i);
            fflush(stdout);
            launch(1);
            return n > 1 && write(atoi(a[1]), "inherited", 9) != 9;
        }"""
    )
    path = tmp_path / "inherited"
    with path.open("wb") as file:
        descriptor = fcntl.fcntl(file, fcntl.F_DUPFD, 300)
        done = pasta_preload(program, descriptor, pass_fds=(descriptor,))
        os.close(descriptor)
    assert (done.exit_status, done.stdout) == (0, f"0 1 2 {descriptor} ")
    assert path.read_text() == "inherited"


def test_resource_limits(pasta_preload) -> None:
    alone = unprofiled("sh", "-c", "ulimit -a")
    assert pasta_preload("sh", "-c", "ulimit -a").stdout == alone.stdout


def test_session_and_group(pasta_preload, compile_c) -> None:
    """The program is in the launcher's process group, so the terminal's signals reach it."""
    program = compile_c(
        "int main(void) {"
        '  printf("%d %d", getpgrp() == getpgid(getppid()), getpid() == getpgrp()); }'
    )
    assert pasta_preload(program).stdout == "1 0"


# ---- signals

WAITS = r"""
static volatile sig_atomic_t got;
static void count(int number) { got += number == SIGINT ? 1 : 100; }
int main(void) {
    struct sigaction action = {.sa_handler = count};
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGUSR1, &action, NULL);
    launch(2);
    puts("ready");
    fflush(stdout);
    while (!got) pause();
    sleep_ms(400);
    printf("%d\n", (int)got);
    return 3;
}
"""


def ready(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"


@pytest.mark.parametrize(("name", "count"), [("SIGTERM", 100), ("SIGUSR1", 100), ("SIGINT", 1)])
def test_signal_to_the_launcher_is_forwarded(
    pasta_preload, compile_c, name: str, count: int
) -> None:
    process = pasta_preload.popen(compile_c(WAITS))
    ready(process)
    process.send_signal(getattr(signal, name))
    done = pasta_preload.finish(process)
    assert (done.exit_status, done.stdout) == (3, f"{count}\n")
    assert done.run.launches == 2


@pytest.mark.main
def test_ctrl_c(pasta_preload, compile_c) -> None:
    """The terminal sends SIGINT to the whole group: the program gets it once, and continues."""
    primary, terminal = pty.openpty()
    process = pasta_preload.popen(
        compile_c(WAITS), stdin=terminal, start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )  # fmt: skip
    os.close(terminal)
    ready(process)
    os.write(primary, b"\x03")
    done = pasta_preload.finish(process)
    os.close(primary)
    assert (done.exit_status, done.stdout) == (3, "1\n")
    assert done.run.launches == 2


def test_default_action_of_a_forwarded_signal(pasta_preload, compile_c) -> None:
    program = compile_c(
        'int main(void) { launch(2); puts("ready"); fflush(stdout); for (;;) pause(); }'
    )
    process = pasta_preload.popen(program)
    ready(process)
    process.terminate()
    done = pasta_preload.finish(process)
    assert done.exit_status == -signal.SIGTERM
    assert done.run.ended == "ended by SIGTERM"
    assert done.run.launches == 2


def test_under_timeout(pasta_preload, compile_c) -> None:
    program = compile_c("int main(void) { launch(4); for (;;) pause(); }")
    done = pasta_preload(program, before=("timeout", "2"))
    assert done.exit_status == 124
    wait_until(lambda: done.runs, "the run is written")
    assert done.run.ended == "ended by SIGTERM"
    assert done.run.launches == 4


def test_stdout_without_reader(pasta_preload, compile_c) -> None:
    """`pasta-preload program | head -1`: the program dies of SIGPIPE, as without PASTA."""
    program = compile_c(
        'int main(void) { launch(2); for (int i = 0; i < 100000; i++) puts("line"); return 0; }'
    )
    process = pasta_preload.popen(program)
    assert process.stdout is not None
    assert process.stdout.readline() == "line\n"
    process.stdout.close()
    process.stdout = None
    done = pasta_preload.finish(process)
    assert done.exit_status == -signal.SIGPIPE
    assert done.run.launches == 2


# ---- wrappers and children


@pytest.mark.parametrize(
    "wrapper",
    [
        ("env", "A=1"),
        ("env", "-i"),
        ("timeout", "60"),
        ("nice",),
        ("sh", "-c", 'exec "$@"', "sh"),
        ("sh", "-c", '"$@"; exit $?', "sh"),
        ("sh", "-c", 'cd / && exec env -i sh -c \'exec "$@"\' sh "$@"', "sh"),
        ("xargs", "-n1", "-a", "/dev/null", "-I{}"),
    ],
    ids=["env", "env-i", "timeout", "nice", "exec", "child", "nested", "unused"],
)  # fmt: skip
def test_wrappers(pasta_preload, compile_c, wrapper: tuple[str, ...]) -> None:
    """One run directory, for the program and not for the wrapper, with the program's name."""
    done = pasta_preload(*wrapper, compile_c(LAUNCH, name="inner"))
    assert (done.exit_status, done.stdout, done.notes) == (0, "", [])
    if wrapper[0] == "xargs":
        assert done.runs == []
        return
    assert done.run.launches == 3
    assert done.run.ended == (
        "exited with 0" if done.run.manifest["parent"] == done.pid else "ended"
    )
    assert done.run.path.name.startswith("inner-")


def test_version_manager_shims(pasta_preload, compile_c, tmp_path: Path) -> None:
    """A script with the program's name finds the real one on PATH and execs it."""
    real = compile_c(LAUNCH, name="tool")
    shim = tmp_path / "shims" / "tool"
    shim.parent.mkdir()
    shim.write_text(
        '#!/usr/bin/env bash\nset -e\nprogram="${0##*/}"\n'
        f'exec env PATH="$PATH" "{real.parent}/$program" "$@"\n'
    )
    shim.chmod(0o755)
    done = pasta_preload("tool", environment={"PATH": f"{shim.parent}:{os.environ['PATH']}"})
    assert done.exit_status == 0
    assert done.run.launches == 3
    assert done.run.manifest["executable"] == str(real)
    assert done.run.manifest["launched"] == ["tool"]


@pytest.mark.main
def test_children_have_separate_runs(pasta_preload, compile_c) -> None:
    program = compile_c(
        """int main(void) {
            for (int i = 1; i <= 3; i++) if (!fork()) { launch(i); return i; }
            while (wait(NULL) > 0) {}
            launch(10);
            return 0;
        }"""
    )
    done = pasta_preload(program)
    assert done.exit_status == 0
    assert sorted(run.launches for run in done.runs) == [1, 2, 3, 10]
    assert {run.ended for run in done.runs} == {"ended", "exited with 0"}
    assert (
        len([line for line in done.lines if line.startswith("process ") and "pasta-out/" in line])
        == 4
    )


def test_no_children(pasta_preload, compile_c) -> None:
    program = compile_c(LAUNCH)
    shell = ("sh", "-c", '"$1"; exec "$1"', "sh", program)
    assert len(pasta_preload(*shell).runs) == 2
    again = pasta_preload(*shell, options=("--no-children", "-o", "alone/%p"))
    runs = list((again.directory / "alone").iterdir())
    assert len(runs) == 1
    assert '"exited with 0"' in (runs[0] / "run.json").read_text()


def test_exec_after_use_of_the_accelerator(pasta_preload, compile_c) -> None:
    """One pid, two programs, two runs."""
    second = compile_c(LAUNCH, name="second")
    first = compile_c(
        "int main(int n, char **a) { launch(2); return n ? execv(a[1], a + 1) : 0; }", name="first"
    )
    done = pasta_preload(first, second)
    by_name = {run.path.name.split("-")[0]: run for run in done.runs}
    assert (by_name["first"].launches, by_name["second"].launches) == (2, 3)
    assert by_name["first"].ended == "replaced itself (exec)"
    assert by_name["second"].ended == "exited with 0"
    assert len({run.manifest["pid"] for run in done.runs}) == 1


def test_many_children_leave_nothing(pasta_preload, compile_c) -> None:
    program = compile_c(
        """int main(void) {
            for (int i = 0; i < 200; i++) { if (!fork()) _exit(0); }
            while (wait(NULL) > 0) {}
            return 0;
        }"""
    )
    done = pasta_preload(program)
    assert (done.exit_status, done.stdout, done.stderr) == (0, "", "")
    assert list(done.directory.iterdir()) == []


DAEMON = r"""
int main(void) {
    %s
    if (fork()) return 0;
    setsid();
    if (fork()) _exit(0);
    for (int i = 0; i < 1024; i++) close(i);
    while (access("go", F_OK)) sleep_ms(5);
    launch(5);
    return 0;
}
"""


@pytest.mark.parametrize("before", ["", "launch(1);"], ids=["unused", "used"])
def test_daemon(pasta_preload, compile_c, before: str) -> None:
    """The launcher exits with the program; a background process writes the daemon's run."""
    done = pasta_preload(compile_c(DAEMON % before))
    assert done.exit_status == 0
    assert len(done.runs) == bool(before), "the daemon, which waits, has no run yet"
    (done.directory / "go").touch()
    expected = [1, 5] if before else [5]
    wait_until(lambda: len(done.runs) == len(expected), "the daemon's run is written")
    assert sorted(run.launches for run in done.runs) == expected
    assert done.notes == []


def test_running_child_is_announced(pasta_preload, compile_c) -> None:
    program = compile_c(
        r"""int main(void) {
            int ready[2];
            char byte;
            if (pipe(ready)) return 1;
            if (!fork()) {
                launch(5);
                close(1), close(2);
                byte = 0;
                if (write(ready[1], &byte, 1) != 1) return 2;
                sleep_ms(1500);
                return 0;
            }
            return read(ready[0], &byte, 1) != 1;
        }"""
    )
    done = pasta_preload(program)
    assert done.exit_status == 0
    assert done.notes == ["1 process is still running; its run is written when it exits"]
    wait_until(lambda: done.runs, "the child's run is written")
    assert done.run.launches == 5


def test_fork_after_use(pasta_preload, compile_c) -> None:
    """A child of a process that used the accelerator uses it too."""
    program = compile_c(
        """int main(void) {
            launch(2);
            pid_t child = fork();
            if (!child) { launch(3); return 4; }
            int status;
            waitpid(child, &status, 0);
            launch(1);
            return WEXITSTATUS(status);
        }"""
    )
    done = pasta_preload(program)
    assert done.exit_status == 4
    assert sorted(run.launches for run in done.runs) == [3, 3]
    assert len({run.manifest["pid"] for run in done.runs}) == 2


# ---- the launcher itself


def test_program_survives_a_killed_launcher(
    pasta_preload, pasta, compile_c, tmp_path: Path
) -> None:
    """Published events are kept in shared memory, and `pasta recover` writes the run."""
    program = compile_c(
        r"""int main(int n, char **a) {
            launch(3);
            puts("ready");
            fflush(stdout);
            while (n && access(a[1], F_OK)) sleep_ms(20);
            launch(4);
            puts("unharmed");
            return 0;
        }"""
    )
    go = tmp_path / "go"
    process = pasta_preload.popen(program, go)
    ready(process)
    process.kill()
    process.wait()
    (session,) = pasta_preload.sessions()
    busy = pasta("recover", session)  # by name: the machine may have other abandoned sessions
    (ring,) = (path for path in (session / "rings").iterdir() if "." not in path.name)
    pid = int(ring.name.partition("-")[0])
    assert busy.returncode == 0
    assert busy.stdout == f"{ring}: left alone, its program (process {pid}) is still running\n"
    assert session.exists(), "a session whose program runs was touched"
    go.touch()
    done = pasta_preload.finish(process)
    assert done.stdout == "unharmed\n"
    assert done.target_stderr == ""
    wait_until(lambda: not Path(f"/proc/{pid}").exists(), "the program has ended")
    recovered = pasta("recover", session)
    assert (recovered.returncode, recovered.stderr) == (0, "")
    assert recovered.stdout == f"process {pid}: {done.run.path}\n"
    assert done.run.launches == 7
    assert done.run.ended == "ended"


def test_nothing_to_recover(pasta, tmp_path: Path) -> None:
    done = pasta("recover", tmp_path)
    assert done.returncode == 2
    assert done.stderr == f"pasta: {tmp_path} is not a session directory\n"


def test_collector_ends_with_the_program_after_the_launcher_is_killed(
    pasta_preload, pasta, compile_c, tmp_path: Path
) -> None:
    program = compile_c(
        r"""int main(int n, char **a) {
            launch(3);
            puts("ready");
            fflush(stdout);
            while (n && access(a[1], F_OK)) sleep_ms(20);
            launch(4);
            return 0;
        }"""
    )
    go = tmp_path / "go"
    process = pasta_preload.popen(program, go, options=("--collector",))
    ready(process)
    (session,) = pasta_preload.sessions()
    wait_until(lambda: collectors_of(session), "a collector runs")
    process.kill()
    process.wait()
    go.touch()
    done = pasta_preload.finish(process)
    wait_until(lambda: not collectors_of(session), "the collector has ended")
    assert done.run.launches == 7
    assert done.run.ended == "ended"
    assert pasta("recover", session, "--discard").returncode == 0


def collectors_of(session: Path) -> list[str]:
    """Processes that have a ring of the session open, except the programs themselves."""
    return [
        path.parent.name
        for path in Path("/proc").glob("[0-9]*/cmdline")
        if str(session / "rings").encode() in _content(path)
    ]


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
