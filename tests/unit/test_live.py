"""The live view of a program: its contents, and that it leaves the program's lines unchanged."""

from __future__ import annotations

import fcntl
import json
import os
import re
import struct
import termios
from pathlib import Path
from typing import Any

import pyte
import pytest

from pasta.runtime import live
from pasta.runtime.live import LiveCounts, LiveView, Progress
from pasta.testing import Events
from tests.support.allocators import allocating


class FakeRing:
    tail = 640

    def __init__(self, lost: int = 0) -> None:
        self._lost = lost

    def dropped(self) -> dict[str, int]:
        return {"kernel_launch": self._lost} if self._lost else {}


@pytest.fixture
def counted(tmp_path: Path) -> Path:
    """Counts written by a collector: 6 launches, 4 of them complete, and 3 allocations."""
    events = Events()
    for kernel, nanoseconds in (("fast", 10), ("slow", 1000)):
        for _ in range(3):
            ordinal = events.launch(kernel)
            if ordinal % 3:
                events.complete(ordinal, 500, 500 + nanoseconds)
    events.alloc(0x1000, 1 << 20)
    events.alloc(0x2000, 1 << 21)
    events.free(0x1000)
    events.alloc(0x2000, 1 << 10)  # the free before it was missed
    events.tensor_alloc(0x9000, 512, allocated=4096, reserved=1 << 20)
    counts = LiveCounts(events.strings)
    for batch in events.batches([4, 9]):
        counts.add(batch)
    path = tmp_path / "1-1.live"
    counts.write(path, now=True)
    return path


def test_counts_match_the_events(counted: Path) -> None:
    document = json.loads(counted.read_text())
    assert document == {
        "events": 16, "launches": 6, "time": 2020, "memory": 1024, "peak": 3 << 20,
        "allocated": 4096, "kernels": [["slow", 3, 2000], ["fast", 3, 20]],
    }  # fmt: skip


@pytest.mark.parametrize(("dense", "split"), [(True, 8), (False, 6)])
def test_allocated_bytes_follow_from_tensors(dense: bool, split: int, tmp_path: Path) -> None:
    events = allocating(dense=dense)
    counts, found = LiveCounts(events.strings), []
    for batch in events.batches([split]):
        counts.add(batch)
        counts.write(tmp_path / "1-1.live", now=True)
        found.append(json.loads((tmp_path / "1-1.live").read_text())["allocated"])
    assert found == [700, 350]


def test_processes_are_summed(counted: Path, tmp_path: Path) -> None:
    progress = Progress(4.0)
    for ring in (FakeRing(), FakeRing(lost=7)):
        progress.add(ring, counted)
    progress.add(FakeRing(), tmp_path / "none")  # its collector has not written yet
    before = Progress(2.0, events=12)
    assert progress.parts(before) == (
        "4 s, 3 processes, 32 events (10/s), 7 LOST, 12 launches, 4.04 us of device time",
        "2.00 KiB live, peak 6.00 MiB, 8.00 KiB allocated by frameworks",
    )
    assert progress.top() == [("slow", 6, 4000), ("fast", 6, 40)]
    lines = progress.lines(before, 40)
    assert len(lines) == 5
    assert max(map(len, lines)) == 40


def test_names_are_escaped() -> None:
    progress = Progress(1.0, kernels={"\x1b[2J\nname": [1, 5]}, time=5)
    (line,) = (line for line in progress.lines(None, 80) if "name" in line)
    assert line.endswith(r"\x1b[2J\nname")


@pytest.fixture
def terminal() -> Any:
    """A terminal of 60 x 24: the end to write to, and a function that returns its contents."""
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 60, 0, 0))
    screen = pyte.Screen(60, 24)
    stream = pyte.ByteStream(screen)
    os.set_blocking(ours, False)

    def display() -> list[str]:
        try:
            while True:
                stream.feed(os.read(ours, 1 << 16))
        except BlockingIOError:
            return [line.rstrip() for line in screen.display]

    with open(theirs, "w") as output:
        yield output, display
    os.close(ours)


def test_program_output_scrolls_above_the_view(
    counted: Path, terminal: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "_SHOW_SECONDS", 0)
    output, display = terminal
    view = LiveView(lambda _: None, output)
    for number in range(40):
        output.write(f"line {number}\n")
        output.flush()
        view.show([(FakeRing(), counted)])
        shown = display()
    assert shown[:16] == [*(f"line {number}" for number in range(25, 40)), ""]
    assert shown[16] == "─" * 60
    assert re.match(r"\d+ s, 16 events", shown[17])
    assert shown[18].startswith("1.00 KiB live, peak 3.00 MiB")
    assert [line.split()[-1] for line in shown[19:21]] == ["slow", "fast"]
    view.close()
    output.write("after\n" * 3)
    output.flush()
    shown = display()
    assert shown[:19] == [*(f"line {number}" for number in range(25, 40)), *["after"] * 3, ""]
    assert not any(shown[19:])


def test_closed_terminal_is_ignored(counted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "_SHOW_SECONDS", 0)
    ours, theirs = os.openpty()
    with open(theirs, "w") as output:
        view = LiveView(lambda _: None, output)
        os.close(ours)
        for _ in range(2):
            view.show([(FakeRing(), counted)])
        view.close()


def test_periodic_lines_without_a_terminal(
    counted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    with (tmp_path / "log").open("w") as output:
        view = LiveView(said.append, output)
        view.show([(FakeRing(), counted)])
        assert said == []
        monkeypatch.setattr(live, "_LINE_SECONDS", 0)
        view.show([(FakeRing(), counted)])
        view.show([])  # no process uses an accelerator
        view.close()
    assert len(said) == 1
    assert "6 launches" in said[0]
    assert (tmp_path / "log").read_text() == ""


def test_long_names_are_shortened_as_in_reports() -> None:
    name = "at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, int>"
    view = Progress(1.0, processes=1, launches=3, time=9, kernels={name: [3, 9]})
    for width in (60, 80):
        *_, line = view.lines(None, width)
        assert len(line) == width and "…vectorized" in line and line.endswith(", int>")
    assert view.lines(None, 200)[-1].endswith(name)
