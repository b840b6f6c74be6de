"""Files written by `pasta new-tool` work unchanged."""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from pasta.cli import tools
from pasta.config import Config
from pasta.errors import ToolError
from pasta.plugins import load_tools
from pasta.scaffold import new_tool


@pytest.mark.parametrize("name", ["my_tool", "MyTool", "my-tool"])
def test_a_new_tool_passes_its_test_and_runs_by_its_preset(name: str, tmp_path: Path) -> None:
    written = new_tool(name, tmp_path / "tools")
    assert [path.name for path in written] == ["my_tool.py", "test_my_tool.py", "my_tool.toml"]
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(written[1])],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert "1 passed" in run.stdout, run.stdout + run.stderr
    config = Config()
    config.load(str(written[2]))
    (tool,) = load_tools(config.tools, config.tool_options, config.tool_paths)
    assert tool.name == "my_tool"


def test_the_description_of_a_tool_ends_with_a_command_that_finds_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, *_ = new_tool("my_tool", tmp_path / "my tools")
    place = ["--tool-path", str(path.parent)]
    for given, command in (
        ([str(path)], ["-t", str(path)]),
        (["my_tool", *place], [*place, "-t", "my_tool"]),
        (["copies"], ["-t", "copies"]),
    ):
        parser = argparse.ArgumentParser()
        tools.prepare(parser)
        tools.run(parser.parse_args(given))
        last = "".join(capsys.readouterr().out.partition("run it: ")[2].splitlines())
        assert shlex.split(last) == ["pasta-preload", *command, "PROGRAM"]


def test_existing_files_are_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text("kept")
    with pytest.raises(ToolError, match=r"mine\.toml exists"):
        new_tool("mine", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.toml"]


@pytest.mark.parametrize("name", ["", "1st", "../up", "class", "a b", "a__b", "a_1", "näme"])
def test_invalid_tool_names_are_rejected(name: str, tmp_path: Path) -> None:
    with pytest.raises(ToolError, match="is not a valid tool name"):
        new_tool(name, tmp_path)
    assert not list(tmp_path.iterdir())
