"""pasta-preload before the program starts, and how tests find the sessions of theirs."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from pasta.cli import preload
from pasta.cli.parser import INTERRUPTED, USAGE
from pasta.errors import ConfigError, RunError
from tests.support.places import ROOT
from tests.support.preload import Preload


@pytest.mark.parametrize(
    ("error", "status"), [(KeyboardInterrupt(), INTERRUPTED), (RunError("no"), USAGE)]
)
def test_no_session_is_left_where_a_backend_is_not_prepared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, status: int
) -> None:
    places = []

    def prepare(session: preload.Session, _program: str) -> None:
        places.append(session.directory)
        raise error

    monkeypatch.setattr(preload, "_prepare_backends", prepare)
    monkeypatch.chdir(tmp_path)
    umask = os.umask(0o077)
    try:
        given = preload.main(["--set", f"ring.directory={tmp_path}", "--", "true"])
    finally:
        os.umask(umask)
    assert given == status
    assert len(places) == 1 and places[0].parent == tmp_path and not places[0].exists()


@pytest.mark.parametrize(
    ("option", "setting", "refused"),
    [
        *(("--operator", f"torch.{name}=no", False) for name in ("follow", "stacks", "modules")),
        *(("--module", f"torch.{name}=no", True) for name in ("follow", "stacks", "modules")),
        ("--module", "torch.frames=0", True),
        ("-k", "torch.follow=no", False),
    ],
)
def test_selection_by_what_is_not_recorded(option: str, setting: str, refused: bool) -> None:
    given = preload.parse([option, "x", "--set", setting, "--", "true"])
    if not refused:
        preload.configure(given)
        return
    with pytest.raises(ConfigError) as raised:
        preload.configure(given)
    text = f"{option} selects no launches of PyTorch with {setting}: use only one of them"
    assert str(raised.value) == text


@pytest.mark.parametrize("wrong", ["-x", "app", "-t", "-t 'a", "--rot"])
def test_options_of_the_environment(
    wrong: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """They precede those of the command line; whatever is wrong is said to be there."""
    monkeypatch.setenv("PASTA_OPTIONS", "-t copies --root '/a b' --passes auto")
    given = preload.parse(["-t", "events", "--passes", "1", "--", "app", "-x"])
    assert (given.tool, given.root, given.passes) == (["copies", "events"], "/a b", "1")
    assert given.command[-2:] == ["app", "-x"]
    monkeypatch.setenv("PASTA_OPTIONS", wrong)
    with pytest.raises(SystemExit, match=str(USAGE)):
        preload.parse(["app"])
    assert capsys.readouterr().err.startswith("pasta: PASTA_OPTIONS: ")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ("-t kernel_freq", ""),
        (
            "-t kernel_freq --operator x --set torch.follow=no",
            "--operator selects no launches of PyTorch with torch.follow=no",
        ),
        ("-t kernel_freq -t access_count --sample", ""),
        (
            "-t kernel_freq -t copies --sample",
            "--sample has no effect: no selected tool has probes (kernel_freq, copies)",
        ),
        (
            "-t copies --overhead-budget 5% --set probes.every=2",
            "probes.every, --overhead-budget have no effect: no selected tool has probes (copies)",
        ),
    ],
)
def test_options_without_effect_are_named(options: str, text: str) -> None:
    given = preload.parse([*options.split(), "--", "app"])
    assert preload.without_effect(*preload.configure(given)) == [text] * bool(text)


def test_sessions_of_former_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A killed test leaves its session, and pids come again."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    pid = 1 << 22  # no process has it
    (tmp_path / f"pasta-{os.getuid()}-{pid}-0000000000000000").mkdir()
    started = Preload(tmp_path)
    started.launchers.append(pid)
    assert started.sessions() == []
    mine = tmp_path / f"pasta-{os.getuid()}-{pid}-0000000000000001"
    (mine / "rings").mkdir(parents=True)
    assert started.sessions() == [mine]
    assert f"{mine}: rings" in started.explained()


def test_no_built_in_tool_reads_returns_of_launch_calls() -> None:
    """Otherwise --sample would have to record them (`_may_read_returns`)."""
    files = sorted((ROOT / "tools").rglob("*.py"))
    reading = [file.name for file in files if re.search(r"launch_ends?\b", file.read_text())]
    assert len(files) > 30 and not reading
