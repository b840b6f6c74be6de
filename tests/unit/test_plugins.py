from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from pasta.errors import ToolError
from pasta.plugins import built_in_names, find_tools, list_tools, load_tools
from tests.support.packages import install_metadata

MINE = """
from pasta.tool import Result, Tool, option

class Mine(Tool):
    '''My own.'''
    depth = option(1, help="depth")
    def result(self):
        return Result(summary="mine")

class Other(Tool):
    def result(self):
        return Result(summary="other")
"""


@pytest.fixture
def write(tmp_path: Path) -> object:
    def write(name: str, text: str) -> Path:
        path = tmp_path / name
        path.write_text(textwrap.dedent(text))
        return path

    return write


def test_built_in_tools_are_named_after_their_files() -> None:
    assert {"kernel_freq", "event_trace", "memory_timeline", "copies"} <= set(built_in_names())
    for name in built_in_names():
        (found,) = find_tools(name)
        assert found.name == name
        assert found.summary_line()


def test_tools_from_a_file_a_class_and_a_directory(write: Any, tmp_path: Path) -> None:
    path = write("mine.py", MINE)
    assert [found.name for found in find_tools(str(path))] == ["mine", "other"]
    assert [found.name for found in find_tools(f"{path}:Other")] == ["other"]
    assert find_tools("mine", [tmp_path]) == find_tools(f"{path}:mine")
    assert find_tools("other", [tmp_path])[0].__name__ == "Other"


def test_tool_path_precedes_built_in_tools(write: Any, tmp_path: Path) -> None:
    write("copies.py", MINE.replace("Mine", "Copies"))
    (found,) = find_tools("copies", [tmp_path])
    assert found.__module__.startswith("pasta_tool_copies")


def test_options_reach_their_tool(write: Any) -> None:
    path = write("mine.py", MINE)
    (mine, copies) = load_tools(
        [f"{path}:Mine", "copies", "copies"], {"mine": {"depth": "4"}, "copies": {"top": 3}}
    )
    assert mine.depth == 4
    assert copies.top == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import nothing_of_this_name", r"bad\.py:1: ModuleNotFoundError: No module named 'noth"),
        ("x = 1\ny = (\n", r"bad\.py:2: SyntaxError"),
        ("def f():\n    raise KeyError('k')\nf()", r"bad\.py:2: KeyError: 'k'"),
        ("import sys\nsys.exit(3)", r"bad\.py:2: SystemExit: 3"),
        ("x = 1", r"bad\.py defines no tool: define a class that derives from pasta\.tool\.Tool"),
        ("from pasta.tool import Tool", r"bad\.py defines no tool"),
        (MINE.replace("def result", "def on_launch"), r"bad\.py:3: tool mine: .*on_launches"),
        (
            MINE.replace(
                "def result", "o = option('4 kilo', kind='bytes', help='')\n    def result"
            ),
            r"bad\.py:\d+: ValueError: the default '4 kilo' is not a size such as",
        ),
        (
            MINE.replace("def result", "o = option('4', kind='size', help='')\n    def result"),
            r"bad\.py:\d+: TypeError: an option is .*, not size; its kind may be \"bytes\"",
        ),
        ("class Mine(BaseException): pass\nraise Mine('one\\ntwo')", r"bad\.py:2: Mine: one$"),
    ],
)
def test_errors_in_tool_files_have_location_and_reason(write: Any, text: str, message: str) -> None:
    path = write("bad.py", text.lstrip("\n"))
    for _ in range(2):
        with pytest.raises(ToolError, match=message):
            find_tools(str(path))


@pytest.mark.parametrize(
    "attribute",
    ["needed = classmethod(lambda cls: 1 / 0)", "uses = 5",
     "handlers = classmethod(lambda cls: 1 / 0)",
     "def __init__(self, options=None): raise SystemExit(3)"],
)  # fmt: skip
def test_failing_classes_are_reported_before_the_run(write: Any, attribute: str) -> None:
    path = write("bad.py", MINE.replace("def result", f"{attribute}\n\n    def result"))
    with pytest.raises(ToolError, match=r"tool mine cannot be created: .*bad\.py"):
        load_tools([str(path)])


def test_side_effects_of_tool_files_are_undone(write: Any) -> None:
    """The target inherits it: directory, umask, environment."""
    path = write(
        "rude.py",
        "import os\nos.chdir('/')\nos.umask(0)\nos.environ['LD_PRELOAD'] = 'x'\n"
        "os.environ.pop('PATH', None)\n" + MINE,
    )
    umask = os.umask(0o027)
    try:
        before = os.getcwd(), dict(os.environ)
        find_tools(str(path))
        assert (os.getcwd(), dict(os.environ)) == before
        assert os.umask(0o027) == 0o027
    finally:
        os.umask(umask)


def test_unknown_tool_error_lists_available_tools(
    write: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(
        ToolError, match=r"'kernel_frq': did you mean kernel_freq\? there are .*copies"
    ):
        find_tools("kernel_frq")
    write("here.py", MINE)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ToolError, match=r"'here': the file here is \./here\.py; there are"):
        find_tools("here")
    with pytest.raises(ToolError, match=r"none\.py does not exist"):
        find_tools("./none.py")
    path = write("mine.py", MINE)
    with pytest.raises(ToolError, match=r"'Mein': did you mean Mine\?"):
        find_tools(f"{path}:Mein")
    with pytest.raises(ToolError, match="is not a directory"):
        find_tools("mine", [tmp_path / "none"])
    for other in (str(write("README.md", "# x")), str(write("notes", ""))):
        with pytest.raises(ToolError, match=f"{other} is not a Python file: name a .py file"):
            find_tools(other)
    with pytest.raises(ToolError, match=f"{tmp_path} is a directory: name a .py file"):
        find_tools(str(tmp_path))
    with pytest.raises(ToolError, match="'copys'"):
        load_tools(["copies"], {"copys": {}})
    load_tools(["copies"], {"kernel_freq": {"top": 1}})  # a preset's, of a tool that does not run


def test_duplicate_tool_names_are_rejected(write: Any) -> None:
    one, two = write("one.py", MINE), write("two.py", MINE)
    with pytest.raises(ToolError, match=r"two tools are named mine: .*one\.py and .*two\.py"):
        load_tools([str(one), str(two)])


def test_lists_tools_with_options_and_with_errors(write: Any, tmp_path: Path) -> None:
    write("mine.py", MINE)
    write("bad.py", "import nothing_of_this_name")
    write("_private.py", "raise RuntimeError")
    listed = {each.name: each for each in list_tools([tmp_path])}
    assert listed["mine"].summary == "My own."
    assert listed["mine"].source.endswith("mine.py")
    assert listed["mine"].options["depth"].help == "depth"
    assert "No module named" in listed["bad"].error
    assert listed["copies"].source == "built-in"
    assert "_private" not in listed


def test_entry_points(write: Any, tmp_path: Path) -> None:
    write("their_tools.py", MINE)
    entry_points = "[pasta.tools]\nmine = their_tools:Mine\nbroken = their_tools:Nothing\n"
    install_metadata(tmp_path, "their-tools", entry_points)
    code = (
        "from pasta.plugins import find_tools, list_tools\n"
        "print(find_tools('mine')[0].__module__)\n"
        "print([(t.source, t.error) for t in list_tools() if t.name in ('mine', 'broken')])"
    )
    run = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{code}"],
        capture_output=True,
        text=True,
        check=True,
    )
    module, listed = run.stdout.strip().splitlines()
    assert module == "their_tools"
    assert "('package their-tools', '')" in listed
    assert "cannot be loaded: AttributeError" in listed
