"""Where Python runs: embedded in a program without one, on a thread of the program's own
interpreter, or in a collector; the program does not notice."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.support.preload import EMBED_NOW, base_environment, wait_until
from tests.support.pythons import other_pythons

#: Runs until a consumer has started; 340 launches. With an argument it exits before.
LIVES = """
int main(int n, char **a) {
    (void)a;
    launch(300);
    if (n == 1) wait_for_consumer();
    launch(40);
    %s
    return 3;
}"""
#: A Python program that runs until a consumer has started; 12 launches.
HOST = """
import os, time
launch(5)
until = time.monotonic() + {seconds} * ("PASTA_SHIM" in os.environ)
while time.monotonic() < until:
    sum(range(1000))
launch(7)
print("output of the program")
"""
NOTE = r"process \d+ is analysed by a collector process: (.*)"


def reasons(lines: list[str]) -> list[str]:
    """Reasons for collectors, as printed on stderr."""
    return [match[1] for line in lines if (match := re.fullmatch(NOTE, line))]


# ---- a program without Python


@pytest.mark.main
def test_consumer_is_embedded(pasta_preload, compile_c) -> None:
    done = pasta_preload(compile_c(LIVES % ""), options=EMBED_NOW)
    assert (done.exit_status, done.stdout, done.target_stderr) == (3, "", "")
    assert (done.run.consumer, done.run.launches, done.notes) == ("embedded", 340, [])


FOREIGN = {
    "libpypy3-c.so": ("int pypy_main_startup(void) { return 0; }", "the program runs PyPy"),
    "libpython9.9.so.1.0": ("int Py_None;", "the program has a Python of its own"),
    "libplain.so": ("int __tsan_init(void) { return 0; }", "the program runs under a sanitizer"),
    "vgpreload_core.so": ("int nothing;", "the program runs under valgrind"),
}


@pytest.mark.parametrize("library", FOREIGN)
def test_no_embedded_python_beside_conflicting_libraries(
    pasta_preload, compile_c, tmp_path: Path, library: str
) -> None:
    """Symbols of another Python, or of a sanitizer, would preempt those of the embedded one."""
    text, reason = FOREIGN[library]
    (tmp_path / "foreign.c").write_text(text)
    shared = tmp_path / library
    command = ["cc", "-shared", "-fPIC", "-o", shared, tmp_path / "foreign.c"]
    subprocess.run(command, check=True)
    program = compile_c(LIVES % 'printf("%d", is_mapped("/_embed"));')
    environment = {"LD_PRELOAD": str(shared)}
    done = pasta_preload(program, options=EMBED_NOW, environment=environment)
    assert (done.exit_status, done.stdout, done.target_stderr) == (3, "0", "")
    assert (done.run.consumer, done.run.launches) == ("collector", 340)
    assert [each[: len(reason)] for each in reasons(done.notes)] == [reason]


def test_pypy(pasta_preload, python_program) -> None:
    pypy = shutil.which("pypy3")
    if pypy is None:
        pytest.skip("no pypy3 (apt-get install pypy3)")
    program = python_program(HOST.format(seconds=1.5) + "\nraise SystemExit(7)")
    done = pasta_preload(pypy, program, options=EMBED_NOW)
    assert (done.exit_status, done.stdout, done.target_stderr) == (7, "output of the program\n", "")
    assert (done.run.consumer, done.run.launches) == ("collector", 12)


@pytest.mark.main
def test_collector_option(pasta_preload, compile_c) -> None:
    program = compile_c(LIVES % 'printf("%d %d", is_mapped("libpython"), is_mapped("/_embed"));')
    done = pasta_preload(program, options=("--collector",))
    assert (done.exit_status, done.stdout, done.target_stderr) == (3, "0 0", "")
    assert (done.run.consumer, done.run.launches, done.notes) == ("collector", 340, [])


@pytest.mark.main
def test_results_are_independent_of_the_consumer(pasta_preload, compile_c) -> None:
    """Counts and names of the report, for every consumer."""
    program = compile_c(LIVES % "")
    reports = []
    for way, options, argument in WAYS:
        options = (*options, "-t", "kernel_freq", "-f", "-o", "pasta-out/r")
        run = pasta_preload(program, *argument, options=options).run
        assert (run.consumer, run.launches) == (way, 340)
        kernels = pq.read_table(run.path / "results" / "kernel_freq" / "kernels.parquet")
        kernels = kernels.select(["kernel", "launches"])
        reports.append((run.manifest["events"], run.manifest["recorded"], kernels.to_pydict()))
    assert reports[0] == reports[1] == reports[2]


#: Every kind of consumer, with the options and the program's argument that select it.
WAYS = (
    ("afterwards", (), ("brief",)),
    ("embedded", EMBED_NOW, ()),
    ("collector", ("--collector",), ()),
)


@pytest.mark.parametrize(
    "broken",
    [
        {"PYTHONHOME": "/nonexistent", "PYTHONPATH": "/nonexistent"},
        {"PYTHONSTARTUP": "/nonexistent", "PYTHONMALLOC": "debug", "PYTHONDEVMODE": "1"},
        {"PATH": "/nonexistent"},
    ],
    ids=["home", "switches", "path"],
)
def test_program_with_python_environment_variables(
    pasta_preload, compile_c, broken: dict[str, str]
) -> None:
    """They apply to the program only: the embedded interpreter is that of PASTA's installation."""
    assignments = [f"{name}={value}" for name, value in broken.items()]
    done = pasta_preload("/usr/bin/env", *assignments, compile_c(LIVES % ""), options=EMBED_NOW)
    assert (done.exit_status, done.stdout, done.target_stderr) == (3, "", "")
    assert (done.run.consumer, done.run.launches, done.notes) == ("embedded", 340, [])


def test_tool_output_is_separate_from_the_programs(
    pasta_preload, compile_c, tmp_path: Path
) -> None:
    """Output of a tool, also below Python's level, goes to the log."""
    tool = tmp_path / "talker.py"
    tool.write_text(
        "import os, sys\n"
        "from pasta.tool import Result, Tool\n"
        "class Talker(Tool):\n"
        "    'Prints.'\n"
        "    def on_launches(self, launches):\n"
        "        print('said to stdout'); print('said to stderr', file=sys.stderr)\n"
        "    def result(self):\n"
        "        print('said in result'); return Result(summary='talked')\n"
    )
    for way, options, argument in WAYS:
        options = (*options, "-t", str(tool), "-f", "-o", "pasta-out/r")
        done = pasta_preload(compile_c(LIVES % ""), *argument, options=options)
        assert done.run.consumer == way
        assert (done.stdout, done.target_stderr) == ("", "")
        assert "said to stdout" in done.run.log
        assert "said to stderr" in done.run.log
        assert "said in result" in done.run.log


# ---- a Python program of PASTA's own environment


def expect_host(done, status: int, launches: int) -> None:
    assert done.exit_status == status
    assert done.run.launches == launches
    assert done.notes == []


@pytest.mark.parametrize("threading", ["", "import threading\n"], ids=["plain", "threading"])
def test_consumer_joins_a_python_program(pasta_preload, python_program, threading: str) -> None:
    """The program's interpreter runs the tools; the program's output is unchanged."""
    program = python_program(threading + HOST.format(seconds=2))
    done = pasta_preload(sys.executable, program, options=EMBED_NOW)
    expect_host(done, 0, 12)
    assert (done.stdout, done.target_stderr) == ("output of the program\n", "")
    assert done.run.consumer == "embedded"


def test_program_sees_few_traces_of_the_consumer(pasta_preload, python_program) -> None:
    """No thread in `threading`, none to join; main thread and modules are unchanged."""
    program = python_program(
        HOST.format(seconds=2)
        + "import threading, sys, signal, gc\n"
        + "print(threading.enumerate() == [threading.main_thread()] or threading.enumerate())\n"
        + "print(threading.current_thread() is threading.main_thread())\n"
        + "print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)\n"
        + "print(sys.argv, sys.stdout is sys.__stdout__, gc.isenabled())\n"
    )
    alone = subprocess.run(
        [sys.executable, program], capture_output=True, text=True, env=base_environment()
    )
    done = pasta_preload(sys.executable, program, options=EMBED_NOW)
    assert done.stdout == alone.stdout
    assert done.run.consumer == "embedded"


ENDS = {
    "return": ("", 0),
    "sys.exit": ("import sys; sys.exit(3)", 3),
    "os._exit": ("import os; os._exit(3)", 3),
    "exception": ("raise KeyError('of the program')", 1),
    "SIGKILL": ("import os; os.kill(os.getpid(), 9)", -9),
    "SIGTERM": ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", -15),
    "abort": ("import os; os.abort()", -6),
    "KeyboardInterrupt": ("raise KeyboardInterrupt", -2),
    "exit of a thread": (
        "import os, threading\n"
        "threading.Thread(target=lambda: os._exit(3)).start(); time.sleep(60)",
        3,
    ),
    "atexit": ("import atexit; atexit.register(launch, 4)", 0),
    "daemon thread": (
        "import threading\n"
        "def work():\n"
        "    while True: sum(range(10000))\n"
        "threading.Thread(target=work, daemon=True).start()",
        0,
    ),
    "exec": ("import os; os.execvp('true', ['true'])", 0),
}


@pytest.mark.parametrize("way", ENDS)
def test_python_program_exits(pasta_preload, python_program, way: str) -> None:
    end, status = ENDS[way]
    program = python_program(HOST.format(seconds=1.5) + end + "\n")
    done = pasta_preload(sys.executable, program, options=EMBED_NOW)
    alone = subprocess.run(
        [sys.executable, program], capture_output=True, text=True, env=base_environment()
    )
    expect_host(done, status, 16 if way == "atexit" else 12)
    assert alone.returncode == status
    assert done.stdout == alone.stdout
    assert done.target_stderr == alone.stderr
    assert done.run.consumer == "embedded"


def test_interrupt_while_tools_evaluate_text(pasta_preload, python_program, tmp_path) -> None:
    """`eval` on any thread makes CPython forget that an interrupt ended the program."""
    tool = tmp_path / "evaluates.py"
    tool.write_text(
        "import time\n"
        "from pasta.tool import Result, Tool\n"
        "class Evaluates(Tool):\n"
        "    'Evaluates text until well after the program has ended.'\n"
        "    def on_launches(self, launches):\n"
        "        until = time.monotonic() + 2.5\n"
        "        while time.monotonic() < until: eval('1')\n"
        "    def result(self):\n"
        "        return Result(summary='evaluated')\n"
    )
    program = python_program(HOST.format(seconds=2) + "raise KeyboardInterrupt\n")
    done = pasta_preload(sys.executable, program, options=(*EMBED_NOW, "-t", str(tool)))
    expect_host(done, -2, 12)
    assert done.run.consumer == "embedded"


@pytest.mark.main
@pytest.mark.parametrize("way", ["return", "sys.exit", "SIGKILL", "atexit"])
def test_brief_python_program(pasta_preload, python_program, way: str) -> None:
    end, status = ENDS[way]
    done = pasta_preload(sys.executable, python_program("launch(12)\n" + end + "\n"))
    expect_host(done, status, 16 if way == "atexit" else 12)
    assert done.run.consumer == "afterwards"


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_multiprocessing(pasta_preload, python_program, method: str) -> None:
    """Every worker has a run; a worker forked from a program with an embedded consumer uses a
    collector."""
    program = python_program(
        "import multiprocessing, time\n"
        "def work(count):\n"
        "    launch(count)\n"
        "if __name__ == '__main__':\n"
        f"    context = multiprocessing.get_context({method!r})\n"
        "    launch(1)\n"
        "    time.sleep(1.5)\n"
        "    workers = [context.Process(target=work, args=(count,)) for count in (2, 3)]\n"
        "    for worker in workers: worker.start()\n"
        "    for worker in workers: worker.join()\n"
        "    print([worker.exitcode for worker in workers])\n"
    )
    done = pasta_preload(sys.executable, program, options=EMBED_NOW)
    assert (done.exit_status, done.stdout, done.target_stderr) == (0, "[0, 0]\n", "")
    assert sorted(run.launches for run in done.runs) == [1, 2, 3]
    # Reported once, if a worker lived long enough to be observed.
    assert reasons(done.notes) in (
        [],
        ["the process was forked from one in which PASTA ran already"] * (method == "fork"),
    )


def test_program_that_changed_cffis_lock(pasta_preload, python_program) -> None:
    """Before Python 3.12: a field of the capsule type, set by an attribute lookup."""
    program = python_program(
        "import datetime\ntype(datetime.datetime_CAPI).mro()\n" + HOST.format(seconds=2)
    )
    done = pasta_preload(sys.executable, program, options=EMBED_NOW)
    assert (done.exit_status, done.stdout) == (0, "output of the program\n"), done.stderr
    assert (done.run.consumer, done.run.launches) == ("embedded", 12)


def test_program_exits_while_it_is_joined(pasta_preload, python_program) -> None:
    """At any moment: the interpreter is never entered or restarted during finalization."""
    program = python_program(
        "import multiprocessing, time\n"
        "def work(seconds):\n"
        "    launch(1)\n"
        "    time.sleep(seconds)\n"
        "if __name__ == '__main__':\n"
        "    context = multiprocessing.get_context('spawn')\n"
        "    delays = [0.003 * n for n in range(16)]\n"
        "    workers = [context.Process(target=work, args=(delay,)) for delay in delays]\n"
        "    for worker in workers: worker.start()\n"
        "    for worker in workers: worker.join()\n"
        "    print([worker.exitcode for worker in workers])\n"
    )
    done = pasta_preload(sys.executable, program, options=EMBED_NOW)
    assert (done.exit_status, done.target_stderr) == (0, "")
    assert done.stdout == f"{[0] * 16}\n"
    assert [run.launches for run in done.runs] == [1] * 16


def test_interpreter_options_of_the_program(pasta_preload, python_program) -> None:
    """Isolated, without site: a collector is used, and Python prints nothing."""
    program = python_program(HOST.format(seconds=1))
    done = pasta_preload(sys.executable, "-I", "-S", "-B", program, options=EMBED_NOW)
    assert (done.exit_status, done.stdout, done.target_stderr) == (0, "output of the program\n", "")
    assert done.run.launches == 12


# ---- Python programs of other environments


def test_program_with_another_python_version(pasta_preload, python_program) -> None:
    """Never embedded: both runtimes' symbols would mix."""
    pythons = other_pythons()
    if not pythons:
        pytest.skip("no python3.N of another version on PATH, nor of pyenv")
    program = python_program(HOST.format(seconds=1.5))
    for python in {pythons[0], pythons[-1]}:
        done = pasta_preload(python, program, options=(*EMBED_NOW, "-o", "pasta-out/%p"))
        assert (done.exit_status, done.stdout) == (0, "output of the program\n")
        assert done.target_stderr == ""
        run = done.runs[-1]
        assert (run.launches, run.consumer) == (12, "collector")
        assert reasons(done.notes) == ["the program runs another version of Python than PASTA"]


def test_environment_with_google_pasta(pasta_preload, python_program, tmp_path: Path) -> None:
    """Another package `pasta` in the program's environment: nothing is imported from it."""
    foreign = tmp_path / "site" / "pasta"
    foreign.mkdir(parents=True)
    (foreign / "__init__.py").write_text(
        "print('imported the wrong pasta')\nraise SystemExit(77)\n"
    )
    program = python_program(HOST.format(seconds=1.5))
    command = ("env", f"PYTHONPATH={foreign.parent}", sys.executable, program)
    done = pasta_preload(*command, options=EMBED_NOW)
    assert (done.exit_status, done.stdout) == (0, "output of the program\n")
    assert (done.run.launches, done.run.consumer) == (12, "collector")
    assert reasons(done.notes) == [
        "the program's Python environment is not the one PASTA is installed in"
    ]


def test_virtual_environment_without_pasta(pasta_preload, python_program, tmp_path: Path) -> None:
    """The same interpreter, other packages."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    program = python_program(HOST.format(seconds=1.5))
    command = ("env", "-u", "PYTHONPATH", tmp_path / "venv" / "bin" / "python", program)
    done = pasta_preload(*command, options=EMBED_NOW)
    assert (done.exit_status, done.stdout) == (0, "output of the program\n")
    assert (done.run.launches, done.run.consumer) == (12, "collector")
    assert reasons(done.notes) == [
        "the program's Python environment is not the one PASTA is installed in"
    ]


def test_program_embeds_python_later(pasta_preload, compile_c, native: Path) -> None:
    """A C program that starts its own Python after, or before, PASTA's is embedded."""
    library = subprocess.run(
        [sys.executable, "-c", "from pasta import paths; print(paths.libpython() or '')"],
        env=base_environment(), cwd="/", capture_output=True, text=True, check=True,
    ).stdout.strip()  # fmt: skip
    if not library:
        pytest.skip("this Python has no shared library")
    program = compile_c(
        r"""
        #include <dlfcn.h>
        int main(int n, char **a) {
            void *python = n > 1 ? dlopen(a[1], RTLD_NOW | RTLD_GLOBAL) : NULL;
            void (*initialize)(void);
            int (*run)(const char *);
            if (!python) return 9;
            *(void **)&initialize = dlsym(python, "Py_Initialize");
            *(void **)&run = dlsym(python, "PyRun_SimpleString");
            initialize();
            launch(5);
            int bad = run("import time; t = time.monotonic() + 1.5\n"
                          "while time.monotonic() < t: pass\n"
                          "print('mine', flush=True)");
            launch(7);
            return bad;
        }""",
        "-ldl",
    )
    done = pasta_preload(program, library, options=EMBED_NOW)
    assert (done.exit_status, done.stdout, done.target_stderr) == (0, "mine\n", "")
    assert done.run.launches == 12


# ---- a PASTA that cannot embed


def test_python_without_shared_library(pasta_preload, compile_c) -> None:
    """A statically linked Python, as in many distributions and container images: a collector is
    used."""
    done = pasta_preload(
        compile_c(LIVES % ""), options=EMBED_NOW, environment={"PASTA_LIBPYTHON": ""}
    )
    assert (done.exit_status, done.stdout, done.target_stderr) == (3, "", "")
    assert (done.run.launches, done.run.consumer) == (340, "collector")
    assert reasons(done.notes) == ["the Python that PASTA is installed with has no shared library"]


def test_unloadable_python_library(pasta_preload, compile_c, tmp_path: Path) -> None:
    broken = tmp_path / "libpython.so"
    broken.write_text("not a library")
    done = pasta_preload(
        compile_c(LIVES % ""), options=EMBED_NOW, environment={"PASTA_LIBPYTHON": str(broken)}
    )
    assert (done.exit_status, done.run.launches, done.run.consumer) == (3, 340, "collector")
    (reason,) = reasons(done.notes)
    assert reason.startswith(str(broken))


def test_broken_site(pasta_preload, compile_c, tmp_path: Path) -> None:
    """A sitecustomize on the program's path that ends the interpreter does not end PASTA's."""
    (tmp_path / "sitecustomize.py").write_text("import os; os._exit(66)\n")
    environment = {"PYTHONPATH": f"{tmp_path}:{base_environment().get('PYTHONPATH', '')}"}
    program = compile_c(LIVES % 'puts("ran");')
    done = pasta_preload(program, options=EMBED_NOW, environment=environment)
    assert (done.exit_status, done.stdout, done.target_stderr) == (3, "ran\n", "")
    assert done.run.launches == 340


def test_site_fails_in_the_program_only(pasta_preload, compile_c, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import os, sys\n"
        "if 'PASTA_SHIM' in os.environ:\n"
        "    print('site of the program', file=sys.stderr)\n"
        "    raise SystemExit(5)\n"
    )
    environment = {"PYTHONPATH": f"{tmp_path}:{base_environment().get('PYTHONPATH', '')}"}
    done = pasta_preload(compile_c(LIVES % ""), options=EMBED_NOW, environment=environment)
    assert done.exit_status == 3
    assert done.run.launches == 340
    assert done.stdout == ""


def test_forked_from_an_embedded_program(pasta_preload, compile_c) -> None:
    """Its child inherits an interpreter in an unknown state: it uses a collector."""
    program = compile_c(
        """int main(void) {
            launch(5);
            wait_for_consumer();
            int status;
            pid_t child = fork();
            if (!child) { launch(6); sleep_ms(500); launch(1); exit(4); }
            waitpid(child, &status, 0);
            launch(3);
            return WEXITSTATUS(status);
        }"""
    )
    done = pasta_preload(program, options=EMBED_NOW)
    assert done.exit_status == 4
    by_launches = {run.launches: run.consumer for run in done.runs}
    assert by_launches == {8: "embedded", 7: "collector"}


def test_child_with_a_collector_outlives_the_program(pasta_preload, compile_c) -> None:
    """Its collector continues, and no second one starts on the same ring."""
    program = compile_c(
        r"""int main(void) {
            int ready[2];
            char byte = 0;
            if (pipe(ready)) return 1;
            if (!fork()) {
                launch(5);
                wait_for_consumer();
                for (int i = 0; i < 3; i++) close(i);
                if (write(ready[1], &byte, 1) != 1) return 2;
                sleep_ms(1000);
                launch(6);
                return 0;
            }
            return read(ready[0], &byte, 1) != 1;
        }"""
    )
    done = pasta_preload(program, options=("--collector",))
    assert done.exit_status == 0
    wait_until(lambda: done.runs, "the child's run is written")
    wait_until(lambda: not pasta_preload.sessions(), "the session is over")
    assert done.run.launches == 11
    assert done.run.consumer == "collector"


def test_no_consumer_for_a_process_that_only_annotates(pasta_preload, compile_c) -> None:
    program = compile_c(
        '#include "pasta.h"\n'
        'int main(void) { pasta_range_push("a"); pasta_range_pop(); sleep_ms(800);'
        'printf("%d", is_mapped("libpython")); return 0; }'
    )
    done = pasta_preload(program, options=EMBED_NOW)
    assert (done.exit_status, done.stdout, done.stderr, done.runs) == (0, "0", "", [])
