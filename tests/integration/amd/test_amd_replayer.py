"""Tests of the replayer, on which the other tests rely, with a tool that prints what it
receives."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.amd_replayer import Replayer
from tests.support.amd_stream import GPU, Stream, recorded
from tests.support.places import DATA

Print = Callable[..., list[str]]


@pytest.fixture
def printed(replayer: Replayer, tmp_path: Path) -> Print:
    """Lines of the tool (without "tool ") and of the program."""

    def run(
        stream: Stream, version: str = "1.0.0", status: int = 7, **environment: str
    ) -> list[str]:
        done = subprocess.run(
            [replayer.program, stream.write(tmp_path / "stream.txt")],
            env={**replayer.environment(str(replayer.tool), version), **environment},
            capture_output=True,
            text=True,
            timeout=20,
        )
        assert done.returncode == status, done.stderr
        return re.sub("^tool ", "", done.stdout, flags=re.MULTILINE).splitlines()

    return run


def allocating(**fields: int) -> Stream:
    s = Stream()
    s.hip("hipMalloc", size=4096, ptr=0x1000, **fields)
    s.hip("hipGetErrorName", hip_error=0)
    s.hip("hipFree", ptr=0x1000)
    return s


def test_client_receives_its_subscriptions(printed: Print, version: str) -> None:
    lines = printed(allocating(), version)
    sizes = {"0.5.0": 296, "0.6.0": 304, "1.0.0": 312}
    number = {"0.5.0": 500, "0.6.0": 600, "1.0.0": 10000}[version]
    assert lines[:4] + lines[6:7] == [
        f"configure {number} {version} 0",
        "create 0",
        f"agent 56435 type 1 EPYC size {sizes[version]}",
        f"agent {GPU} type 2 gfx942 size {sizes[version]}",
        "start 0",
    ]
    assert {*lines[4:6]} == {  # in the order of their numbers, which differ
        "subscribed HIP_RUNTIME_API 5: 0",
        "subscribed KERNEL_DISPATCH 2: 0",
    }
    calls = [re.sub(r" 0x[0-9a-f]+\b.*(?= pointer)", "", line) for line in lines if "corr" in line]
    assert [call.split(" thread")[0] for call in calls] == [
        "hipMalloc ENTER corr=1 user=2 bytes=120",
        "hipMalloc EXIT corr=1 user=2 bytes=120",
        "hipFree ENTER corr=3 user=4 bytes=120",
        "hipFree EXIT corr=3 user=4 bytes=120",
    ]
    assert [call.rsplit(" ", 1)[1] for call in calls[:2]] == [
        "pointer=0xbad0bad0bad0bad0",
        "pointer=0x1000",
    ]
    assert lines[-2:] == ["done", "finished"]


def test_dispatch_keeps_the_tools_user_data(printed: Print, version: str) -> None:
    s = Stream()
    with s.block("loop 3000 2"), s.call("hipGetErrorName", hip_error=0):
        first, second = s.dispatch(1), s.dispatch(1)
        s.complete(second)
        s.complete(first)
    completions = [line for line in printed(s, version) if "COMPLETE" in line]
    assert len(completions) == 6000
    for line in completions:
        correlation, word = map(int, re.findall(r"(?:corr|user)=(\d+)", line))
        assert word == correlation + 1


def test_seed_changes_the_numbering(printed: Print) -> None:
    s = Stream()
    s.say("subscriptions")
    orders = {
        tuple(line for line in printed(s, REPLAY_SEED=seed) if line.startswith("subscribed "))
        for seed in map(str, range(6))
    }
    assert len(orders) > 1
    assert len({tuple(sorted(" ".join(order).split())) for order in orders}) == 1


def test_payload_ends_at_its_size(printed: Print) -> None:
    s = allocating()
    s.lines[2] += " @size=12"
    printed(s, status=-11)  # the tool reads past it


def test_tool_that_changes_errno_is_detected(printed: Print) -> None:
    printed(allocating(), status=95, REPLAY_ERRNO="1")


def test_function_fails_as_configured(printed: Print) -> None:
    lines = printed(allocating(), REPLAY_FAIL="start_context=11")
    assert "start 11" in lines
    assert not [line for line in lines if "corr" in line]


def test_no_callbacks_after_finalisation_by_default(printed: Print) -> None:
    s = Stream()
    s.say("finalize")
    s.hip("hipFree", ptr=0x1000)
    assert not [line for line in printed(s) if "corr" in line]
    assert len([line for line in printed(s, REPLAY_LATE="1") if "corr" in line]) == 2


def test_library_is_not_loaded_without_a_tool(replayer: Replayer, tmp_path: Path) -> None:
    done = subprocess.run(
        [replayer.program, allocating().write(tmp_path / "stream.txt")],
        env={"ROCPROFILER_REGISTER_LIBRARY": "/no/such.so"},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (7, "done\n")


def test_unloadable_tool_aborts_the_program(printed: Print) -> None:
    printed(allocating(), status=-6, ROCP_TOOL_LIBRARIES="/no/such.so")


def test_last_of_several_tools_is_ignored(printed: Print, replayer: Replayer) -> None:
    lines = printed(allocating(), ROCP_TOOL_LIBRARIES=f"{replayer.tool}:/no/such.so")
    assert "configure 10000 1.0.0 0" in lines


def test_recorded_stream_is_played_completely(printed: Print) -> None:
    lines = printed(recorded(DATA / "amd" / "hip63_sdk100.events.txt"))
    assert sum("KERNEL_DISPATCH_ENQUEUE ENTER" in line for line in lines) == 6
    assert sum("KERNEL_DISPATCH_COMPLETE" in line for line in lines) == 6
    (malloc,) = [line for line in lines if "hipMalloc EXIT" in line]
    assert malloc.endswith("pointer=0x1101e00000")
