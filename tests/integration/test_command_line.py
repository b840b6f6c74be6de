"""The commands for a new user: lists, suggestions, one-line errors."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pasta.cli.main import VERBS
from pasta.plugins import built_in_names
from tests.support.places import ROOT
from tests.support.preload import base_environment, cli

EXAMPLE = ROOT / "examples" / "runs" / "gpt-h200"
PROBE = """
from pasta.probes import Counter, probe
from pasta.tool import Result, Tool
class Reads(Tool):
    bytes = Counter(by="kernel")
    @probe.globl_memory
    def count(access, maps): maps.bytes.add(access.bytes)
    def result(self): return Result("")
"""


@pytest.mark.main
@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["reprot"], "unknown verb 'reprot': did you mean report or prepare?"),
        (["xyz"], "unknown verb 'xyz': known names: analyze, attach, completion, demo, "),
        (["report", "--htlm"], "unknown option --htlm: did you mean --html"),
        (["replay", "--tol", "x", "DIR"], "unknown option --tol: did you mean --tool"),
        (["replay"], "the following arguments are required: DIR: see pasta replay --help"),
        (["report", "--rank", "x"], "argument --rank: invalid int value: 'x': see pasta report"),
        (["report", EXAMPLE, "-n", "0"], "argument -n/--rows: '0' is not a whole number from 1"),
        (["report", EXAMPLE, "-n", "9" * 400], "argument -n/--rows: '999"),
        (["demo", "convlution"], "unknown demo 'convlution': did you mean convolution?"),
        (["merge", "a", "b"], "unexpected argument 'b': see pasta merge --help"),
        (["tools", "hotnes"], "there is no tool 'hotnes': did you mean hotness?"),
        (["tools", "./README.md"], "tool file README.md does not exist: name a .py file"),
        (["replay", EXAMPLE, "-t", "copies,"], "-t 'copies,': a name is empty: write NAME,NAME"),
        (
            ["replay", EXAMPLE, "-t", "copies,coppies"],
            "there is no tool 'coppies': did you mean co",
        ),
        (["report"], "no run in pasta-out or the current directory: pasta report DIR"),
    ],
)
def test_an_error_is_one_line_with_a_remedy(pasta, arguments: list[str], line: str) -> None:
    done = pasta(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"pasta: {line}")
    assert done.stderr.count("\n") == 1


def test_an_unknown_option_of_pasta_preload(pasta_preload) -> None:
    done = pasta_preload.bare("--kernel-regexp", "x", "echo", "never")
    assert (done.exit_status, done.stdout) == (2, "")
    assert done.stderr == "pasta: unknown option --kernel-regexp: did you mean --kernel-regex?\n"


@pytest.mark.main
def test_pasta_alone_prints_its_help(pasta) -> None:
    done = pasta()
    assert (done.returncode, done.stdout) == (2, "")
    assert all(verb in done.stderr for verb in VERBS)


def test_lists_of_tools_with_commas(pasta, pasta_preload, compile_c) -> None:
    program = compile_c("int main(void) { launch(3); return 0; }")
    done = pasta_preload(
        program, options=("-t", "kernel_freq,copies", "-c", "memory_timeline,copies")
    )
    assert done.exit_status == 0
    results = {each.name for each in (done.run.path / "results").iterdir()}
    assert results == {"kernel_freq", "copies", "memory_timeline"}
    same = pasta("diff", done.run.path, done.run.path, "-t", "kernel_freq.kernels,copies")
    assert (same.returncode, same.stderr) == (0, "")


def test_file_name_with_a_comma(pasta, tmp_path: Path) -> None:
    (tmp_path / "a,b.py").write_text("x = 1")
    done = pasta("replay", EXAMPLE, "-t", tmp_path / "a,b.py")
    assert done.stderr.startswith(f"pasta: {tmp_path}/a,b.py defines no tool")


@pytest.mark.main
def test_tools_are_listed_once_and_presets_list_their_tools(pasta) -> None:
    done = pasta("tools", environment={"COLUMNS": "150"})
    lines = [line.split() for line in done.stdout.splitlines() if line.strip()]
    for name in built_in_names():
        assert sum(line[0] == name for line in lines) == 1
    (torch,) = (line for line in lines if line[0] == "torch")
    contained = ["operators,", "tensors,", "memory_timeline,", "kernel_freq,", "copies"]
    assert torch[-len(contained) :] == contained
    assert ".toml" not in done.stdout


def test_one_tool_with_its_options_tables_and_needs(pasta) -> None:
    done = pasta("tools", "coalescing", environment={"COLUMNS": "150"})
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("coalescing: Sectors that global memory instructions access")
    assert "wasted_share" in done.stdout and "an integer, at least 1" in done.stdout
    assert "efficiency, wasted_bytes" in done.stdout
    assert "needs probes" in done.stdout
    assert "pasta-preload -t coalescing" in done.stdout


@pytest.mark.main
def test_report_selects_and_names_the_latest_run(pasta, tmp_path: Path) -> None:
    for place, written in (("pasta-out/old", 1), ("here", 3), ("pasta-out/new", 2)):
        (tmp_path / place).mkdir(parents=True)
        content = (EXAMPLE / "run.json").read_text()
        (tmp_path / place / "run.json").write_text(content)
        os.utime(tmp_path / place / "run.json", (written, written))
    done = pasta("report")
    assert (done.returncode, done.stderr) == (0, "pasta: the latest run here: here\n")
    os.utime(tmp_path / "pasta-out" / "new" / "run.json", (9, 9))
    done = pasta("report", "--json", "-")
    assert done.stderr == "pasta: the latest run here: pasta-out/new\n"
    assert done.stdout.startswith("{")


def test_unknown_probe_decorator(pasta, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(PROBE)
    done = pasta("replay", EXAMPLE, "-t", "./mine.py")
    assert "mine.py:6: AttributeError: there is no @probe.globl_memory: use global_memory" in (
        done.stderr
    )
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("verb", ["tools", "--help"])
def test_output_pipe_is_closed_early(tmp_path: Path, verb: str) -> None:
    with subprocess.Popen(
        [*cli("pasta"), verb], env=base_environment(), cwd=tmp_path,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdout and process.stderr
        process.stdout.close()
        assert process.stderr.read() == b""


def test_no_space_for_the_output(tmp_path: Path) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*cli("pasta"), "tools"], env=base_environment(), stdout=full, stderr=subprocess.PIPE
        )
    assert (done.returncode, done.stderr) == (2, b"pasta: No space left on device\n")


def test_interrupted(tmp_path: Path) -> None:
    """By Ctrl-C during work, here while reading a tool."""
    interrupt = "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(60)\n"
    (tmp_path / "slow.py").write_text(interrupt)
    for command in (
        [*cli("pasta"), "tools", "./slow.py"],
        [*cli("pasta-preload"), "-t", "./slow.py", "true"],
    ):
        done = subprocess.run(
            command, env=base_environment(), cwd=tmp_path, stderr=subprocess.PIPE, timeout=30
        )
        assert (done.returncode, done.stderr) == (130, b"")


@pytest.mark.parametrize("verb", [*VERBS, None])
def test_help_fits_a_screen(verb: str | None) -> None:
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from pasta.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-I", "-c", code, *([verb] if verb else []), "--help"],
        capture_output=True, text=True, env={**base_environment(), "COLUMNS": "80"},
    )  # fmt: skip
    assert done.returncode == 0
    assert all(len(line) <= 80 for line in done.stdout.splitlines())
    assert len(done.stdout.splitlines()) < 50


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_is_documented(verb: str) -> None:
    assert f"`pasta {verb}" in (ROOT / "docs" / "command-line.md").read_text()
