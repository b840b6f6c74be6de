"""Makes docs/pictures: parts of HTML reports of real runs, photographed by Chromium.

`python -m docs.screenshots` runs the programs (PyTorch on the reference accelerator and on the
CPU), replays the shipped run of an H200, and writes WebP files of at most 150 kB. It needs PyTorch,
selenium, and Chromium with its driver (Debian: chromium, chromium-driver).
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from base64 import b64decode
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from selenium import webdriver

ROOT = Path(__file__).parents[1]
PICTURES = ROOT / "docs" / "pictures"
_MAX_BYTES = 150_000
_QUALITY = 82


@dataclass(frozen=True)
class Picture:
    """A part of a report: from the top of the element `first` to the bottom of `last`.

    `scripts` run before; a page is at most `height` pixels of it.
    """

    name: str
    run: str
    first: str
    last: str
    width: int = 1040
    height: int = 900
    scale: float = 1.5
    scripts: tuple[str, ...] = ()


_SECTION = """
const section = document.querySelector("#timeline-section");
const search = section.querySelector("input[type=search]");
const canvas = section.querySelector("canvas");
const press = (element, key) => element.dispatchEvent(new KeyboardEvent("keydown", {key}));
const find = (text) => { search.value = text; search.dispatchEvent(new Event("input")); };
"""
#: Zooms the timeline to the tenth step of the optimizer, and then out to what is around it.
_ZOOM = (
    f"{_SECTION} find('Optimizer.step')",
    f"{_SECTION} for (let i = 0; i < 10; i++) press(search, 'Enter'); press(canvas, 'f')",
    f"""{_SECTION} const out = section.querySelector("[aria-label='Zoom out']");
    for (let i = 0; i < 2; i++) out.click(); find('')""",
)
PICTURES_OF = (
    Picture("overview", "mlp", "header", "#overview ol", height=700),
    Picture("phone", "mlp", "header", "#overview ol", width=390, height=844),
    Picture(
        "timeline", "mlp", "#timeline-section", "#timeline-section canvas",
        height=640, scripts=_ZOOM,
    ),
    Picture("flame", "gpt", "#flame-graph", "#flame-graph", height=420),
    Picture(
        "memory", "growing", "#tool-memory_timeline", "#tool-memory_timeline figure",
    ),
)  # fmt: skip


def _command(name: str) -> list[str]:
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); "
    entry = name.replace("-", "_")
    return [sys.executable, "-I", "-c", f"{code}from pasta_entry import {entry}; {entry}()"]


def _record(directory: Path) -> None:
    """The runs, below `directory`."""
    for name in ("refacc_mlp.py", "torch_refacc"):
        where = ROOT / "examples" / "torch" / name
        (directory / name).symlink_to(where)
    shutil.copy(ROOT / "examples" / "tutorials" / "out_of_memory.py", directory / "train.py")
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    preload = _command("pasta-preload")
    tools = "operators,tensors,utilization,kernel_freq,copies,memory_timeline"
    mlp = ["python", "refacc_mlp.py", "--steps", "60"]
    gpt = ROOT / "examples" / "runs" / "gpt-h200"
    for command in (
        mlp,  # builds the extension of the device
        [*preload, "-q", "-o", "mlp", "-t", tools, "--", *mlp],
        [*preload, "-q", "-o", "growing", "-c", "torch", "--", "python", "train.py"],
        [*_command("pasta"), "replay", str(gpt), "-o", "gpt", "-t", tools],
    ):
        subprocess.run(
            command, cwd=directory, check=True, stdout=subprocess.DEVNULL,
            env={**os.environ, "PATH": path},
        )  # fmt: skip


def _open() -> webdriver.Chrome:
    driver = shutil.which("chromedriver")
    if not driver:
        sys.exit("chromedriver was not found: install chromium and chromium-driver")
    options = webdriver.ChromeOptions()
    for option in ("--headless=new", "--no-sandbox", "--hide-scrollbars"):
        options.add_argument(option)
    return webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))


def _capture(browser: Any, page: Path, picture: Picture) -> bytes:
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": picture.width, "height": picture.height, "deviceScaleFactor": picture.scale,
         "mobile": picture.width < 600},
    )  # fmt: skip
    browser.get(page.as_uri())
    time.sleep(3)  # until it is drawn, also on a loaded machine
    for script in picture.scripts:
        browser.execute_script(script)
        time.sleep(1)
    left, top, bottom = browser.execute_script(
        "const box = name => document.querySelector(name).getBoundingClientRect();"
        "const first = box(arguments[0]), last = box(arguments[1]);"
        "return [first.left, first.top + scrollY, last.bottom + scrollY]",
        picture.first, picture.last,
    )  # fmt: skip
    left, top = max(left - 12, 0), max(top - 6, 0)
    clip = {
        "x": left, "y": top, "width": picture.width - left,
        "height": min(bottom + 4 - top, picture.height), "scale": 1,
    }  # fmt: skip
    taken = browser.execute_cdp_cmd(
        "Page.captureScreenshot",
        {"format": "webp", "quality": _QUALITY, "clip": clip, "captureBeyondViewport": True},
    )
    return b64decode(taken["data"])


def main() -> None:
    """Records the runs, and writes every picture, or those named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="pictures (default: all)")
    names = parser.parse_args().names
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch)
        _record(directory)
        browser = _open()
        try:
            for picture in PICTURES_OF:
                if names and picture.name not in names:
                    continue
                page = directory / f"{picture.run}.html"
                if not page.exists():
                    report = [*_command("pasta"), "report", picture.run, "--html", str(page)]
                    subprocess.run(report, cwd=directory, check=True, stdout=subprocess.DEVNULL)
                image = _capture(browser, page, picture)
                if len(image) > _MAX_BYTES:
                    sys.exit(f"{picture.name}: {len(image):,} bytes are too many")
                (PICTURES / f"{picture.name}.webp").write_bytes(image)
                print(f"{picture.name}.webp: {len(image):,} bytes")
        finally:
            browser.quit()


if __name__ == "__main__":
    main()
