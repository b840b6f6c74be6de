"""Programs run in two passes: `pasta-preload --passes auto`."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.support.preload import RunDirectory, wait_until

TWICE = ("--passes", "auto", "-t", "kernel_freq", "-t", "access_count")
#: `pass()` is 1 in the first pass, 2 in the second.
COUNTED = """
static int pass(void) {
    int file = open("passes", O_WRONLY | O_CREAT | O_APPEND, 0600);
    int number = write(file, "x", 1) == 1 ? (int)lseek(file, 0, SEEK_END) : 0;
    close(file);
    return number;
}
"""
WHY = "the second pass does not run: "


def whole(done: Any) -> Path:
    """The directory of the passes."""
    (found,) = (done.directory / "pasta-out").iterdir()
    return Path(found)


def rows(run: Path, table: str, tool: str = "joined") -> list[dict[str, Any]]:
    found = pq.read_table(run / "results" / tool / f"{table}.parquet").to_pylist()
    return list(found)


def passes_of(run: Path) -> dict[str, RunDirectory]:
    return {name: RunDirectory(run / "passes" / name) for name in ("times", "accesses")}


def starts(done: Any) -> int:
    return len((done.directory / "passes").read_text())


@pytest.mark.main
def test_a_program_runs_twice_and_its_passes_are_joined(
    pasta_preload: Any, pasta: Any, demo: Any
) -> None:
    done = pasta_preload(demo("vadd"), options=TWICE)
    assert done.exit_status == 0
    assert done.stdout == "vadd: 65536 elements, correct\n" * 2
    assert done.lines[0] == (
        "the program runs twice: first for device times (kernel_freq), then with probes in kernels"
        " (access_count), which would change the times; its output appears twice, and both runs"
        " must do the same work"
    )
    run = whole(done)
    (vadd,) = rows(run, "kernels")
    assert (vadd["launches_times"], vadd["launches_accesses"], vadd["joined"]) == (1, 1, 1)
    assert rows(run, "unmatched") == []
    each = passes_of(run)
    assert [of.launches for of in each.values()] == [1, 1]
    assert sorted(path.name for path in run.iterdir()) == [
        "passes", "report.txt", "results", "run.json",
    ]  # fmt: skip
    results = {name: os.listdir(of.path / "results") for name, of in each.items()}
    assert results == {"times": ["kernel_freq"], "accesses": ["access_count"]}
    assert [of.manifest["ended"]["text"] for of in each.values()] == ["exited with 0"] * 2
    relative = run.relative_to(done.directory)
    assert done.lines[-3:] == [
        f"joined: {relative}",
        f"pass times: {relative}/passes/times",
        f"pass accesses: {relative}/passes/accesses",
    ]
    assert run.name == f"vadd-{done.pid}"
    # the report is that of the joined run, and pasta report has it again
    reported = [line for line in done.lines[1:-3] if not line.startswith("writing the run")]
    assert (run / "report.txt").read_text().split() == " ".join(reported).split()
    for path in (run, each["times"].path, each["accesses"].path):
        assert pasta("report", path).returncode == 0


def test_one_pass_is_enough(pasta_preload: Any, compile_c: Any) -> None:
    program = compile_c(f"{COUNTED} int main(void) {{ pass(); launch(1); return 0; }}")
    for options, says in (
        (("--passes", "auto", "-t", "kernel_freq"), True),
        (("--passes", "auto", "-t", "access_count"), True),
        (TWICE[2:], False),
        (("--passes", "1", *TWICE[2:]), False),
    ):
        done = pasta_preload(program, options=options)
        said = "all tools fit into one pass: the program runs once" in done.lines
        assert (done.exit_status, said) == (0, says)
    assert starts(done) == 4
    assert len(done.runs) == 4 and not any("passes" in run.manifest for run in done.runs)


def test_a_program_that_differs_between_passes(pasta_preload: Any, compile_c: Any) -> None:
    source = f"{COUNTED} int main(void) {{ launch(pass() == 1 ? 7 : 5); return 0; }}"
    done = pasta_preload(compile_c(source), options=TWICE)
    run = whole(done)
    (scale,) = rows(run, "kernels")
    counts = scale["launches_times"], scale["launches_accesses"], scale["joined"]
    assert counts == (7, 5, 5)
    (alone,) = rows(run, "unmatched")
    assert (alone["pass"], alone["launches"], alone["first_launch"]) == ("times", 2, 5)
    assert "note: without partner: 2 launches of times, 0 launches of accesses" in done.stderr


@pytest.mark.parametrize(
    ("end", "status", "why"),
    [
        ("return 3;", 3, "the first exited with 3"),
        ("raise(SIGKILL);", -signal.SIGKILL, "the first was ended by SIGKILL"),
    ],
)
def test_a_first_pass_that_fails_is_the_only_one(
    pasta_preload: Any, compile_c: Any, end: str, status: int, why: str
) -> None:
    source = f"{COUNTED} int main(void) {{ pass(); launch(4); {end} return 0; }}"
    done = pasta_preload(compile_c(source), options=TWICE)
    assert (done.exit_status, starts(done)) == (status, 1)
    assert f"{WHY}{why}" in done.lines
    run = whole(done)
    assert [path.name for path in run.iterdir()] == ["passes"]
    assert os.listdir(run / "passes") == ["times"]
    assert passes_of(run)["times"].launches == 4
    assert any("kernel_freq: 4 launches" in line for line in done.lines)


@pytest.mark.parametrize(
    ("end", "status"), [("return 3;", 3), ("raise(SIGKILL);", -signal.SIGKILL)]
)
def test_a_second_pass_that_fails_is_joined(
    pasta_preload: Any, compile_c: Any, end: str, status: int
) -> None:
    source = f"""{COUNTED}
    int main(void) {{
        bool second = pass() == 2;
        launch(4);
        if (second) {{ {end} }}
        launch(2);
        return 0;
    }}"""
    done = pasta_preload(compile_c(source), options=TWICE)
    assert (done.exit_status, starts(done)) == (status, 2)
    run = whole(done)
    (scale,) = rows(run, "kernels")
    counts = scale["launches_times"], scale["launches_accesses"], scale["joined"]
    assert counts == (6, 4, 4)
    ended = json.loads((run / "run.json").read_text())["ended"]["text"]
    assert ended.startswith("times: exited with 0; accesses: ")


# ---- the same program in both passes ---------------------------------------------------------


def test_standard_input_from_a_pipe_is_refused(pasta_preload: Any, compile_c: Any) -> None:
    program = compile_c(f"{COUNTED} int main(void) {{ pass(); launch(1); return 0; }}")
    done = pasta_preload(program, options=TWICE, input="text")
    assert done.exit_status == 2
    assert done.lines == [
        "standard input is a pipe, which two passes cannot both read: redirect it from a file"
        " (< FILE), or from /dev/null if the program does not read it"
    ]
    assert not (done.directory / "passes").exists() and not (done.directory / "pasta-out").exists()
    # one pass reads it as ever
    assert pasta_preload(program, options=TWICE[:4], input="text").exit_status == 0


def test_standard_input_from_a_file_is_rewound(
    pasta_preload: Any, compile_c: Any, tmp_path: Path
) -> None:
    program = compile_c("""
    int main(void) {
        char text[64];
        launch(1);
        for (ssize_t count; (count = read(0, text, sizeof text)) > 0;)
            if (write(1, text, (size_t)count) != count) return 1;
        return 0;
    }""")
    (tmp_path / "input").write_text("before: all of it\n")
    with (tmp_path / "input").open() as file:
        os.lseek(file.fileno(), len("before: "), os.SEEK_SET)
        done = pasta_preload(program, options=TWICE, stdin=file)
    assert (done.exit_status, done.stdout) == (0, "all of it\n" * 2)


def test_both_passes_start_alike(pasta_preload: Any, compile_c: Any) -> None:
    """Arguments, directory, environment, umask, signals, open files."""
    program = compile_c(r"""
    extern char **environ;
    int main(int count, char **words) {
        char text[4096];
        mode_t mask = umask(0);
        umask(mask);
        launch(1);
        for (int i = 0; i < count; i++) printf("argument %s\n", words[i]);
        printf("in %s, umask %03o\n", getcwd(text, sizeof text), mask);
        for (char **each = environ; *each; each++)
            if (strncmp(*each, "PASTA_SHIM=", 11)) printf("%s\n", *each);
        for (FILE *file = fopen("/proc/self/status", "r"); fgets(text, sizeof text, file);)
            if (!strncmp(text, "SigBlk", 6) || !strncmp(text, "SigIgn", 6)) printf("%s", text);
        printf("end\n");
        return 0;
    }""")

    def ignore() -> None:
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
        os.umask(0o027)

    done = pasta_preload(program, "a b", "", options=TWICE, preexec_fn=ignore)
    first, second, rest = done.stdout.split("end\n")
    assert first == second and rest == ""
    assert "argument a b\nargument \n" in first and "umask 027" in first
    blocked = int(first.split("SigBlk:")[1].split()[0], 16)
    ignored = int(first.split("SigIgn:")[1].split()[0], 16)
    assert blocked == 1 << (signal.SIGUSR2 - 1)
    assert ignored & 1 << (signal.SIGCHLD - 1)


def test_a_program_that_is_asked_to_end_does_not_start_again(
    pasta_preload: Any, compile_c: Any
) -> None:
    program = compile_c(f"""{COUNTED}
    static void end(int number) {{ (void)number; _exit(0); }}
    int main(void) {{
        signal(SIGTERM, end);
        launch(3);
        pass();
        for (;;) pause();
    }}""")
    process = pasta_preload.popen(program, options=TWICE)
    wait_until((pasta_preload.directory / "passes").exists, "the program has started")
    process.send_signal(signal.SIGTERM)
    done = pasta_preload.finish(process)
    assert (done.exit_status, starts(done)) == (0, 1)
    assert f"{WHY}a signal ended the first" in done.lines
    assert passes_of(whole(done))["times"].launches == 3


def test_a_program_without_accelerator_runs_once(pasta_preload: Any, compile_c: Any) -> None:
    done = pasta_preload(
        compile_c(f"{COUNTED} int main(void) {{ return !pass(); }}"), options=TWICE
    )
    assert (done.exit_status, starts(done)) == (0, 1)
    assert f"{WHY}nothing was recorded in the first" in done.lines
    assert not (done.directory / "pasta-out").exists()


def test_a_second_pass_without_accelerator(pasta_preload: Any, compile_c: Any) -> None:
    source = f"{COUNTED} int main(void) {{ if (pass() == 1) launch(2); return 0; }}"
    done = pasta_preload(compile_c(source), options=TWICE)
    assert (done.exit_status, starts(done)) == (0, 2)
    assert "the passes are not joined: nothing was recorded in the second" in done.lines
    assert passes_of(whole(done))["times"].launches == 2


# ---- where runs go ---------------------------------------------------------------------------

RANKS = r"""
int main(void) {
    for (int rank = 0; rank < 2; rank++) {
        if (fork()) continue;
        char text[2] = {(char)('0' + rank), 0};
        setenv("RANK", text, 1);
        setenv("WORLD_SIZE", "2", 1);
        launch(10 * (rank + 1));
        return 0;
    }
    while (wait(NULL) > 0) {}
    return 0;
}
"""


def test_every_rank_is_joined_with_itself(pasta_preload: Any, pasta: Any, compile_c: Any) -> None:
    done = pasta_preload(compile_c(RANKS), options=(*TWICE, "-o", "job"))
    root = done.directory / "job"
    assert sorted(path.name[:9] for path in root.iterdir()) == ["passes", "rank-0000", "rank-0001"]
    for rank in range(2):
        (run,) = root.glob(f"rank-000{rank}-*")
        (scale,) = rows(run, "kernels")
        assert scale["joined"] == 10 * (rank + 1) and rows(run, "unmatched") == []
    assert done.lines[-1] == "all of them: pasta report job"
    report = pasta("report", root)
    assert report.returncode == 0 and "2 runs, 2 ranks" in " ".join(report.stdout.split())
    assert not any("not a run" in line for line in report.stdout.splitlines())


def test_a_process_of_one_pass_only_is_named(pasta_preload: Any, compile_c: Any) -> None:
    program = compile_c(f"""{COUNTED}
    int main(void) {{
        if (pass() == 2 && !fork()) {{ launch(2); return 0; }}
        launch(3);
        while (wait(NULL) > 0) {{}}
        return 0;
    }}""")
    done = pasta_preload(program, options=TWICE)
    (line,) = (line for line in done.lines if "only: " in line)
    assert line.startswith("process ") and " was recorded in the pass accesses only: " in line
    assert Path(line.rpartition("only: ")[2], "run.json").exists()


def test_replacing_and_refusing(pasta_preload: Any, compile_c: Any) -> None:
    program = compile_c(f"{COUNTED} int main(void) {{ pass(); launch(2); return 0; }}")
    fails = compile_c("int main(void) { return 5; }")
    place = ("-o", "there")
    for options in ((*TWICE, *place), (*TWICE, "-f", *place), (*TWICE, "-f", *place)):
        done = pasta_preload(program, options=options)
        assert done.exit_status == 0
    assert os.listdir(done.directory / "there" / "passes") and starts(done) == 6
    done = pasta_preload(program, options=(*TWICE, *place))
    assert done.exit_status == 2 and "there exists: replace it with -f" in done.lines[0]
    assert pasta_preload(fails, options=(*TWICE, "-f", *place)).exit_status == 5
    # without a new run the old one stays
    assert rows(done.directory / "there", "kernels")[0]["joined"] == 2
    done = pasta_preload(program, options=(*TWICE, "--root", "root"))
    (run,) = (done.directory / "root").iterdir()
    assert rows(run, "kernels")[0]["joined"] == 2
    assert not list(done.directory.glob("**/.pasta-*"))


def test_quiet(pasta_preload: Any, demo: Any) -> None:
    done = pasta_preload(demo("vadd"), options=(*TWICE, "-q"))
    assert (done.exit_status, done.lines) == (0, [])
    assert rows(whole(done), "kernels")[0]["joined"] == 1


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--set", "run.events=false"), "joining two passes requires recorded events"),
        (("--max-size", "1MiB", "--rotate"), "keeps the newest events of each pass"),
        (("--passes", "2"), "1 or auto"),
    ],
)
def test_settings_that_two_passes_exclude(
    pasta_preload: Any, compile_c: Any, options: tuple[str, ...], says: str
) -> None:
    program = compile_c(f"{COUNTED} int main(void) {{ pass(); launch(1); return 0; }}")
    done = pasta_preload(program, options=(*TWICE, *options))
    assert done.exit_status == 2
    (line,) = done.lines
    assert says in line
    assert not (done.directory / "passes").exists()


def test_tools_of_one_file_run_where_they_belong(
    pasta_preload: Any, compile_c: Any, tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(
        "from pasta.probes import Counter, probe\n"
        "from pasta.tool import Result, Tool, option\n"
        "class Plain(Tool):\n"
        "    word = option('none', help='a word')\n"
        "    def result(self): return Result(self.word)\n"
        "class Probing(Tool):\n"
        "    bytes = Counter(by='kernel')\n"
        "    @probe.global_memory\n"
        "    def count(access, maps):\n"
        "        maps.bytes.add(access.bytes)\n"
        "    def result(self): return Result(f'{self.bytes.total()}')\n"
    )
    program = compile_c("int main(void) { launch(2); return 0; }")
    options = ("--passes", "auto", "-t", str(tmp_path / "mine.py"), "--set", "plain.word=given")
    done = pasta_preload(program, options=options)
    assert done.exit_status == 0, done.lines
    run = whole(done)
    summaries = {
        (name, path.parent.name): json.loads(path.read_text())["summary"]
        for name, of in passes_of(run).items()
        for path in (of.path / "results").glob("*/result.json")
    }
    assert summaries == {("times", "plain"): "given", ("accesses", "probing"): str(2 * 2 * 128)}
    notes = json.loads((run / "results" / "joined" / "result.json").read_text())["notes"]
    assert any("no bytes: access_count did not run" in note for note in notes)
