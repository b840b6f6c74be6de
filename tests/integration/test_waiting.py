"""Progress shown while a run is written or replayed."""

from __future__ import annotations

import os
import pty
import re
import subprocess
from pathlib import Path

import pytest

from tests.support.preload import TIMEOUT, base_environment, cli

SLOW = """\
import time
from pasta.tool import Result, Tool


class Slow(Tool):
    def result(self) -> Result:
        time.sleep(1.6)
        return Result("slept")
"""


def on_a_terminal(directory: Path, *command: str | Path) -> tuple[str, str]:
    """Output of a command to a pipe (stdout) and to a terminal (stderr)."""
    primary, terminal = pty.openpty()
    process = subprocess.Popen(
        [*map(str, command)], cwd=directory, env={**base_environment(), "TERM": "xterm"},
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=terminal, text=True,
    )  # fmt: skip
    os.close(terminal)
    printed = b""
    try:
        while part := os.read(primary, 1 << 16):
            printed += part
    except OSError:  # how Linux reports that the terminal is closed
        pass
    os.close(primary)
    stdout, _ = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 0, printed
    return stdout, printed.decode()


def test_terminal_shows_progress(pasta_preload, demo) -> None:
    """The launcher shows the collector's progress, replay its own; stdout has none."""
    tool = pasta_preload.directory / "slow.py"
    tool.write_text(SLOW)
    preload = [*cli("pasta-preload"), "-t", tool, "-o", "run"]
    bare = subprocess.run([demo("vadd")], capture_output=True, text=True, check=True)
    stdout, printed = on_a_terminal(pasta_preload.directory, *preload, "--", demo("vadd"))
    assert re.sub(r"\d", "", stdout) == re.sub(r"\d", "", bare.stdout)
    assert "writing the run: computing results of slow, tool 1 of 1" in printed
    assert "slow: slept" in printed  # the report, after it
    replay = [*cli("pasta"), "replay", "run", "-t", tool]
    stdout, printed = on_a_terminal(pasta_preload.directory, *replay, "-o", "again")
    assert "replaying run: computing results of slow" in printed and "\x1b[2K" in printed
    assert "slow: slept" in stdout and "replaying" not in stdout
    stdout, printed = on_a_terminal(pasta_preload.directory, *replay, "-o", "quiet", "-q")
    assert (stdout, printed) == ("", "")


@pytest.mark.main
def test_pipe_shows_no_progress_of_short_work(pasta_preload, demo, pasta) -> None:
    done = pasta_preload(demo("vadd"))
    assert "writing the run" not in done.stderr
    for verb in (("report",), ("replay", "-t", "copies")):
        printed = pasta(verb[0], done.run.path, *verb[1:])
        assert printed.returncode == 0 and printed.stderr == ""
