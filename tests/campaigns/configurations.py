"""Whatever options, files and values say, a command is accepted or refused in one line."""

from __future__ import annotations

import argparse
import contextlib
import errno
import os
import random
import shutil
import subprocess
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory

from pasta.cli import preload
from pasta.config import all_settings, preset_names
from pasta.errors import PastaError, visible
from pasta.plugins import built_in_names, find_tools
from tests.campaigns.result import Row
from tests.support.preload import base_environment, cli

NAME = "configurations"
_LIMIT = 60
#: Values that broke parsers somewhere, as a user may type them.
NASTY = [
    "", " ", "0", "-1", "1", "9" * 400, "9" * 5000, "1" + "0" * 25, "0x10", "1e999", "1e-999",
    "nan", "inf", "-inf", "٣", "1_000", "1.5GiB", "9" * 30 + ".5GiB", "4 KiB", "1QiB", "1e3MiB",
    "10s", "500ms", "9" * 20 + "min", "true", "yes", "maybe", "TRUE", "on", "x" * 300, "x" * 5000,
    "a/" * 2500, "/", "//", "..", ".", "/dev/null", "/dev/null/x", "/proc/self/x", "/missing/x",
    "%", "%z", "%q{", "%q{HOME}", "%q{}", "%n" * 300, "%p-%p", "%%", "(", "[", "a{99999999999}",
    "(" * 3000 + ")" * 3000, "(?P<a>.)(?P=b)", "(?i)x(?i)", "\\", "*", "+", "a**", "[[:alpha:]]",
    "\udcff", "\x1b[31m", "a\nb", "a\rb", "\t", "ünï", "漢字", "😀", "a,b", ",", "a b", "=", "a=b",
    "'", '"', "$(id)", "`id`", ";", "~", "~/x", "--", "-", "launches 100/1000", "launches 0/0",
    "steps 9/1", "launches 1/" + "9" * 400, "seconds 0.0000000001/1", "seconds 1/0", "20%", "-5%",
    "1e5%", "100us", "0us", "9" * 12 + "us", "65536 cycles", "SQ_WAVES,GRBM_COUNT", "A" * 20000,
    "[]", "{}", "None", "refacc", "nvidia",
]  # fmt: skip
_OPTIONS = [
    "-t", "-c", "--set", "--tool-path", "-k", "--exclude", "-s", "--launch-count", "--range",
    "--backend", "--profile-from-start", "--overhead-budget", "--duration", "--max-size", "-o",
    "--root", "--window",
]  # fmt: skip
_FLAGS = [
    "--live", "--record", "--record-accesses", "--rotate", "-f", "--no-children", "--collector",
    "-q",
]  # fmt: skip
_FILES = {
    "README.md": "# no tool\n",
    "syntax.py": "def",
    "empty.py": "",
    "exits.py": "import sys\nsys.exit(3)\n",
    "raises.py": "raise KeyError('x\\ny')\n",
    "no_tool.py": "x = 1\n",
    "deep.py": "raise RecursionError\n",
    "bad_option.py": "from pasta.tool import Tool, option\nclass A(Tool): x = option([], help='')",
    "bad_handler.py": "from pasta.tool import Tool\nclass A(Tool):\n    on_launch = print",
    "good.py": """
from pasta.tool import Result, Tool, option
class Good(Tool):
    size = option('1KiB', kind='bytes', help='s')
    share = option(0.5, help='f')
    def result(self): return Result('good')
""",
}
_VARIABLES = [
    "PASTA_SANITIZER_LIB", "PASTA_ROCPROFILER_LIB", "PASTA_LIBPYTHON", "PASTA_INJECT",
    "PASTA_SHIM", "TMPDIR", "HOME", "XDG_CACHE_HOME", "COLUMNS", "LC_ALL", "TERM", "NO_COLOR",
    "RANK", "WORLD_SIZE", "SLURM_PROCID", "PYTHONHOME", "PYTHONPATH", "PYTHONWARNINGS",
    "CUDA_HOME", "PATH",
]  # fmt: skip
_TOML_VALUES = [
    "1", "-1", "true", '"yes"', '""', "[]", "[[]]", "{}", "1.5", "nan", "inf", "1979-05-27",
    "07:32:00", "0x" + "f" * 6000, "9" * 400, "9" * 5000, '"\\u0000"', '"\\u001b"', '"a\\nb"',
    '["a", 1]', "[1, 2]", '["", "a"]', '"""\na\nb"""', "[\n1,\n2,\n]", "[" * 5000, "{a = 1}",
    '"' + "x" * 9000 + '"', "1_000", "0o17", "'('", "=",
]  # fmt: skip
_TOML_RAW = [
    "", "\n", "\ufeff", "a", "= 1", "[", "[]", "[[tool]]", "[tool]\n[tool]",
    "a" + ".a" * 3000 + " = 1", "\0", "a = 1979-13-45", "tools = 'copies'",
    "tools = ['copies', 'copies']", "tools = ['none']", "tool-path = ['none']",
    "tols = ['copies']", "['ring.max']\nx = 1", "'ring.max' = 1", "[run]\nlive = 'yes'",
    "[run]\nlive = 1", "tool = 1", "[tool.copies]\ntop = 'x'",
    "[tool.copies]\ntop = 1\n[tool.copies]", "[tool.kernel_freq.top]\nx = 1", "ring = 3",
    "[[tool.copies]]\ntop = 1",
]  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--count", type=int, default=3000, help="configurations, in this process")
    parser.add_argument("--commands", type=int, default=250, help="… by the commands themselves")
    parser.add_argument("--seed", type=int, default=1)


def run(arguments: argparse.Namespace) -> list[Row]:
    chosen = random.Random(arguments.seed)
    # two directories deep: `--tool-path ..` imports what lies in the parent
    with (
        TemporaryDirectory() as directory,
        _working_in(Path(directory) / "parent" / "place") as place,
    ):
        for name, text in _FILES.items():
            (place / name).write_text(text)
        ways = _ways(chosen, place)
        rows = {name: Row(name) for name in ways}
        for number in range(arguments.count):
            name = list(ways)[number % len(ways)]
            given = ways[name]()
            rows[name].add(_refusal_of(given))
        commands = Row("commands")
        given = [ways[list(ways)[number % len(ways)]]() for number in range(arguments.commands)]
        given += [["-q"]] * (arguments.commands // 5)  # of which the environment is all
        variables = [
            {chosen.choice(_VARIABLES): chosen.choice(NASTY) for _ in range(chosen.randint(0, 3))}
            for _ in given
        ]
        with ThreadPoolExecutor(2) as pool:
            for problem in pool.map(lambda *each: _problem_of(*each, place), given, variables):
                commands.add(problem)
    return [*rows.values(), commands]


@contextlib.contextmanager
def _working_in(directory: Path) -> Iterator[Path]:
    before = os.getcwd()
    directory.mkdir(parents=True)
    os.chdir(directory)
    try:
        yield directory
    finally:
        os.chdir(before)


def _ways(chosen: random.Random, place: Path) -> dict[str, Callable[[], list[str]]]:
    keys = [setting.key for setting in all_settings()]
    tools = built_in_names()
    files = [f"./{name}" for name in _FILES]
    files += ["./none.py", ".", "./", "..", "./good.py:Good", "./good.py:X", "good.py:", ":", "a:b"]

    def value() -> str:
        return chosen.choice(NASTY) if chosen.random() < 0.8 else _noise(chosen)

    def setting() -> list[str]:
        return ["--set", f"{chosen.choice(keys)}={value()}"]

    def tool_option() -> list[str]:
        name = chosen.choice(tools)
        key = chosen.choice(list(find_tools(name)[0].options()) or ["none"])
        return ["-t", name, "--set", f"{chosen.choice(['', 'tool.'])}{name}.{key}={value()}"]

    def option() -> list[str]:
        return [chosen.choice(_OPTIONS), value()]

    def tool() -> list[str]:
        each = chosen.choice([*tools, *files, *NASTY, _misspelt(chosen, chosen.choice(tools))])
        return [
            "-t",
            each,
            *(["--tool-path", chosen.choice([".", "none", *NASTY])] * chosen.randint(0, 1)),
        ]

    def preset() -> list[str]:
        return [
            "-c",
            chosen.choice([*preset_names(), *NASTY, *files, _misspelt(chosen, "kernel_freq")]),
        ]

    def toml() -> list[str]:
        lines = [chosen.choice(_TOML_RAW)] if chosen.random() < 0.4 else []
        for _ in range(chosen.randint(0, 3)):
            key = chosen.choice(
                [
                    *keys,
                    "tools",
                    "tool-path",
                    "tool.copies.top",
                    "copies.top",
                    _misspelt(chosen, chosen.choice(keys)),
                ]
            )
            lines.append(f"{key} = {chosen.choice(_TOML_VALUES)}")
        file = place / f"{chosen.getrandbits(40)}.toml"
        content = "\n".join(lines).encode("utf-8", "surrogatepass")
        file.write_bytes(_damaged(chosen, content) if chosen.random() < 0.1 else content)
        return ["-c", str(file)]

    def several() -> list[str]:
        ways = [setting, tool_option, option, tool, preset, toml]
        given = [word for way in chosen.choices(ways, k=chosen.randint(2, 5)) for word in way()]
        return [*given, *chosen.sample(_FLAGS, chosen.randint(0, 3))]

    ways = (setting, tool_option, option, tool, preset, toml, several)
    return {way.__name__: way for way in ways}


def _noise(chosen: random.Random) -> str:
    return "".join(
        chr(chosen.choice([chosen.randrange(1, 128), chosen.randrange(1, 0xD7FF)]))
        for _ in range(chosen.randint(1, 12))
    )


def _misspelt(chosen: random.Random, word: str) -> str:
    at = chosen.randrange(len(word))
    return word[:at] + chosen.choice(["", "x", word[at] * 2]) + word[at + 1 :]


def _damaged(chosen: random.Random, content: bytes) -> bytes:
    at = chosen.randrange(len(content) + 1)
    return content[:at] + bytes([chosen.randrange(256)]) + content[at:]


def _refusal_of(given: list[str]) -> str | None:
    """What is wrong with how a command line is taken; None where it is accepted or refused."""
    shown = " ".join(map(ascii, given))[:300]
    try:
        with redirect_stdout(StringIO()), redirect_stderr(StringIO()) as said:
            try:
                options = preload.parser().parse_args([*given, "--", "true"])
            except SystemExit as refused:
                return None if refused.code == 2 else f"{shown}: exit status {refused.code}"
            preload.configure(options)
    except PastaError as error:
        return _wrong_message(visible(str(error)), shown)
    except BaseException:
        return f"{shown}: {traceback.format_exc()[-700:]}"
    return f"{shown}: printed {said.getvalue()[:200]!r}" if said.getvalue() else None


def _wrong_message(text: str, shown: str) -> str | None:
    if not text or "\n" in text or not text.isprintable():
        return f"{shown}: not one line: {text[:300]!r}"
    return f"{shown}: {len(text)} characters: {text[:100]}…" if len(text) > 2000 else None


def _problem_of(given: list[str], variables: dict[str, str], place: Path) -> str | None:
    """The same, of pasta-preload itself."""
    shown = " ".join(map(ascii, [*given, variables]))[:300]
    here = place / "work" / f"{random.getrandbits(64):x}"
    here.mkdir(parents=True)
    for name in _FILES:
        shutil.copy(place / name, here)
    command = [*cli("pasta-preload"), *given, "--", "/bin/true"]
    try:
        done = subprocess.run(
            list(map(os.fsencode, command)), stdin=subprocess.DEVNULL, capture_output=True,
            env={**base_environment(), **variables}, cwd=here, timeout=_LIMIT,
        )  # fmt: skip
    except ValueError:  # nothing that a command line can have
        return None
    except OSError as error:
        return None if error.errno == errno.E2BIG else f"{shown}: {error}"
    except subprocess.TimeoutExpired:
        return f"{shown}: no answer within {_LIMIT} s"
    said = done.stderr.decode(errors="replace")
    if done.returncode not in (0, 2) or "Traceback" in said or done.stdout:
        return f"{shown}: status {done.returncode}: {said[-500:]!r}"
    if done.returncode == 2 and not said.startswith("usage: ") and said.count("\n") != 1:
        return f"{shown}: {said.count(chr(10))} lines: {said[:300]!r}"
    return None
