"""Call paths of real programs: compiled with and without frame pointers, static, with a plugin that
is closed, with signal handlers, and a Python program with a C extension."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.support.preload import Done, Preload

#: Every way in which a stack can be walked, with flags of code that it must be able to walk over.
WAYS = {
    "auto": ("-O1", "-fomit-frame-pointer"),
    "eh_frame": ("-O1", "-fomit-frame-pointer"),
    "frame_pointers": ("-O1", "-fno-omit-frame-pointer"),
}
OPTIONS = ("--call-paths", "all", "-t", "kernel_freq,memory_timeline")
SOLVE = """
__attribute__((noinline)) static void launch_one(void) { launch(1); __asm__ volatile(""); }
__attribute__((noinline)) static void solve(int depth) {
    if (depth) solve(depth - 1);
    else launch_one();
    __asm__ volatile("");
}
"""
MAIN = SOLVE + 'int main(void) { solve(2); puts("done"); return 3; }'
PLUGIN = """
#include <dlfcn.h>
int main(int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        void *plugin = dlopen(argv[i], RTLD_NOW), (*run)(void (*)(int));
        *(void **)&run = dlsym(plugin, "run_plugin");
        run(launch);
        dlclose(plugin);
    }
    return 0;
}
/* launch( */
"""
HANDLER = (
    SOLVE
    + """
static void on_signal(int number) { (void)number; solve(0); }
__attribute__((noinline)) static void interrupted(void) { raise(SIGUSR1); __asm__ volatile(""); }
static void *in_thread(void *unused) { interrupted(); return unused; }
int main(void) {
    static char memory[1 << 17];
    stack_t other = {.ss_sp = memory, .ss_size = sizeof memory};
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_ONSTACK};
    pthread_attr_t small;
    pthread_t thread;
    launch(1);
    sigaltstack(&other, NULL);
    sigaction(SIGUSR1, &action, NULL);
    interrupted();
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 1 << 16);
    pthread_create(&thread, &small, in_thread, NULL);
    pthread_join(thread, NULL);
    return 0;
}
"""
)


def paths(done: Done, tool: str = "kernel_freq") -> list[str]:
    table = pq.read_table(done.run.path / "results" / tool / "call_paths.parquet")
    return [path for path in table["call_path"].to_pylist() if path]


def functions(path: str) -> list[str]:
    """Names of a call path, without lines."""
    return [frame.partition(":")[0] for frame in path.split(" > ")]


@pytest.mark.main
@pytest.mark.parametrize("way", WAYS)
def test_c_programs(pasta_preload: Preload, compile_c: Callable[..., Path], way: str) -> None:
    program = compile_c(MAIN, *WAYS[way])
    done = pasta_preload(program, options=(*OPTIONS, "--set", f"host.unwind={way}"))
    assert (done.exit_status, done.stdout, done.target_stderr) == (3, "done\n", "")
    [path] = paths(done)
    expected = ["solve", "solve", "solve", "launch_one", "launch", "ra_launch"]
    assert functions(path)[-6:] == expected
    assert way == "frame_pointers" or functions(path)[0] == "main"
    line = MAIN[: MAIN.index("launch(1)")].count("\n") + 2  # after the #include
    assert f"launch_one:{line} > " in path
    [allocation] = paths(done, "memory_timeline")
    assert functions(allocation)[-3:] == ["launch_one", "launch", "ra_alloc"]
    assert done.notes == []


def test_plugins_that_are_closed(
    pasta_preload: Preload, compile_c: Callable[..., Path], tmp_path: Path
) -> None:
    plugins = []
    for name in ("first", "second"):  # the second one is loaded where the first one was
        source = tmp_path / f"{name}.cpp"
        source.write_text(
            f"namespace {name} {{ template <class F> [[gnu::noinline]] void step(F f) "
            '{ f(1); asm volatile(""); } }\n'
            'extern "C" void run_plugin(void (*f)(int)) {\n'
            f'    {name}::step(f);\n    asm volatile("");\n}}\n'
        )
        plugins.append(source.with_suffix(".so"))
        command = ["c++", "-g", "-O1", "-shared", "-fPIC", source, "-o", plugins[-1]]
        subprocess.run(command, check=True)
    done = pasta_preload(compile_c(PLUGIN), *plugins, options=OPTIONS)
    assert done.exit_status == 0
    found = sorted(path.split(" > ")[1:3] for path in paths(done))
    assert found == [["run_plugin:3", f"{name}::step:1"] for name in ("first", "second")]


def test_signal_handlers_and_small_stacks(
    pasta_preload: Preload, compile_c: Callable[..., Path]
) -> None:
    done = pasta_preload(compile_c(HANDLER, *WAYS["auto"]), options=OPTIONS)
    assert done.exit_status == 0
    found = [functions(path) for path in paths(done)]
    handled = [path for path in found if "on_signal" in path]
    assert len(handled) == 2  # on a stack of its own, and on a thread with a small one
    for path in handled:
        assert path.index("interrupted") < path.index("on_signal") < path.index("solve")


def test_python_with_a_c_extension(
    pasta_preload: Preload, python_program: Callable[..., Path], tmp_path: Path
) -> None:
    extension = tmp_path / "extension.c"
    extension.write_text(
        '__attribute__((noinline)) void call(void (*f)(void)) { f(); __asm__ volatile(""); }\n'
    )
    library = extension.with_suffix(".so")
    subprocess.run(["cc", "-g", "-O1", "-shared", "-fPIC", extension, "-o", library], check=True)
    program = python_program(
        f"""
import ctypes
callback = ctypes.CFUNCTYPE(None)
call = ctypes.CDLL({str(library)!r}).call

def inner():
    launch(1)

def outer():
    call(callback(inner))

outer()
"""
    )
    done = pasta_preload(sys.executable, program, options=OPTIONS)
    [path] = paths(done)
    names = functions(path)
    assert not [name for name in names if name.startswith("_PyEval")]
    if (3, 11) <= sys.version_info[:2] <= (3, 13):
        order = [names.index(name) for name in ("<module>", "outer", "call", "inner", "launch")]
        assert order == sorted(order)
        line = program.read_text()[: program.read_text().index("call(callback(inner))")].count("\n")
        assert f"outer:{line + 1} > " in path


def test_a_static_program_runs_as_ever(pasta_preload: Preload, tmp_path: Path) -> None:
    """Nothing can be preloaded into it: it has no run."""
    source = tmp_path / "static.c"
    source.write_text('#include <stdio.h>\nint main(void) { puts("static"); return 4; }\n')
    program = source.with_suffix("")
    subprocess.run(["cc", "-static", source, "-o", program], check=True)
    done = pasta_preload(program, options=OPTIONS)
    assert (done.exit_status, done.stdout, done.runs) == (4, "static\n", [])


def test_sampled_deep_and_repeated_stacks(
    pasta_preload: Preload, compile_c: Callable[..., Path]
) -> None:
    body = "solve(20000); for (int i = 1; i <= 50; i++) solve(i % 3);"
    program = compile_c(SOLVE + f"int main(void) {{ {body} return 0; }}", *WAYS["auto"])
    options = ("--call-paths", "launches", "--set", "host.call_paths_every=4")
    run = pasta_preload(program, options=options).run
    [part] = (run.path / "events").glob("host_stack-*.parquet")
    stacks = pq.read_table(part)
    assert stacks["key"].to_pylist() == list(range(0, 51, 4))  # the launches that are sampled
    assert len(set(stacks["stack"].to_pylist())) == 4  # each is recorded once
    assert stacks["truncated"].to_pylist() == [1] + [0] * 12  # recursion is cut
    assert 192 < run.count("host_frame") < 250
