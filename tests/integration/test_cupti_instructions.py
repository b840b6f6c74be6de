"""Executed instructions of the CUPTI source, played by the fake library."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pasta.backends.nvidia import NvidiaSettings
from pasta.errors import ConfigError
from tests.support.fake_cupti import play_cupti
from tests.support.played import Played

ON = "nvidia.instructions=1\n"
Play = Callable[..., Played]


@pytest.fixture
def play(cupti: Path, tmp_path: Path) -> Play:
    def run(settings: str = ON, **extra: str) -> Played:
        return play_cupti(cupti, tmp_path, "context", "counters", "end", settings=settings, **extra)

    return run


def counts(played: Played) -> dict[tuple[int, int, int], tuple[int, int]]:
    """(warps, threads) by the launch's ordinal, the function's symbol and the pc."""
    rows = played.rows("instruction_count", "ordinal", "symbol", "pc", "warps", "threads")
    assert len({row[:3] for row in rows}) == len(rows)
    return {(ordinal, symbol, pc): (warps, threads) for ordinal, symbol, pc, warps, threads in rows}


def of_blocks(ordinal: int, blocks: int) -> dict[tuple[int, int, int], tuple[int, int]]:
    """What the fake library counts; instructions that were not executed have no record."""
    return {
        (ordinal, 7, 0): (blocks, 32 * blocks),
        (ordinal, 7, 16): (2 * blocks, 20 * blocks),
        (ordinal, 8, 0): (1, 1),
    }


@pytest.mark.main
def test_instructions_of_every_launch(play: Play) -> None:
    """No kernel and no copy has a record, as CUPTI would have no data then."""
    played = play()
    assert (played.status, played.stdout, played.stderr) == (7, "done\n", "")
    expected: dict[tuple[int, int, int], tuple[int, int]] = {}
    # ordinal 4 is the launch that the driver refuses
    for ordinal, blocks in {0: 1, 1: 2, 2: 3, 3: 4, 5: 5, 6: 6}.items():
        expected |= of_blocks(ordinal, blocks)
    assert counts(played) == expected
    assert len(played["counter"]) == 0
    maps = played.rows("tensor_map", "ordinal", "address", "bytes", "offset", "box")
    assert maps == [(5, 0x7F00_0000_0000, 511 * 4096 + 2 * 1024, 8, 2 * 8 * 32)]
    assert "helper" in {name for (name,) in played.rows("instruction_count", "name")}


def test_nothing_is_counted_unless_asked_for(play: Play) -> None:
    assert len(play("")["instruction_count"]) == 0


@pytest.mark.parametrize(
    ("settings", "selected"),
    [("probe_count=2\n", {0, 1}), ("probe_kernel=other\n", {5}), ("probe_skip=5\n", {5, 6})],
)
def test_selected_launches(play: Play, settings: str, selected: set[int]) -> None:
    assert {ordinal for ordinal, _, _ in counts(play(ON + settings))} == selected


@pytest.mark.parametrize(
    "function", ["GetProperties", "SetConfig", "Enable", "GetDataProperties", "FlushData"]
)
def test_a_failure_is_said_once(play: Play, function: str) -> None:
    played = play(FAKE_CUPTI_FAIL=f"SassMetrics{function}=35")
    assert played.status == 7 and len(played["instruction_count"]) == 0
    assert played.stderr.count("instructions are not counted") == 1
    assert f"cuptiSassMetrics{function} failed with 35" in played.stderr


@pytest.mark.parametrize("other", ["counters", "pc_sampling"])
def test_excluded_with(other: str) -> None:
    own = NvidiaSettings()
    own.instructions = True
    setattr(own, other, "4096cycles" if other == "pc_sampling" else "dram__bytes.sum")
    with pytest.raises(ConfigError, match=f"nvidia.{other}"):
        own.check()
