"""Progress reports of long-running work."""

from __future__ import annotations

import os
import pty
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from pasta import progress
from pasta.progress import Display, FileListener, display_progress, listening, report_progress


def test_only_the_listening_thread_reports_progress() -> None:
    import threading

    reported: list[tuple[str, str]] = []
    with listening(lambda what, how_far: reported.append((what, how_far))):
        report_progress("mine", "1 of 2")
        thread = threading.Thread(target=report_progress, args=("theirs",))
        thread.start()
        thread.join()
    report_progress("late")
    assert reported == [("mine", "1 of 2")]


def test_file_listener_writes_every_step_and_throttles_progress(tmp_path: Path) -> None:
    path = tmp_path / "1-0.progress"
    assert progress.read(path) == ""
    written = FileListener(path)
    for number in range(3):
        written("reading events", f"{number} of 3")
    assert progress.read(path) == "reading events, 0 of 3"
    written("writing the report", "")
    assert progress.read(path) == "writing the report"
    gone = FileListener(tmp_path / "no" / "such")
    gone("a step", "")  # a removed session is not an error


def test_one_line_after_a_delay_without_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    display = Display("writing the run", lines.append)
    display.show(lambda: "too early")
    monkeypatch.setattr(progress, "_LINE_SECONDS", 0)
    display.show(lambda: "reading code of 101 kernels, 12 of 101")
    display.show(lambda: "later")
    display.close()
    assert lines == ["writing the run: reading code of 101 kernels, 12 of 101"]


@pytest.mark.parametrize(("quiet", "reported"), [(False, "pasta: replaying: step\n"), (True, "")])
def test_progress_of_work_in_this_process(
    quiet: bool, reported: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "_LINE_SECONDS", 0)
    with display_progress("replaying", quiet=quiet):
        report_progress("step")
        time.sleep(3 * progress._TICK_SECONDS)
    assert capsys.readouterr() == ("", reported)


def test_closed_terminal_is_not_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run must be written even if the terminal of its launcher is closed."""
    primary, terminal = pty.openpty()
    stderr = os.fdopen(terminal, "w")
    monkeypatch.setattr(sys, "stderr", stderr)
    monkeypatch.setattr(progress, "_TERMINAL_SECONDS", 0)
    display = Display("writing the run", lambda text: None)
    display.show(lambda: "reading events")
    os.close(primary)
    for _ in range(3):
        display.show(lambda: "writing the report")
    display.close()
    with suppress(OSError):
        stderr.close()
