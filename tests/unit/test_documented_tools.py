"""The tools that the docs show as a whole run as they are shown."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from pasta.plugins import find_tools
from pasta.testing import Events, run_tool
from tests.support.places import ROOT

_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks_with(page: str, text: str) -> list[str]:
    """Python code of a page of the docs that has this text."""
    found = _BLOCK.findall((ROOT / "docs" / page).read_text(encoding="utf-8"))
    return [block for block in found if text in block]


def events() -> Events:
    """Two launches; block 1 of the second reads what block 0 wrote. A copy of 2 MiB."""
    made = Events()
    made.alloc(0x10000, 4096)
    made.copy("host_to_device", 0x7000, 0x10000, 2 << 20)
    made.launch("vadd", grid=(3, 2, 1))
    made.access("global", [0x10000 + 4 * lane for lane in range(32)], write=True, block=0)
    made.launch("vadd", grid=(4, 1, 1))
    made.access("global", [0x10000] * 32, block=1)
    return made


@pytest.mark.parametrize(
    ("page", "name", "summary"),
    [
        ("start.md", "BigCopies", "1 copies of at least 1,048,576 bytes"),
        ("start.md", "Reads", "128 bytes read"),
        ("writing-a-tool.md", "GridSizes", "1 kernels"),
        ("probes.md", "Reuse", "128 bytes read"),
        ("probes.md", "Exchanged", "1 words read after another block wrote them"),
        ("rules.md", "DeviceWaits", "4 calls checked by 1 rule"),
    ],
)
def test_the_tool_runs(page: str, name: str, summary: str, tmp_path: Path) -> None:
    code = next(
        block for block in blocks_with(page, f"class {name}(") if "import Result" in block
        or "import Calls" in block
    )  # fmt: skip
    path = tmp_path / f"{name.lower()}.py"
    path.write_text(code, encoding="utf-8")
    (tool,) = find_tools(str(path))
    assert run_tool(tool, events()).summary == summary


def test_the_test_of_a_probe_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tool,) = blocks_with("probes.md", "class Reuse(")
    (test,) = blocks_with("probes.md", "from reuse import Reuse")
    (tmp_path / "reuse.py").write_text(tool, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    names: dict[str, Any] = {}
    exec(test, names)
    names["test_a_word_that_all_lanes_read"]()
