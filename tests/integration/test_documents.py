"""README and docs are correct: commands, output, tools, programs, TOML, links."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pasta.cli import preload
from pasta.cli.main import parse
from pasta.config import Config
from pasta.plugins import built_in_names, find_tools
from pasta.scaffold import new_tool
from tests.support.places import ROOT
from tests.support.preload import base_environment, cli

#: What a newcomer reads first.
FIRST_PAGES = ("README.md", "docs/index.md", "docs/start.md", "docs/tools/index.md")
README = "\n".join((ROOT / path).read_text() for path in FIRST_PAGES)
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT).with_suffix("")).removeprefix("docs/")


def blocks(text: str, language: str = "") -> list[str]:
    """Contents of the code blocks of a language."""
    found = re.findall(r"^```([\w{}-]*)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return [content for each, content in found if each == language]


def block_with(words: str, language: str = "") -> str:
    (found,) = (block for block in blocks(README, language) if words in block)
    return found


# ---- output


def words(text: str) -> set[str]:
    """Words except figures, units, host and paths: the text that is equal in every run."""
    lines = [
        line for line in text.splitlines() if not re.search("/|^pasta: process|observed", line)
    ]
    return set(re.findall(r"[A-Za-z_][A-Za-z_0-9]+", " ".join(lines))) - {"ns", "us", "ms", "pasta"}


def findings(text: str) -> tuple[str, str]:
    """The findings, and the rest; findings depend on the speed of the machine."""
    found = re.search(r"^pasta: Findings\n.*?^pasta:\n", text, re.MULTILINE | re.DOTALL)
    return (found[0], text.replace(found[0], "")) if found else ("", text)


@pytest.mark.main
def test_readme_matches_the_output_of_the_demonstration(pasta_preload, demo) -> None:
    done = pasta_preload(demo("convolution"), environment={"COLUMNS": "118"})
    printed = findings(done.stdout + done.stderr)
    shown = findings(block_with("10 iterations, correct"))
    assert words(shown[1]) == words(printed[1]), done.stdout + done.stderr
    assert words(printed[0]) <= words(shown[0]), done.stderr


# ---- commands


def commands() -> list[str]:
    lines = [line for block in blocks(README) for line in block.splitlines()]
    return [line for line in lines if re.match(r"(\.venv/bin/)?pasta[ -]", line)]


@pytest.mark.parametrize("line", commands())
def test_documented_command_is_accepted(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("my_tool", "big_copies"):
        new_tool(name, tmp_path)
    name, *given = shlex.split(line, comments=True)
    if name.endswith("pasta-preload"):
        preload.configure(preload.parser().parse_args(given))
    else:
        assert parse(given).run


def test_documented_tools_run_on_the_recorded_run(pasta) -> None:
    (line,) = (line for line in commands() if line.startswith(".venv/bin/pasta replay "))
    directory, *options = shlex.split(line)[2:]
    done = pasta("replay", ROOT / directory, *options)
    # on a slow machine its progress
    printed = [
        line for line in done.stderr.splitlines() if not line.startswith("pasta: replaying ")
    ]
    assert (done.returncode, printed) == (0, [])
    assert "tensors: " in done.stdout and "coalescing: " in done.stdout


# ---- programs and tools


@pytest.mark.main
def test_documented_tool_runs(pasta, pasta_preload, demo, tmp_path: Path) -> None:
    (tmp_path / "big_copies.py").write_text(block_with("class BigCopies", "python"))
    done = pasta_preload(demo("convolution"), options=("-t", str(tmp_path / "big_copies.py")))
    assert done.exit_status == 0
    assert "copies of at least 1,048,576 bytes" in done.stderr


def test_documented_tool_with_probe_runs(pasta_preload, demo, tmp_path: Path) -> None:
    (tmp_path / "reads.py").write_text(block_with("class Reads", "python"))
    done = pasta_preload(demo("convolution"), options=("-t", str(tmp_path / "reads.py")))
    assert done.exit_status == 0
    assert re.search(r"reads: [1-9][0-9,]+ bytes read", done.stderr)


@pytest.mark.main
def test_documented_programs_run(
    pasta_preload, demo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pasta_preload(demo("convolution"), options=("-o", "pasta-out/demo"))
    monkeypatch.chdir(pasta_preload.directory)
    for program in blocks(README, "python"):
        if "(Tool)" not in program:
            exec(program, {"step": lambda: None})


@pytest.mark.parametrize("path", DOCUMENTS, ids=_name)
def test_documented_tools_and_settings_load(path: Path, tmp_path: Path) -> None:
    text = path.read_text()
    for number, source in enumerate(blocks(text, "python")):
        if re.search(r"\((Tool|Rules)\)", source) and "import" in source:
            file = tmp_path / f"tool{number}.py"
            file.write_text(source)
            assert find_tools(str(file))
    for number, source in enumerate(blocks(text, "toml")):
        if source.startswith("[project."):  # of a package's pyproject.toml
            continue
        file = tmp_path / f"{number}.toml"
        file.write_text(source)
        Config().load(str(file))


def anchors(path: Path) -> set[str]:
    """Anchors of a page's headings, as forges and the site make them."""
    headings = re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE)
    texts = (re.sub(r"[^\w\- ]", "", each.lower()) for each in headings)
    return {each.strip().replace(" ", "-") for each in texts}


@pytest.mark.parametrize("path", DOCUMENTS, ids=_name)
def test_links_have_targets(path: Path) -> None:
    text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    for target, anchor in re.findall(r"\]\(([^)#:\s]*)(?:#([^)]*))?\)", text):
        found = path.parent / target if target else path
        assert found.exists(), target
        if anchor:
            assert anchor in anchors(found), f"{target}#{anchor}"


def test_every_tool_is_listed() -> None:
    assert sorted(re.findall(r"^\| \[(\w+)\]", README, re.MULTILINE)) == built_in_names()


# ---- tutorials

TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*-*.md"))
CI = ROOT / "docs" / "ci.md"
TUTORIAL_PROGRAMS = ROOT / "examples" / "tutorials"
#: Pages whose numbers are the same in every run.
EXACT = {"slow-kernel"}
_LEFT_OUT = "…"


def sessions(text: str) -> list[tuple[str, str]]:
    """Commands after a prompt, in order, each with the output that is shown."""
    found = []
    for block in blocks(text):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, output = part.partition("\n")
            found.append((command, output))
    return found


@pytest.mark.parametrize("page", TUTORIALS, ids=lambda path: path.stem)
def test_tutorial_shows_its_programs(page: Path) -> None:
    programs = [path.read_text() for path in TUTORIAL_PROGRAMS.iterdir() if path.is_file()]
    for code in [*blocks(page.read_text(), "python"), *blocks(page.read_text(), "c")]:
        assert any(code in program for program in programs), code


@pytest.fixture
def shell(tmp_path: Path) -> Callable[[list[str]], list[str]]:
    """Runs commands in one shell beside the tutorials' programs; the output of each."""
    bin = tmp_path / "bin"
    bin.mkdir()
    for name in ("pasta", "pasta-preload"):
        (bin / name).write_text(f'#!/bin/sh\nexec {shlex.join(cli(name))} "$@"\n')
        (bin / name).chmod(0o755)
    work = tmp_path / "work"
    shutil.copytree(TUTORIAL_PROGRAMS, work)

    def run(commands: list[str]) -> list[str]:
        end = "=== end"
        script = "".join(f"{{ {each}; }} 2>&1 || exit\necho '{end}'\n" for each in commands)
        path = os.pathsep.join([str(bin), str(Path(sys.executable).parent), os.environ["PATH"]])
        done = subprocess.run(
            ["bash", "-c", script], cwd=work, capture_output=True, text=True, timeout=280,
            env={**base_environment(), "PATH": path, "COLUMNS": "118"},
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.split(f"{end}\n")[:-1]

    return run


@pytest.mark.main
@pytest.mark.slow
@pytest.mark.process
def test_job_fails_when_the_program_launches_more(
    shell: Callable[[list[str]], list[str]], tmp_path: Path
) -> None:
    yaml = pytest.importorskip("yaml")
    job = yaml.safe_load((ROOT / "examples" / "ci" / "pasta.yml").read_text())["jobs"]["profile"]
    steps = {each["name"]: each["run"] for each in job["steps"] if "run" in each}
    (store,) = (line for line in blocks(CI.read_text()) if "baseline" in line and "git" in line)
    earlier = store.splitlines()[0].replace("./app", '"$(pasta demo convolution --path)" 9')
    outputs = shell(
        [
            "export GITHUB_STEP_SUMMARY=summary.md BASELINE=" + job["env"]["BASELINE"],
            earlier,
            steps["program"],
            steps["profile"],
            f"({steps['compare'].strip()}); echo status $?",
            steps["summary"].strip(),
            steps["report"],
            f"BASELINE=after; {steps['compare'].strip()}; echo status $?",
        ]
    )
    exceeded = "kernel_freq.kernels.launches: 45 before, 50 after (+11.11%): exceeds "
    assert exceeded in outputs[4] and outputs[4].endswith("status 1\n")
    assert outputs[-1].endswith("status 0\n")
    summary = (tmp_path / "work" / "summary.md").read_text()
    assert "**2 thresholds exceeded**" in summary and "the runs have different commands" in summary
    assert "<b>kernel_freq</b>: 50 launches" in summary
    assert "<!DOCTYPE html>" in (tmp_path / "work" / "report.html").read_text()[:100]


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.timeout(300)
@pytest.mark.parametrize("page", TUTORIALS, ids=lambda path: path.stem)
def test_tutorial_runs_as_shown(page: Path, shell: Callable[[list[str]], list[str]]) -> None:
    text = page.read_text()
    if page.stem not in EXACT:
        pytest.importorskip("torch")
    commands = sessions(text)
    for (command, shown), printed in zip(
        commands, shell([command for command, _ in commands]), strict=True
    ):
        assert words(shown) <= words(printed), command + "\n" + printed
        if page.stem in EXACT:
            lines = [" ".join(line.split()) for line in printed.splitlines()]
            for line in shown.splitlines():
                if line != _LEFT_OUT and not line.startswith("pasta: process"):
                    assert " ".join(line.split()) in lines, f"{command}\n{printed}"
