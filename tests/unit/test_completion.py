"""Completion in bash, zsh and fish."""

from __future__ import annotations

import os
import pty
import shutil
import subprocess
from pathlib import Path

import pytest

from pasta.cli import completion
from pasta.cli.main import VERBS
from pasta.plugins import built_in_names
from tests.support.preload import TIMEOUT

#: Completes the words of each line of stdin; bash splits words at = and :, marked by spaces here.
BASH = """
source "$1"
compopt() { :; }
while IFS= read -r line; do
    read -ra COMP_WORDS <<<"$line"
    [[ $line == *' ' ]] && COMP_WORDS+=('')
    COMP_CWORD=$((${#COMP_WORDS[@]} - 1)) COMPREPLY=()
    _pasta "${COMP_WORDS[0]}"
    echo "${COMPREPLY[*]}"
done
"""
#: What is typed, and some of what is offered; the same in every shell but for what bash splits.
LINES = {
    "pasta re": {"report", "replay", "recover"},
    "pasta report --ra": {"--rank"},
    "pasta report --weight ": {"device", "host", "cpu", "bytes", "accesses"},
    "pasta diff -t kern": {"kernel_freq"},
    "pasta demo vad": {"vadd"},
    "pasta tools memor": {"memory", "memory_timeline"},
    "pasta completion ": {"bash", "zsh", "fish"},
    "pasta-preload -t copies,kern": {"copies,kernel_freq"},
    "pasta-preload -c all,even": {"all,event_trace", "all,events"},
    "pasta-preload --set ring.": {"ring.max=", "ring.directory="},
    "pasta-preload --backend ": {"auto", "nvidia", "amd", "refacc", "none"},
    "pasta-preload --profile-from-start o": {"on", "off"},
    "pasta-preload -q --rec": {"--record", "--record-accesses"},
    "pasta-preload -o exa": {"examples"},
}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "examples").mkdir()
    for shell, script in completion.SHELLS.items():
        (tmp_path / f"script.{shell}").write_text(script())
    monkeypatch.chdir(tmp_path)
    return tmp_path


def shell(*command: str | Path, given: str = "") -> list[str]:
    environment = {"PATH": os.environ["PATH"], "HOME": os.getcwd(), "TERM": "dumb"}
    done = subprocess.run(
        command, input=given, capture_output=True, text=True, timeout=TIMEOUT, env=environment
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split("\n")


def test_bash(place: Path) -> None:
    lines = {**LINES, "pasta-preload --backend = nv": {"nvidia"}}
    found = shell("bash", "-c", BASH, "bash", place / "script.bash", given="\n".join(lines) + "\n")
    for (line, offered), answer in zip(lines.items(), found, strict=False):
        assert set(answer.split()) == offered, line


def test_bash_completes_programs(place: Path) -> None:
    lines = "pasta-preload -q -t copies bas\npasta-preload -- bas\npasta-preload -k x bash -\n"
    first, second, third, _ = shell("bash", "-c", BASH, "bash", place / "script.bash", given=lines)
    assert "bash" in first.split() and first == second
    assert third == ""  # the program's own options


def test_fish(place: Path) -> None:
    if not shutil.which("fish"):
        pytest.skip("no fish")
    for line, offered in LINES.items():
        found = shell("fish", "--no-config", "-c", f"source script.fish; complete -C '{line}'")
        words = {each.partition("\t")[0].rstrip("/") for each in found if each}
        assert words == offered, line


@pytest.mark.timeout(30)
def test_zsh(place: Path) -> None:
    """In a terminal: zsh completes nowhere else. Waits for what each line must offer."""
    if not shutil.which("zsh"):
        pytest.skip("no zsh")
    process, terminal = pty.fork()
    if process == 0:
        os.environ.update(TERM="dumb", HOME=str(place), PS1="", COLUMNS="200", LINES="50")
        os.execvp("zsh", ["zsh", "-f", "-i"])

    def type_until(typed: str, wanted: set[str]) -> None:
        os.write(terminal, typed.encode())
        text = ""
        while not wanted <= set(text.replace("/", " ").split()):
            text += os.read(terminal, 4096).decode(errors="replace")

    type_until(
        "unsetopt zle_bracketed_paste; bindkey '^D' list-choices; autoload -U compinit;"
        ' compinit -D -u; source ./script.zsh; precmd() { PROMPT="$((++prompts))> " }\n',
        {"1>"},
    )
    for number, (line, words) in enumerate(LINES.items(), 2):
        type_until(f"{line}\4", {each.rpartition(",")[2] for each in words})
        type_until("\x15\n", {f"{number}>"})
    os.close(terminal)
    os.waitpid(process, 0)


def test_every_verb_and_option_is_known() -> None:
    commands = completion._commands()
    assert {f"pasta {verb}" for verb in VERBS} <= commands.keys()
    for command, found in commands.items():
        for each in found:
            known = {"", "none", completion.FILE, completion.DIRECTORY, completion.PROGRAM}
            assert each.kind in {*known, *completion.lists()} or " " in each.kind, (command, each)
    assert set(built_in_names()) <= set(completion.lists()["tools"])
