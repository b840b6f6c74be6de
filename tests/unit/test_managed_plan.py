"""Plans for managed memory: TOML, its errors, and the lines for the preloaded library."""

from __future__ import annotations

import pytest

from pasta.errors import ConfigError
from pasta.processors.managed_plan import Allocation, Entry, LaunchKey, parsed, written

KEY = Allocation(4096, 1)
ENTRIES = [
    Entry("prefetch", KEY, 0, 4096, LaunchKey('k<"é">', (4, 1, 1), 7), "6 faults"),
    Entry("evict", KEY, 1024, 1, LaunchKey("k", (4, 2, 1))),
    Entry("pin", KEY, 0, 4096),
]


def test_a_plan_is_read_as_it_was_written() -> None:
    text = written(ENTRIES, "by a test\nof two lines")
    assert text.startswith("# by a test\n# of two lines\nversion = 1\n")
    assert parsed(text) == ENTRIES
    assert parsed(written([])) == []


def test_lines_for_the_library() -> None:
    assert [entry.native() for entry in ENTRIES] == [
        'prefetch\t4096\t1\t0\t4096\t7\t4\t1\t1\tk<"é">\n',
        "evict\t4096\t1\t1024\t1\t-1\t4\t2\t1\tk\n",
        "pin\t4096\t1\t0\t4096\t-2\t0\t0\t0\t\n",
    ]


GOOD = """version = 1
[[entry]]
action = "pin"
allocation = {bytes = 8, occurrence = 0}
offset = 0
bytes = 8
"""
LAUNCH = 'launch = {kernel = "k", grid = [1, 1, 1], occurrence = 0}\n'


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("version = 1", "version = 2", "p: version = 2 is unknown: this PASTA reads version 1"),
        ("version = 1", "", "p: version = None is unknown"),
        ("version = 1", "version = 1\nmore = 1", "p: 'more' is unknown"),
        ("version", "version = =", "p: not valid TOML"),
        ('"pin"', '"move"', "p: entry 1: action = 'move' is not accepted: use one of prefetch"),
        ('"pin"', "7", "p: entry 1: action = 7 is not accepted: use a string"),
        ('"pin"', '"prefetch"', "p: entry 1: launch is missing"),
        (
            "bytes = 8\n",
            "bytes = 9\n",
            "p: entry 1: bytes = 9 is not accepted: use a range inside",
        ),
        ("bytes = 8,", "bytes = 0,", "p: entry 1: allocation: bytes = 0 is not accepted"),
        ("bytes = 8,", "bytes = true,", "p: entry 1: allocation: bytes = True is not accepted"),
        ("offset = 0", "offset = -1", "p: entry 1: offset = -1 is not accepted"),
        ("offset = 0", "offset = 0\naddress = 5", "p: entry 1: 'address' is unknown"),
    ],
)
def test_errors_name_the_entry(old: str, new: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        parsed(GOOD.replace(old, new, 1), "p")
    assert str(error.value).startswith(message) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"k"', '"a\\tb"', "kernel = 'a\\tb' is not accepted"),
        ("[1, 1, 1]", "[1, 1]", "grid = [1, 1] is not accepted: use three positive integers"),
        ("[1, 1, 1]", "[1, 0, 1]", "grid = [1, 0, 1] is not accepted"),
        ("occurrence = 0}", 'occurrence = "all"}', "occurrence = 'all' is not accepted"),
    ],
)
def test_errors_of_launches(old: str, new: str, message: str) -> None:
    text = GOOD.replace("pin", "evict") + LAUNCH.replace(old, new)
    with pytest.raises(ConfigError, match=r"^p: entry 1: launch: ") as error:
        parsed(text, "p")
    assert message in str(error.value)
