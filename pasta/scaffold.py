"""Templates of a new tool: its file, preset and test."""

from __future__ import annotations

import keyword
import re
from pathlib import Path
from string import Template

from pasta.errors import ToolError
from pasta.names import snake_case

_TOOL = Template('''\
from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pasta.tool import Result, Table, Tool, option


class $class_name(Tool):
    """Blocks and threads launched by each kernel."""

    top = option(10, help="kernels in the text report", minimum=1)

    def start(self) -> None:
        self.blocks: dict[int, int] = {}
        self.threads: dict[int, int] = {}

    def on_launches(self, launches: NDArray[Any]) -> None:
        blocks = launches["grid"].prod(axis=1, dtype=np.uint64)
        threads = blocks * launches["block"].prod(axis=1, dtype=np.uint64)
        for name in np.unique(launches["name"]).tolist():
            mine = launches["name"] == name
            self.blocks[name] = self.blocks.get(name, 0) + int(blocks[mine].sum())
            self.threads[name] = self.threads.get(name, 0) + int(threads[mine].sum())

    def result(self) -> Result:
        names = sorted(self.threads, key=self.threads.__getitem__, reverse=True)
        kernels = Table(
            {
                "kernel": self.context.demangled(names),
                "blocks": [self.blocks[name] for name in names],
                "threads": [self.threads[name] for name in names],
            },
            title="Blocks and threads",
            shown=self.top,
        )
        total = sum(self.threads.values())
        return Result(
            summary=f"{total:,} threads in {len(names)} kernels", tables={"kernels": kernels}
        )
''')

_TEST = Template("""\
from __future__ import annotations

from pathlib import Path

from pasta.plugins import find_tools
from pasta.testing import Events, run_tool

($class_name,) = find_tools(str(Path(__file__).with_name("$name.py")))


def test_counts_blocks_and_threads() -> None:
    events = Events()
    events.launch("vadd", grid=(4, 2, 1), block=(32, 1, 1))
    events.launch("vadd", grid=(1, 1, 1), block=(64, 1, 1))
    events.launch("gemm", grid=(2, 1, 1), block=(8, 8, 1))
    result = run_tool($class_name, events, splits=[1])
    assert result.summary == "448 threads in 2 kernels"
    assert list(result.tables["kernels"].rows()) == [
        {"kernel": "vadd", "blocks": 9, "threads": 320},
        {"kernel": "gemm", "blocks": 2, "threads": 128},
    ]
""")

_PRESET = Template("""\
# pasta-preload -c $name.toml ./program
tools = ["$name"]
tool-path = ["."] # where $name.py is, from this file

[tool.$name]
top = 10 # kernels in the text report
""")


def new_tool(name: str, directory: Path) -> list[Path]:
    """Writes NAME.py, test_NAME.py and NAME.toml to a directory; returns their paths.

    `name` is a tool's name or that of its class. Raises ToolError for an invalid name or an
    existing file, before anything is written.
    """
    tool = snake_case(name.replace("-", "_"))
    if not re.fullmatch(r"[a-z][a-z0-9_]*", tool) or keyword.iskeyword(tool):
        raise ToolError(f"{name!r} is not a valid tool name", remedy="use letters, digits and _")
    words = {"name": tool, "class_name": "".join(part.title() for part in tool.split("_"))}
    if snake_case(words["class_name"]) != tool:
        raise ToolError(
            f"{name!r} is not a valid tool name: its class would be {words['class_name']}",
            remedy="begin each part after a _ with a letter",
        )
    files = {
        directory / f"{tool}.py": _TOOL,
        directory / f"test_{tool}.py": _TEST,
        directory / f"{tool}.toml": _PRESET,
    }
    for path in files:
        if path.exists():
            raise ToolError(f"{path} exists", remedy="choose another name, or remove it")
    directory.mkdir(parents=True, exist_ok=True)
    for path, template in files.items():
        path.write_text(template.substitute(words), encoding="utf-8")
    return list(files)
