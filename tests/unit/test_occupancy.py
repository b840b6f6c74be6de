"""Theoretical occupancy against the arithmetic of NVIDIA's occupancy calculator, and waves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pasta import abi
from pasta.backends import find_architecture
from pasta.frameworks import conventions
from pasta.processors.launch_waves import LaunchWaves
from pasta.processors.occupancy import LIMITERS, Devices, Limits, resident, waves
from pasta.testing import Events
from pasta.tool import Context

KIB = 1024
#: Multiprocessors, kHz: a device of each architecture.
DEVICES = {"sm_75": (68, 1_545_000), "sm_80": (108, 1_410_000), "sm_86": (82, 1_695_000)}
DEVICES["sm_90"] = (132, 1_830_000)


def launch(**fields: Any) -> np.ndarray[Any, Any]:
    """A launch with 256 threads, 32 registers and no shared memory, unless given."""
    found = abi.absent_records(1, abi.dtype("kernel_launch"), "kernel_launch")
    usual = {"grid": (1, 1, 1), "block": (256, 1, 1), "registers": 32}
    for name, value in {**usual, "shared_static": 0, "shared_dynamic": 0, **fields}.items():
        found[name] = value
    return found


def devices(**fields: Any) -> tuple[Devices, Context]:
    events = Events()
    events.device(**fields)
    context = events.context()
    context.conventions = conventions()
    found = Devices()
    found.add(events.batch()["device"])
    return found, context


def limits(architecture: str, **fields: Any) -> Limits | None:
    count, clock = DEVICES[architecture]
    known, context = devices(
        architecture=architecture, multiprocessors=count, warp=32, clock=clock, **fields
    )
    return known.limits(0, context)


@pytest.mark.parametrize(
    ("architecture", "fields", "blocks", "limiter", "warps"),
    [
        # 2048 threads: 8 blocks of 8 warps; registers: 64 warps of 1024
        ("sm_90", {}, 8, "threads", 64),
        # 64 registers: 2048 of a warp, 8 warps in each quarter of 65536: 32, one block of 32
        ("sm_90", {"block": (1024, 1, 1), "registers": 64}, 1, "registers", 32),
        # 200 registers: 6400 of a warp, 2 warps in each quarter (10 in the whole): 4 blocks of 2
        ("sm_90", {"block": (64, 1, 1), "registers": 200}, 4, "registers", 8),
        # 33 registers: 1056 of a warp, in units of 256 1280: 12 in each quarter, 6 blocks of 8
        ("sm_90", {"registers": 33}, 6, "registers", 48),
        ("sm_90", {"block": (32, 1, 1)}, 32, "blocks", 32),
        # 33 threads are 2 warps
        ("sm_90", {"block": (11, 3, 1)}, 32, "threads", 64),
        # 113 KiB and 1 KiB reserved: twice in 228 KiB; a byte more: once
        ("sm_90", {"shared_dynamic": 113 * KIB}, 2, "shared memory", 16),
        ("sm_90", {"shared_static": 1, "shared_dynamic": 113 * KIB}, 1, "shared memory", 8),
        ("sm_90", {"shared_dynamic": 227 * KIB}, 1, "shared memory", 8),
        # 48 KiB and 1 KiB reserved: three times in 164 KiB
        ("sm_80", {"block": (128, 1, 1), "shared_static": 48 * KIB}, 3, "shared memory", 12),
        # 40 KiB and 1 KiB reserved: exactly four times
        ("sm_80", {"shared_static": 40 * KIB}, 4, "shared memory", 32),
        # 1536 threads: 48 warps
        ("sm_86", {"block": (1024, 1, 1)}, 1, "threads", 32),
        ("sm_86", {"block": (64, 1, 1)}, 16, "blocks", 32),
        # 10 KiB and 1 KiB reserved: 9 times in 100 KiB
        ("sm_86", {"block": (128, 1, 1), "shared_static": 10 * KIB}, 9, "shared memory", 36),
        # 128 KiB of 256 threads before Ampere: nothing reserved, units of 256 bytes
        ("sm_75", {"block": (128, 1, 1), "shared_static": 16 * KIB}, 4, "shared memory", 16),
        ("sm_75", {"block": (128, 1, 1), "shared_static": 16 * KIB + 1}, 3, "shared memory", 12),
    ],
)
def test_blocks_of_a_multiprocessor(
    architecture: str, fields: dict[str, Any], blocks: int, limiter: str, warps: int
) -> None:
    known = limits(architecture)
    assert known is not None
    (found,) = resident(launch(**fields), known)
    assert (found["blocks"], LIMITERS[found["limiter"]]) == (blocks, limiter)
    assert found["share"] * known.threads / 32 == pytest.approx(warps)


def test_a_block_that_cannot_run_has_no_occupancy() -> None:
    # 66 registers: 2304 of a warp, 73728 of a block of 32
    for fields in ({"block": (1024, 1, 1), "registers": 66}, {"shared_dynamic": 228 * KIB}):
        (found,) = resident(launch(**fields), limits("sm_90"))
        assert found["blocks"] == -1 and np.isnan(found["share"])


@pytest.mark.parametrize("name", ["registers", "shared_static", "shared_dynamic"])
def test_absent_inputs_have_no_occupancy(name: str) -> None:
    absent = np.iinfo(abi.dtype("kernel_launch")[name]).max
    both = np.concatenate([launch(**{name: absent}), launch()])
    assert resident(both, limits("sm_90"))["blocks"].tolist() == [-1, 8]
    assert resident(both, None)["blocks"].tolist() == [-1, -1]


def test_what_the_device_reports_goes_before_what_is_documented() -> None:
    known = limits("sm_90", threads=1024, blocks=2)
    assert known is not None and (known.threads, known.blocks, known.shared) == (1024, 2, 228 * KIB)


def test_an_unknown_device_has_no_limits() -> None:
    full = {"multiprocessors": 4, "warp": 64, "threads": 2560, "blocks": 32, "registers": 1 << 16}
    for fields in ({"architecture": "gfx942"}, {"architecture": ""}, {"architecture": "sm_999"}):
        known, context = devices(**full, shared=65536, clock=1000, **fields)
        assert known.limits(0, context) is None
        assert known.peak(0, "float16", context) is None
    known, context = devices(architecture="sm_90")  # multiprocessors are absent
    assert known.limits(0, context) is None
    assert known.limits(1, context) is None


def test_limits_of_several_devices() -> None:
    known, context = devices(architecture="sm_90", multiprocessors=132, warp=32)
    events = Events()
    events.device(1, multiprocessors=132, warp=32)
    second = events.batch()["device"]
    second["architecture"] = known.properties[0]["architecture"]
    known.add(second)
    assert known.common_limits(context) is not None
    assert known.common_limits(context) == known.limits(1, context)
    second["device"], second["multiprocessors"] = 2, 108
    known.add(second)
    assert known.common_limits(context) is None


@pytest.mark.parametrize(
    ("architecture", "type", "tera"),
    [
        ("sm_80", "float16", 312),  # 108 · 1.41 GHz · 2048
        ("sm_80", "bfloat16", 312),
        ("sm_80", "float32", 156),
        ("sm_80", "float64", 19.5),
        ("sm_86", "float16", 142.3),  # 82 · 1.695 GHz · 1024
        ("sm_90", "float16", 989),  # 132 · 1.83 GHz · 4096
        ("sm_90", "float8", 1979),
        ("sm_75", "float16", 107.6),  # 68 · 1.545 GHz · 1024
    ],
)
def test_peak_rates_are_those_of_the_whitepapers(architecture: str, type: str, tera: float) -> None:
    count, clock = DEVICES[architecture]
    known, context = devices(architecture=architecture, multiprocessors=count, clock=clock)
    assert known.peak(0, type, context) == pytest.approx(tera * 1e12, rel=2e-3)
    assert known.peak(0, "int4", context) is None
    assert known.peak(1, type, context) is None


@pytest.mark.parametrize(
    ("unit", "tera"),
    [("float32", 61.8), ("float64", 30.9), ("float64 matrix", 61.8), ("tf32 matrix", 494.7)],
)
def test_units_have_rates_of_their_own(unit: str, tera: float) -> None:
    count, clock = DEVICES["sm_90"]
    known, context = devices(architecture="sm_90", multiprocessors=count, clock=clock)
    assert known.unit_peak(0, unit, context) == pytest.approx(tera * 1e12, rel=2e-3)
    assert known.common_unit_peak(unit, context) == known.unit_peak(0, unit, context)


def test_names_of_architectures() -> None:
    assert find_architecture("sm_90a") is find_architecture("sm_90") is not None
    for name in ("", "sm_", "sm_x", "90", "gfx90a", "sm_37"):
        assert find_architecture(name) is None, name


def test_waves_and_their_tail() -> None:
    grids = [(1056, 1, 1), (1057, 1, 1), (132, 4, 1), (132, 4, 6), (0, 1, 1)]
    launches = np.concatenate([launch(grid=grid) for grid in grids])
    count, tail = waves(launches, resident(launches, limits("sm_90"))["blocks"], 132)
    expected = [1, 1057 / 1056, 0.5, 3, np.nan]
    assert count == pytest.approx(expected, nan_ok=True)
    assert tail == pytest.approx([0, 1055 / 1056, 0.5, 0, np.nan], nan_ok=True)


def test_waves_of_launches_that_were_recorded_before_their_device() -> None:
    events = Events()
    events.device(architecture="sm_90", multiprocessors=132, warp=32)
    context = events.context()
    context.conventions = conventions()
    found = LaunchWaves()
    small, large = launch(grid=(132, 1, 1)), launch(grid=(264, 1, 1), block=(1024, 1, 1))
    launches = np.concatenate([small, large, small])
    launches["device"] = 0
    blocks = launches["grid"].prod(axis=1)
    shapes = found.shapes(launches[:1])
    assert np.isnan(found.of(shapes, blocks[:1], context)).all()
    shapes = np.concatenate([shapes, found.shapes(launches[1:]), [-1]])
    found.add_devices(events.batch()["device"])
    waves_of_all = found.of(shapes, np.append(blocks, 1), context)
    assert waves_of_all == pytest.approx([132 / 1056, 1, 132 / 1056, np.nan], nan_ok=True)


def test_waves_of_clusters_are_whole() -> None:
    one_each = launch(grid=(132, 1, 1), cluster=(8, 1, 1))
    count, tail = waves(one_each, np.asarray([1]), 132)  # 16 clusters: 128 blocks
    assert (count[0], tail[0]) == pytest.approx((132 / 128, 1 - 4 / 128))
    too_large = launch(grid=(128, 1, 1), cluster=(8, 8, 4))
    assert np.isnan(waves(too_large, np.asarray([1]), 132)[0])


@given(
    architecture=st.sampled_from(sorted(DEVICES)),
    threads=st.integers(1, 1024),
    registers=st.integers(0, 255),
    shared=st.integers(0, 228 * KIB),
)
def test_all_blocks_fit_and_one_more_does_not(
    architecture: str, threads: int, registers: int, shared: int
) -> None:
    known = limits(architecture)
    assert known is not None
    fields = {"block": (threads, 1, 1), "registers": registers, "shared_dynamic": shared}
    (found,) = resident(launch(**fields), known)

    def fits(blocks: int) -> bool:
        units = known.architecture
        warps = -(-threads // 32)
        of_warp = -(-registers * 32 // 256) * 256
        in_part = known.registers // 4 // of_warp if of_warp else 1 << 30
        bytes = -(-(shared + units.shared_reserved) // units.shared_unit) * units.shared_unit
        return (
            blocks * warps * 32 <= known.threads
            and blocks <= known.blocks
            and blocks * warps <= 4 * in_part
            and blocks * bytes <= known.shared
            and of_warp * -(-warps // 4) * 4 <= units.block_registers
        )

    if found["blocks"] == -1:
        assert not fits(1)
    else:
        assert fits(int(found["blocks"])) and not fits(int(found["blocks"]) + 1)
        assert 0 < found["share"] <= 1
