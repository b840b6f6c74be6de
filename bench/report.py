"""The HTML report of a large run: its making, its size, and its timeline in a browser.

The run is synthetic: two nested operators, a launch and a kernel per round, with tensors, on two
threads. It has a million slices. Times in the browser are those that Chromium measures, without an
accelerator; they need selenium, Chromium and its driver.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.figures import Figure
from bench.runs import absent, report

if TYPE_CHECKING:
    from pasta.processors.batch import Batch
    from pasta.processors.strings import Strings

#: Slices: four per round.
SLICES = 1_000_000
_BATCH = 4096  # rounds
_OPERATORS = 60
_KERNELS = 40
_MIB = 1 << 20


def write_run(path: Path, slices: int = SLICES) -> None:
    """Writes a run whose timeline has `slices` slices."""
    from pasta.processors.strings import Strings
    from pasta.run.directory import SCHEMA, RunDirectory
    from pasta.run.events import Recorder

    run = RunDirectory.create(path)
    strings = Strings()
    recorder = Recorder(run.events, strings)
    rounds = slices // 4
    for first in range(0, rounds, _BATCH):
        recorder.add(_rounds(first, min(_BATCH, rounds - first), strings))
        if recorder.full:
            recorder.flush()
    recorder.flush()
    run.write_manifest(
        {
            "schema": SCHEMA, "command": ["bench"], "executable": "bench", "host": "here",
            "pid": 1, "parent": 0, "environment": {}, "observed_ns": 60_000 * rounds,
            "sources": {}, "start": {"realtime_ns": 0, "monotonic_ns": 0},
            "ended": {"text": "exited with 0"}, "devices": {"0": "synthetic"},
        }
    )  # fmt: skip


def _rounds(first: int, count: int, strings: Strings) -> Batch:
    """Rounds from number `first` on: operators, launch, kernel, a tensor that lives 20 rounds."""
    from pasta.processors.batch import Batch

    random = np.random.default_rng(first)
    numbers = np.arange(first, first + count)
    operator = random.zipf(1.3, count) % _OPERATORS
    kernel = (operator * 7 + random.integers(0, 2, count)) % _KERNELS
    start = 60_000 * numbers + random.integers(0, 9_000, count)
    starts = {
        "operator_begin": 2, "kernel_launch": 1, "tensor_alloc": 1, "tensor_free": 1,
        "kernel_launch_end": 1, "operator_end": 2, "kernel_complete": 1,
    }  # fmt: skip
    kinds: dict[str, Any] = {}
    for kind, times in starts.items():
        records = kinds[kind] = absent(kind, count * times)
        records["thread"] = np.repeat(1 + numbers // 1000 % 2, times)
    names = [strings.id_of(f"aten::operator_{each}") for each in range(2 * _OPERATORS)]
    at = np.cumsum(random.integers(300, 4_000, (count, 9)), axis=1) + start[:, None]
    begin, end = kinds["operator_begin"], kinds["operator_end"]
    for depth in (0, 1):
        begin["name"][depth::2] = np.asarray(names)[operator + depth * _OPERATORS]
        begin["depth"][depth::2] = end["depth"][1 - depth :: 2] = depth + 1
        begin["index"][depth::2], begin["time"][depth::2] = _placed(numbers - first, depth, at)
        end["index"][depth::2], end["time"][depth::2] = _placed(numbers - first, 6 + depth, at)
    for name in ("module", "stack", "scope"):
        begin[name] = 0
    order = {"kernel_launch": 2, "kernel_launch_end": 3, "tensor_alloc": 4, "tensor_free": 5}
    for kind, place in {**order, "kernel_complete": 8}.items():
        kinds[kind]["index"], kinds[kind]["time"] = _placed(numbers - first, place, at)
    sizes = np.random.default_rng(1).integers(1, 4_000, 1 << 20) * 512
    for kind, of in (("tensor_alloc", numbers), ("tensor_free", numbers - 20)):
        kinds[kind]["address"] = (1 << 40) + (of.astype(np.uint64) << np.uint64(22))
        kinds[kind]["bytes"] = sizes[of % len(sizes)]
        kinds[kind]["device"] = 0
    for kind in ("kernel_launch", "kernel_launch_end", "kernel_complete"):
        kinds[kind]["ordinal"] = numbers
    launch, done = kinds["kernel_launch"], kinds["kernel_complete"]
    labels = [f"void kernel_{each}<float, {each}>(float*)" for each in range(_KERNELS)]
    launch["name"] = np.asarray([strings.id_of(each) for each in labels])[kernel]
    launch["grid"], launch["block"], launch["stream"] = (64, 1, 1), (128, 1, 1), 7
    done["start"] = 60_000 * numbers + 20_000 + random.integers(0, 2_000, count)
    done["end"] = done["start"] + (800 * (1 + kernel) + random.integers(0, 900, count)).astype("u8")
    done["stream"] = 7
    return Batch(9 * first, kinds)


def _placed(numbers: Any, place: int, at: Any) -> tuple[Any, Any]:
    """Index and time of the event at a place of its round."""
    return 9 * numbers + place, at[:, place]


_ZOOM = """
const done = arguments[0];
const timeline = document.querySelector('[data-timeline]').timeline;
timeline.canvas.scrollIntoView({ block: 'end' });
timeline.canvas.focus();
const times = [];
const drawn = [];
let step = 0;
const picture = timeline.picture.bind(timeline);
timeline.picture = () => {
  const start = performance.now();
  picture();
  drawn.push(performance.now() - start);
};
const box = timeline.canvas.getBoundingClientRect();
function frame(now) {
  times.push(now);
  const deltaY = step < 120 ? -40 : 40; // zooms in by 10,000 times, and out
  timeline.canvas.dispatchEvent(new WheelEvent('wheel', {
    deltaY, cancelable: true, clientX: box.left + 0.37 * box.width, clientY: box.top + 90,
  }));
  if (++step < 240) requestAnimationFrame(frame);
  else done([times, drawn, timeline.view]);
}
requestAnimationFrame(frame);
"""
_OPENED = """
return document.documentElement.dataset.ready === undefined ? null : performance.now();
"""


def measure() -> list[Figure]:
    """What the report takes, then the time to open it and the rate of frames."""
    with tempfile.TemporaryDirectory() as directory:
        run, page = Path(directory) / "run", Path(directory) / "report.html"
        write_run(run)
        _, seconds, memory = report(run, "--html", str(page))
        figures = [
            Figure("report: HTML of a million slices, CPU time", seconds, "s", most=30),
            Figure("report: … memory", memory / _MIB, "MiB", most=1500),
            Figure("report: … size", page.stat().st_size / _MIB, "MiB", most=8),
        ]
        return figures + _in_browser(page)


def _in_browser(page: Path) -> list[Figure]:
    try:
        from selenium import webdriver
    except ImportError:
        print("selenium is not installed: nothing is measured in a browser", file=sys.stderr)
        return []
    options = webdriver.ChromeOptions()
    for argument in ("--headless", "--no-sandbox", "--disable-gpu", "--window-size=1440,900"):
        options.add_argument(argument)
    driver = shutil.which("chromedriver")
    service = webdriver.ChromeService(driver)  # otherwise selenium looks for one in the network
    browser = webdriver.Chrome(options=options, service=service)
    try:
        opened = min(_open(browser, page) for _ in range(3))
        frames, pictures, _ = browser.execute_async_script(_ZOOM)
    finally:
        browser.quit()
    gaps = np.diff(frames)
    return [
        Figure("report: … opened by Chromium", opened / 1000, "s", most=1.5),
        Figure(
            "report: … frames while zooming, median", 1000 / float(np.median(gaps)), "1/s", least=58
        ),
        Figure("report: … a frame, p95", float(np.quantile(pictures, 0.95)), "ms", most=16),
    ]


def _open(browser: Any, page: Path) -> float:
    """Milliseconds from the beginning of the navigation until all is drawn."""
    browser.get("about:blank")
    browser.get(page.as_uri())
    for _ in range(600):
        found = browser.execute_script(_OPENED)
        if found is not None:
            return float(found)
        time.sleep(0.02)
    raise RuntimeError("the page was not drawn in 12 s")
