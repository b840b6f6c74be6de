"""However a program exits, and whatever it does to its own process, every event is kept.

Each way to end is tried twice: `brief`, where the program is over before Python would start in
it, and `embedded`, where the consumer is at work in the process when it ends.
"""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.support.preload import EMBED_NOW, wait_until

BEFORE, AFTER = 300, 40

WAYS_TO_END = {
    "return": ("return 3;", "exited with 3"),
    "exit": ("exit(3);", "exited with 3"),
    "_exit": ("_exit(3);", "exited with 3"),
    "quick_exit": ("quick_exit(3);", "exited with 3"),
    "SIGKILL": ("raise(SIGKILL);", "ended by SIGKILL"),
    "SIGSEGV": ("*(volatile int *)1 = 0;", "ended by SIGSEGV"),
    "abort": ("abort();", "ended by SIGABRT"),
    "exec": ('execlp("true", "true", NULL);', "replaced itself (exec)"),
}


@pytest.fixture(params=["brief", "embedded"])
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def options(mode: str) -> tuple[str, ...]:
    return EMBED_NOW if mode == "embedded" else ()


def source(mode: str, end: str, before_main: str = "") -> str:
    wait = "wait_for_consumer();" if mode == "embedded" else ""
    return f"""{before_main}
        int main(void) {{ launch({BEFORE}); {wait} launch({AFTER}); {end} return 0; }}"""


def expected_consumer(mode: str) -> str:
    return "embedded" if mode == "embedded" else "afterwards"


@pytest.mark.parametrize("way", WAYS_TO_END)
def test_ways_to_exit(pasta_preload, compile_c, mode: str, way: str) -> None:
    end, text = WAYS_TO_END[way]
    done = pasta_preload(compile_c(source(mode, end)), options=options(mode))
    assert done.stdout == done.target_stderr == ""
    assert done.run.ended == text
    assert done.run.consumer == expected_consumer(mode)
    assert done.run.launches == BEFORE + AFTER
    assert done.run.manifest["dropped"] == {}
    if way == "exec":
        assert done.exit_status == 0
    elif "exited" in text:
        assert done.exit_status == 3
    else:
        assert signal.Signals(-done.exit_status).name == text.split()[-1]


PUBLISHING = """
static atomic_int ready;
static void *publish(void *p) { ready++; for (;;) launch(1); return p; }
"""


@pytest.mark.parametrize("end", ["exit(3);", "_exit(3);", "raise(SIGKILL);"])
def test_exit_while_threads_publish(pasta_preload, compile_c, mode: str, end: str) -> None:
    """Recorded launches are numbered without gaps, on any thread."""
    body = f"""
        pthread_t thread;
        for (int i = 0; i < 3; i++) pthread_create(&thread, NULL, publish, NULL);
        while (ready < 3) {{}}
        sleep_ms(50);
        {end}"""
    done = pasta_preload(compile_c(source(mode, body, PUBLISHING)), options=options(mode))
    assert done.exit_status == (-9 if "KILL" in end else 3)
    run = done.run
    assert run.launches >= BEFORE + AFTER
    ordinals = sorted(column(run.path, "kernel_launch", "ordinal"))
    missing = set(range(ordinals[-1] + 1)) - set(ordinals)
    # A thread terminated between taking its number and publishing: at most one each.
    assert len(missing) <= 3
    assert len(ordinals) == len(set(ordinals))


def column(run: Path, kind: str, name: str) -> Iterator[Any]:
    for part in sorted((run / "events").glob(f"{kind}-*.parquet")):
        yield from pq.read_table(part)[name].to_pylist()


def test_exit_from_another_thread(pasta_preload, compile_c, mode: str) -> None:
    thread = "static void *leave(void *p) { launch(5); exit(3); return p; }"
    body = "pthread_t t; pthread_create(&t, NULL, leave, NULL); for (;;) pause();"
    done = pasta_preload(compile_c(source(mode, body, thread)), options=options(mode))
    assert done.exit_status == 3
    assert done.run.launches == BEFORE + AFTER + 5


def test_threads_that_outlive_main(pasta_preload, compile_c, mode: str) -> None:
    thread = """static void *go_on(void *p) {
        sleep_ms(200); launch(5); sleep_ms(100); launch(6); exit(3); return p;
    }"""
    body = "pthread_t t; pthread_create(&t, NULL, go_on, NULL); pthread_exit(NULL);"
    done = pasta_preload(compile_c(source(mode, body, thread)), options=options(mode))
    assert done.exit_status == 3
    assert done.run.ended == "exited with 3"
    assert done.run.launches == BEFORE + AFTER + 11


@pytest.mark.main
def test_work_in_exit_handlers(pasta_preload, compile_c, mode: str) -> None:
    """Handlers registered before the first use run after PASTA's, later ones before it."""
    handlers = """
        #include "pasta.h"
        static void late(void) { launch(7); }
        static void last(void) { pasta_mark("last"); }
        __attribute__((constructor)) static void begin(void) { atexit(last); }
        __attribute__((destructor)) static void very_last(void) { pasta_mark("very last"); }
    """
    done = pasta_preload(compile_c(source(mode, "atexit(late);", handlers)), options=options(mode))
    assert (done.exit_status, done.target_stderr) == (0, "")
    assert done.run.launches == BEFORE + AFTER + 7
    assert list(column(done.run.path, "mark", "name")) == ["last", "very last"]


# ---- programs that change their own process

DEEDS = {
    "closes all descriptors": "for (int i = 0; i < 65536; i++) close(i);",
    "closes stdout and stderr": "fclose(stdout); fclose(stderr); close(1); close(2);",
    "reuses descriptors": """for (int i = 3; i < 1024; i++) close(i);
        for (int i = 0; i < 950; i++) { if (open("/dev/null", O_RDWR) < 0) return 9; }""",
    "clears its environment": "clearenv();",
    "leaves its directory": 'if (chdir("/")) return 9;',
    "removes its directory": """char name[] = "/tmp/gone-XXXXXX";
        if (!mkdtemp(name) || chdir(name) || rmdir(name)) { return 9; }""",
    "limits its file size": """struct rlimit none = {0, 0};
        setrlimit(RLIMIT_FSIZE, &none);""",
    "limits its descriptors": "struct rlimit few = {0, 0}; setrlimit(RLIMIT_NOFILE, &few);",
    "changes its name": 'prctl(PR_SET_NAME, "other");',
    "blocks all signals": "sigset_t all; sigfillset(&all); sigprocmask(SIG_BLOCK, &all, NULL);",
    "drops its rights": "if (setgid(65534) || setuid(65534)) return 0;",
}
HEADERS = "#include <sys/prctl.h>\n#include <sys/resource.h>\n"


@pytest.mark.parametrize("deed", DEEDS)
def test_system_calls_of_the_program(pasta_preload, compile_c, mode: str, deed: str) -> None:
    """Called after the first use: recording continues."""
    body = f"{DEEDS[deed]} launch(2); return 3;"
    done = pasta_preload(compile_c(source(mode, body, HEADERS)), options=options(mode))
    assert (done.exit_status, done.stdout, done.target_stderr) == (3, "", "")
    assert done.run.launches == BEFORE + AFTER + 2
    assert done.notes == []


#: Calls after which profiling is impossible, and the line that reports it.
UNPROFILED = {
    "limits its file size": "is too small for the event ring",
    "limits its descriptors": "(Too many open files)",
    "drops its rights": "(Permission denied)",
    "clears its environment": "",  # then the accelerator's library loads no tool
}


@pytest.mark.parametrize("deed", DEEDS)
def test_system_calls_before_the_first_use(pasta_preload, compile_c, deed: str) -> None:
    program = compile_c(f"{HEADERS} int main(void) {{ {DEEDS[deed]} launch(5); return 3; }}")
    done = pasta_preload(program)
    assert (done.exit_status, done.stdout, done.target_stderr) == (3, "", "")
    if deed in UNPROFILED:
        assert done.runs == []
        assert len(done.notes) == bool(UNPROFILED[deed])
        for note in done.notes:
            assert note.endswith(f"{UNPROFILED[deed]}: this process is not profiled")
    else:
        assert done.run.launches == 5
        assert done.notes == []


def test_environment_changed_by_threads(pasta_preload, compile_c) -> None:
    """setenv while Python starts: memory of the environment that is read is never freed."""
    program = compile_c(
        """
        static atomic_bool stop;
        static void *change(void *p) {
            char name[32];
            for (int i = 0; !stop; i++) {
                snprintf(name, sizeof name, "VARIABLE%d", i % 500);
                setenv(name, "a value of some length", 1);
                if (i % 1000 == 999) clearenv();
            }
            return p;
        }
        int main(void) {
            pthread_t thread;
            launch(1);
            pthread_create(&thread, NULL, change, NULL);
            launch(499);
            sleep_ms(1500);
            launch(5);
            stop = true;
            pthread_join(thread, NULL);
            return 3;
        }"""
    )
    done = pasta_preload(program, options=EMBED_NOW)
    assert done.exit_status == 3
    assert done.run.launches == 505


def test_the_environment_is_the_programs(pasta_preload, compile_c) -> None:
    """Modules that Python imports set variables, NumPy for example. And like Perl, a program may
    reallocate what it finds in `environ`."""
    program = compile_c(
        """
        #include <malloc.h>
        extern char **environ;
        int main(void) {
            char **before = environ, *first = environ[0];
            launch(1);
            sleep_ms(1500);
            if (environ != before || environ[0] != first) return 4;
            setenv("ONE", "1", 1);
            size_t count = 0;
            while (environ[count]) count++;
            environ = realloc(environ, (count + 2) * sizeof *environ);
            environ[count] = strdup("TWO=2");
            environ[count + 1] = NULL;
            setenv("THREE", "3", 1);
            char name[32];
            for (int i = 0; i < 300; i++) {
                snprintf(name, sizeof name, "MORE%d", i);
                setenv(name, "a value", 1);
            }
            if (strcmp(getenv("ONE"), "1") || strcmp(getenv("TWO"), "2")) return 5;
            if (strcmp(getenv("THREE"), "3")) return 5;
            return strcmp(getenv("MORE299"), "a value") ? 6 : 3;
        }"""
    )
    done = pasta_preload(program, options=EMBED_NOW)
    assert done.exit_status == 3
    assert done.run.launches == 1


def test_signals_reach_the_programs_threads(pasta_preload, compile_c) -> None:
    """A handler never runs on the consumer's thread, and its system calls are not interrupted."""
    program = compile_c(
        r"""
        #include <sys/syscall.h>
        #include <sys/time.h>
        static pid_t main_thread;
        static atomic_int here, elsewhere;
        static void tick(int n) {
            (void)n;
            if (syscall(SYS_gettid) == main_thread) here++; else elsewhere++;
        }
        int main(void) {
            main_thread = getpid();
            struct sigaction action = {.sa_handler = tick};
            sigaction(SIGALRM, &action, NULL);
            struct itimerval timer = {{0, 1000}, {0, 1000}};
            launch(5);
            setitimer(ITIMER_REAL, &timer, NULL);
            wait_for_consumer();
            sleep_ms(300);
            launch(5);
            printf("%d %d", here > 100, (int)elsewhere);
            return 0;
        }"""
    )
    done = pasta_preload(program, options=EMBED_NOW)
    assert (done.exit_status, done.stdout) == (0, "1 0")
    assert (done.run.consumer, done.run.launches) == ("embedded", 10)


def test_process_state_is_unchanged(pasta_preload, compile_c) -> None:
    """Locale, floating point, umask and signal handlers, while Python runs in the process."""
    program = compile_c(
        r"""
        #include <fenv.h>
        #include <locale.h>
        int main(void) {
            struct sigaction before[32], action; /* nohup, say, ignores SIGHUP */
            int changed = 0;
            for (int i = 1; i < 32; i++) sigaction(i, NULL, &before[i]);
            umask(027);
            launch(5);
            wait_for_consumer();
            sleep_ms(100);
            for (int i = 1; i < 32; i++)
                changed += !sigaction(i, NULL, &action)
                           && action.sa_handler != before[i].sa_handler;
            printf("%s %d ", setlocale(LC_ALL, NULL), fegetround() == FE_TONEAREST);
            printf("%03o %d", umask(0), changed);
            return 0;
        }""",
        "-lm",
    )
    done = pasta_preload(program, options=EMBED_NOW, environment={"LC_ALL": "C.UTF-8"})
    assert done.stdout == "C 1 027 0"
    assert done.run.consumer == "embedded"


@pytest.mark.main
def test_killed_from_outside(pasta_preload, compile_c, mode: str) -> None:
    body = 'puts("ready"); fflush(stdout); for (;;) pause();'
    process = pasta_preload.popen(compile_c(source(mode, body)), options=options(mode))
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    subprocess.run(["pkill", "-KILL", "-P", str(process.pid)], check=True)
    done = pasta_preload.finish(process)
    assert done.exit_status == -signal.SIGKILL
    assert done.run.ended == "ended by SIGKILL"
    assert done.run.launches == BEFORE + AFTER


def test_stopped_and_continued(pasta_preload, compile_c) -> None:
    program = compile_c("int main(void) { launch(3); raise(SIGSTOP); launch(4); return 3; }")
    process = pasta_preload.popen(program)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")

    def stopped() -> bool:
        pids = children.read_text().split()
        return bool(pids) and ") T " in Path(f"/proc/{pids[0]}/stat").read_text()

    wait_until(stopped, "the program stops itself")
    subprocess.run(["pkill", "-CONT", "-P", str(process.pid)], check=True)
    done = pasta_preload.finish(process)
    assert done.exit_status == 3
    assert done.run.launches == 7


def test_hanging_consumer_does_not_block_exit(pasta_preload, compile_c, tmp_path: Path) -> None:
    """The program exits after python.exit-timeout, before a sleep of a minute that would exceed the
    test's limit; a collector recomputes the run."""
    tool = tmp_path / "slow.py"
    tool.write_text(
        "import os, time\n"
        "from pasta.tool import Result, Tool\n"
        "class Slow(Tool):\n"
        "    'Slow where it is embedded.'\n"
        "    count = 0\n"
        "    def on_launches(self, launches):\n"
        "        if 'PASTA_SHIM' in os.environ: time.sleep(60)\n"
        "        self.count += len(launches)\n"
        "    def result(self): return Result(summary=f'{self.count} launches')\n"
    )
    program = compile_c("int main(void) { launch(5); sleep_ms(1500); launch(6); return 3; }")
    options = (*EMBED_NOW, "-t", str(tool), "--set", "python.exit-timeout=300ms")
    done = pasta_preload(program, options=options)
    assert done.exit_status == 3
    assert "slow: 11 launches" in done.run.report
    assert done.run.launches == 11
