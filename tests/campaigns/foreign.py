"""Third-party programs run with and without PASTA: stdout, stderr and exit status must be equal.

Each is a line of shell in an empty directory with a few files.  Programs that are not installed are
counted as absent.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.campaigns.programs import LIMIT
from tests.campaigns.result import Row
from tests.support.preload import base_environment, cli

NAME = "foreign"


def _programs() -> list[tuple[str, str]]:
    """Programs that must be installed, each with its line of shell."""
    text = Path(__file__).with_suffix(".txt").read_text()
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    return [(program, line) for program, _, line in (each.partition("\t") for each in lines)]


_FILES = {
    "text": "".join(f"line {i} abc\n" for i in range(2000)),
    "other": "line 0 abc\nother\n",
    "hello.c": '#include <stdio.h>\nint main(void) { puts("hello"); return 5; }\n',
    "setenv.c": "#include <stdlib.h>\n#include <stdio.h>\nint main(void) { char n[32];\n"
    'for (int i = 0; i < 300; i++) { sprintf(n, "V%d", i % 150); setenv(n, "value", 1); }\n'
    'unsetenv("V3"); putenv("W=1"); return 0; }\n',
    "threads.c": "#include <pthread.h>\n#include <stdio.h>\n"
    "static void *go(void *p) { return p; }\n"
    "int main(void) { pthread_t t; for (int i = 0; i < 50; i++) { pthread_create(&t, 0, go, 0);"
    ' pthread_join(t, 0); } puts("done"); return 0; }\n',
    "throw.cpp": "#include <iostream>\nint main() { try { throw 3; } catch (int i) {"
    " std::cout << i << std::endl; } throw 4; }\n",
    "hello.rs": 'fn main() { println!("hello"); std::process::exit(8); }\n',
    "Hello.java": 'class Hello { public static void main(String[] a) { System.out.println("hi");'
    " System.exit(9); } }\n",
    "cmake.txt": 'message(STATUS "hello")\n',
    "makefile": "all:\n\t@echo made\nmany: a b c d e\na b c d e:\n\t@echo $@\nfails:\n\t@exit 3\n",
}


#: Pids and addresses, which differ from run to run.
_NUMBERS = re.compile(rb"==\d+==|0x[0-9A-Fa-f]{6,}|(?<= )\d{3,7}(?= )")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=1, help="times (default: %(default)s)")
    parser.add_argument("--only", default="", help="lines that contain this")
    parser.add_argument("--jobs", type=int, default=2, help="programs at a time")


@dataclass(frozen=True)
class Seen:
    """What a user sees of a program."""

    status: int
    stdout: bytes
    stderr: bytes


def run(arguments: argparse.Namespace) -> list[Row]:
    programs = [each for each in _programs() if arguments.only in each[1]] * arguments.rounds
    present = [each for each in programs if shutil.which(each[0])]
    absent = sorted({program for program, _ in programs if not shutil.which(program)})
    print(f"not installed: {', '.join(absent) or 'none'}")
    rows: dict[str, Row] = {}
    with ThreadPoolExecutor(arguments.jobs) as pool:
        for (program, line), difference in zip(present, pool.map(_compare, present), strict=True):
            row = rows.setdefault(program, Row(program))
            row.add(f"{line}: {difference}" if difference else None)
    return [rows[program] for program in sorted(rows)]


def _compare(each: tuple[str, str]) -> str | None:
    """Difference between a line's behaviour under PASTA and alone."""
    _, line = each
    try:
        alone, with_pasta = _see(line, ()), _see(line, cli("pasta-preload"))
    except subprocess.TimeoutExpired:
        return "hangs"
    for name in ("status", "stdout", "stderr"):
        before, after = getattr(alone, name), getattr(with_pasta, name)
        if before != after:
            again = _see(line, ())  # is it deterministic?
            if getattr(again, name) == before:
                return f"{name} {before!r} became {after!r}"[:400]
    return None


def _see(line: str, before: list[str] | tuple[str, ...]) -> Seen:
    with TemporaryDirectory(prefix="foreign-") as directory:
        for name, content in _FILES.items():
            Path(directory, name).write_text(content)
        done = subprocess.run(
            [*before, "sh", "-c", line], cwd=directory, stdin=subprocess.DEVNULL,
            env={**base_environment(), "TMPDIR": directory}, capture_output=True, timeout=LIMIT,
        )  # fmt: skip
        ours = re.compile(rb"^pasta: .*\n", re.MULTILINE)
        hidden = re.compile(re.escape(os.fsencode(directory)))
        texts = [hidden.sub(b"DIR", ours.sub(b"", text)) for text in (done.stdout, done.stderr)]
        return Seen(done.returncode, *(_NUMBERS.sub(b"N", text) for text in texts))
