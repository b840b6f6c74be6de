"""Hardware counters of launches, and PC samples, as delivered by the SDK's services.

The replayer implements both after the headers of rocprofiler-sdk; neither ever ran on hardware.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from tests.integration.amd.conftest import Replay
from tests.support.amd_replayer import Replayer
from tests.support.amd_stream import CODE, GPU, SECOND_GPU, Dispatch, Stream
from tests.support.played import Played

S = 0x55D6D3E60D10
KERNELS = {1: "first.kd", 2: "second.kd"}
COUNTERS = "amd.counters=SQ_WAVES,GRBM_COUNT\n"
HOST_TRAP, STOCHASTIC = 2, 1


def loaded(*gpus: int) -> Stream:
    s = Stream(gpus or (GPU,))
    s.load(2, KERNELS)
    s.load(3, {9: "__amd_rocclr_fillBufferAligned.kd"})
    return s


def launching(s: Stream, kernel: int = 1, **fields: int) -> Dispatch:
    with s.call("hipLaunchKernel", stream=S):
        return s.dispatch(kernel, **fields)


def unharmed(played: Played, *lines: str) -> Played:
    assert played.status == 7, played.stderr
    found = played.stderr.splitlines()
    assert len(found) == len(lines), played.stderr
    for line, expected in zip(found, lines, strict=True):
        assert re.match(f"pasta: .*{expected}", line)
    return played


# ---- counters ----


def test_counters_by_launch(replay: Replay) -> None:
    s = loaded()
    launches = [launching(s, 1 + i % 2) for i in range(4)]
    with s.call("hipMemset", dst=0x1000, value=0, sizeBytes=64):
        launches.append(s.dispatch(9))
    for d in reversed(launches):
        s.complete(d)
    played = unharmed(replay(s, settings=COUNTERS))
    rows = played.rows("counter", "ordinal", "name", "instance", "device")
    values = played["counter"]["value"].tolist()
    waves = ["XCC=0,SHADER_ENGINE=0", "XCC=0,SHADER_ENGINE=1", "XCC=1,SHADER_ENGINE=0",
             "XCC=1,SHADER_ENGINE=1"]  # fmt: skip
    expected = {
        (ordinal, "SQ_WAVES", place, 0): 100 * (ordinal + 1) + i
        for ordinal in range(4)
        for i, place in enumerate(waves)
    } | {(ordinal, "GRBM_COUNT", None, 0): 100 * (ordinal + 1) for ordinal in range(4)}
    assert dict(zip(rows, values, strict=True)) == expected
    assert len(rows) == len(expected)  # the kernel of a memory set is not a launch
    assert len(played["kernel_complete"]) == 4


def test_counters_by_device(replay: Replay) -> None:
    s = loaded(GPU, SECOND_GPU)
    for agent in (SECOND_GPU, GPU):
        s.complete(launching(s, 1, agent=agent))
    played = unharmed(replay(s, settings="amd.counters=GRBM_COUNT\n"))
    assert played.rows("counter", "ordinal", "device") == [(0, 1), (1, 0)]


def test_unrecorded_launches_are_not_counted(replay: Replay) -> None:
    s = loaded()
    s.hip("hipProfilerStop")
    s.complete(launching(s))
    s.hip("hipProfilerStart")
    s.complete(launching(s))
    s.complete(launching(s, agent=4711))
    played = unharmed(replay(s, settings="amd.counters=GRBM_COUNT\n"))
    assert played.rows("counter", "ordinal") == [(1,)]


def test_counting_is_off_by_default(replay: Replay) -> None:
    s = loaded()
    s.complete(launching(s))
    assert len(unharmed(replay(s))["counter"]) == 0


def test_unknown_counter(replay: Replay) -> None:
    s = loaded()
    s.complete(launching(s))
    played = unharmed(
        replay(s, settings="amd.counters=SQ_WAVES,SQ_WAVE,NONE\n"),
        "has no counter SQ_WAVE;",
        "has no counter NONE;",
    )
    assert set(played.names("counter")) == {"SQ_WAVES"}
    assert len(played["counter"]) == 4


@pytest.mark.parametrize(
    "function",
    [
        "iterate_agent_supported_counters",
        "create_config",
        "configure_callback_dispatch_counting_service",
    ],
)
def test_unavailable_counters(replay: Replay, function: str) -> None:
    s = loaded()
    s.complete(launching(s))
    played = unharmed(
        replay(s, settings=COUNTERS, REPLAY_FAIL=f"{function}=20"),
        r"counters are not recorded: .* failed with 20",
    )
    assert len(played["counter"]) == 0
    assert len(played["kernel_complete"]) == 1


def without(replayer: Replayer, function: str, tmp_path: Path) -> str:
    """A copy of the library in which a function is renamed."""
    library = tmp_path / "librocprofiler-sdk.so"
    image, name = replayer.library.read_bytes(), function.encode()
    assert name in image
    library.write_bytes(image.replace(name, name[:-1] + b"?"))
    return str(library)


@pytest.mark.parametrize("version", ["0.5.0", "0.6.0"])
def test_counters_require_sdk_1_0(replay: Replay, version: str) -> None:
    """A counter's value has a different size in the headers of 0.5."""
    s = loaded()
    s.complete(launching(s))
    played = unharmed(replay(s, version, settings=COUNTERS), "counters are not recorded: .*1.0")
    assert len(played["counter"]) == 0
    assert len(played["kernel_complete"]) == 1


@pytest.mark.parametrize(
    ("settings", "what", "function"),
    [
        (COUNTERS, "counters", "rocprofiler_query_record_counter_id"),
        ("amd.pc_sampling=100us\n", "PC samples", "rocprofiler_create_buffer"),
    ],
)
def test_missing_function(
    replay: Replay, replayer: Replayer, tmp_path: Path, settings: str, what: str, function: str
) -> None:
    s = loaded()
    s.complete(launching(s))
    library = without(replayer, function, tmp_path)
    played = unharmed(
        replay(s, settings=settings, ROCPROFILER_REGISTER_LIBRARY=library),
        f"{what} are not recorded: the SDK has no {function}",
    )
    assert len(played["kernel_complete"]) == 1


def test_counters_do_not_leak_memory(replay: Replay) -> None:
    s = loaded()
    for rounds in (20_000, 100_000):
        with s.block(f"loop {rounds}"):
            s.complete(launching(s), by=1)
        s.say("rss")
    played = unharmed(replay(s, settings=COUNTERS, ring_max=1 << 20, read=False))
    before, after = map(int, re.findall(r"^rss (\d+)", played.stdout, re.MULTILINE))
    assert after - before < 2048  # KiB: the table of ordinals, which is bounded


# ---- samples ----


def sample(s: Stream, method: int = HOST_TRAP, count: int = 1, **fields: int) -> None:
    about = {"object": 2, "offset": CODE + 16, "dispatch": 1, "agent": GPU, **fields}
    words = " ".join(f"{name}={value}" for name, value in about.items())
    s.say(f"sample method={method} count={count} {words}")


COLUMNS = ("function", "pc", "ordinal", "module", "reason", "not_issued")


def counted(played: Played) -> Counter[tuple[int | None, ...]]:
    found: Counter[tuple[int | None, ...]] = Counter()
    for *place, samples in played.rows("pc_sample", *COLUMNS, "samples"):
        found[tuple(place)] += samples
    return found


def test_samples_by_kernel(replay: Replay) -> None:
    s = loaded()
    first, second = launching(s, 1), launching(s, 2)
    sample(s, count=3000, offset=CODE + 16, dispatch=1)
    sample(s, count=5, offset=2 * CODE + 8, dispatch=2)
    s.complete(first)
    s.complete(second)
    sample(s, count=2, offset=2 * CODE + 8, dispatch=2)  # after its completion
    sample(s, count=4, object=0, offset=0x7F00, dispatch=77)  # code of an unknown object
    sample(s, count=9, agent=SECOND_GPU)  # not ours
    played = unharmed(replay(s, settings="amd.pc_sampling=100us\n"))
    assert counted(played) == {
        (1, 16, 0, 2, None, None): 3000,
        (2, 8, 1, 2, None, None): 7,
        (None, 0x7F00, None, None, None, None): 4,
    }
    assert set(played["pc_sample"]["device"].tolist()) == {0}
    assert len(played["pc_sample"]) < 20  # samples at the same offset are one record


def test_stochastic_samples_have_stall_reasons(replay: Replay) -> None:
    s = loaded()
    s.complete(launching(s))
    sample(s, STOCHASTIC, 6, issued=1, reason=5)
    sample(s, STOCHASTIC, 4, issued=0, reason=3)
    s.say("flush")
    played = unharmed(replay(s, settings="amd.pc_sampling=1024cycles\n"))
    found = Counter()
    for reason, not_issued, samples in played.rows("pc_sample", "reason", "not_issued", "samples"):
        found[reason] += samples
        assert not_issued == (samples if reason == "s_waitcnt" else 0)
    assert found == {"none": 6, "s_waitcnt": 4}


@pytest.mark.parametrize(
    ("setting", "line"),
    [
        ("often", "amd.pc_sampling=often is not an interval: use a number and us, ms"),
        ("100", "amd.pc_sampling=100 is not an interval"),
        ("-1us", "is not an interval"),
        ("100instructions", "does not support amd.pc_sampling=100instructions"),
        ("2000ms", "does not support amd.pc_sampling=2000ms"),
        ("1000cycles", "PC samples are not recorded: .*failed with 19"),  # not a power of two
    ],
)
def test_unsupported_intervals(replay: Replay, setting: str, line: str) -> None:
    s = loaded()
    s.complete(launching(s))
    sample(s)
    played = unharmed(replay(s, settings=f"amd.pc_sampling={setting}\n"), line)
    assert len(played["pc_sample"]) == 0
    assert len(played["kernel_complete"]) == 1


def test_samples_require_sdk_0_6(replay: Replay) -> None:
    s = loaded()
    s.complete(launching(s))
    played = unharmed(replay(s, "0.5.0", settings="amd.pc_sampling=100us\n"), "they need .*0.6")
    assert len(played["kernel_complete"]) == 1


@pytest.mark.parametrize("version", ["0.6.0", "1.0.0"])
def test_host_trap_samples(replay: Replay, version: str) -> None:
    """Their record has a different kind in 0.6."""
    s = loaded()
    s.complete(launching(s))
    sample(s, count=3)
    played = unharmed(replay(s, version, settings="amd.pc_sampling=100us\n"))
    assert played.rows("pc_sample", "samples", "ordinal") == [(3, 0)]


def test_counters_and_samples_are_mutually_exclusive(replay: Replay) -> None:
    s = loaded()
    s.complete(launching(s))
    sample(s)
    played = unharmed(
        replay(s, settings=f"{COUNTERS}amd.pc_sampling=100us\n"), "cannot count and sample"
    )
    assert len(played["counter"]) == 5
    assert len(played["pc_sample"]) == 0


@pytest.mark.parametrize(
    "function",
    ["query_pc_sampling_agent_configurations", "create_buffer", "configure_pc_sampling_service"],
)
def test_unavailable_samples(replay: Replay, function: str) -> None:
    s = loaded()
    s.complete(launching(s))
    sample(s)
    played = unharmed(
        replay(s, settings="amd.pc_sampling=100us\n", REPLAY_FAIL=f"{function}=38"),
        "PC samples are not recorded: .* failed with 38",
    )
    assert len(played["pc_sample"]) == 0
    assert len(played["kernel_complete"]) == 1
