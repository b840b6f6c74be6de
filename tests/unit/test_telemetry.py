"""Sampling of devices: the thread, other processes, ordinals, and AMD SMI's answers."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pasta import abi
from pasta._native import ffi, lib
from pasta.backends.amd import telemetry as amd
from pasta.backends.base import Sample
from pasta.backends.nvidia.telemetry import link_bandwidth, throttle, visible_ordinals
from pasta.errors import RunError
from pasta.runtime.ring import Ring
from pasta.runtime.telemetry import DeviceSampling, packed
from tests.support.places import PROGRAMS
from tests.support.preload import wait_until
from tests.support.session import RING_SOURCES, Session, compile_c

FULL = Sample(
    power=300_000, power_limit=700_000, clock=1500, max_clock=1980, memory_clock=2619, throttle=5,
    temperature=60, utilization=90, memory_activity=40, memory_used=5 << 30, memory_total=80 << 30,
    link_bandwidth=450_000,
)  # fmt: skip


class FakeSampler:
    """Devices whose samples are given; an exception is raised."""

    def __init__(self, *answers: Sample | Exception, fails: Exception | None = None) -> None:
        self.answers, self.fails = answers, fails
        self.asked: list[int] = []
        self.closed = False
        self.environment: Mapping[str, str] = {}
        self.entered, self.go_on = threading.Event(), threading.Event()
        self.go_on.set()

    def open(self) -> list[str]:
        if self.fails:
            raise self.fails
        return [f"GPU-{number}" for number in range(len(self.answers))]

    def sample(self, device: int) -> Sample:
        self.entered.set()
        self.go_on.wait()
        self.asked.append(device)
        answer = self.answers[device]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def ordinals(self, environment: Mapping[str, str]) -> dict[int, int]:
        self.environment = environment
        return {number: number + 1 for number in range(len(self.answers))}

    def close(self) -> None:
        self.closed = True


@pytest.fixture(scope="module")
def producer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("producer") / "ring_producer"
    return compile_c(output, [*RING_SOURCES, PROGRAMS / "ring_producer.c"], "-O2")


@pytest.fixture
def ring(producer: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Ring]:
    """The ring of a process that has published nothing and ended; a parameter has settings of its
    session."""
    session = Session.create(tmp_path / "session")
    configuration = session.configuration(**getattr(request, "param", {}))
    environment = {**os.environ, "PASTA_SHIM": configuration}
    subprocess.run([producer], input="", text=True, check=True, env=environment)
    (path,) = (session.directory / "rings").iterdir()
    ring = Ring(path)
    yield ring
    ring.close()


def recorded(ring: Ring) -> list[dict[str, Any]]:
    names = abi.dtype("device_sample").names or ()
    return [
        {name: record[name].item() for name in names}
        for batch, _ in ring.batches(0, final=True)
        for record in batch["device_sample"]
    ]


def sampled(ring: Ring, sampler: FakeSampler, times: int = 1, **how: Any) -> list[dict[str, Any]]:
    """Samples in the ring after the thread took some."""
    log: list[str] = []
    sampling = DeviceSampling(sampler, 0.001, how.get("is_ours", lambda pid: False), log.append)
    sampling.follow("ring", ring)
    wait_until(lambda: len(recorded(ring)) >= times or log, "samples are in the ring")
    assert sampling.stop()
    assert sampler.closed
    return recorded(ring)


def test_payload_has_the_layout_of_the_header() -> None:
    payload = packed(7, FULL, 2, 3 << 30)
    assert len(payload) == ffi.sizeof("pasta_device_sample")
    record = ffi.from_buffer("pasta_device_sample *", payload)
    for name in set(Sample._fields) - {"processes"}:
        assert getattr(record, name) == getattr(FULL, name), name
    assert (record.uuid, record.others, record.memory_others) == (7, 2, 3 << 30)
    empty = ffi.from_buffer("pasta_device_sample *", packed(7, Sample(), None, None))
    assert (empty.power, empty.temperature, empty.memory_used) == (2**32 - 1, 2**16 - 1, 2**64 - 1)


def test_values_that_do_not_fit_are_absent() -> None:
    sample = FULL._replace(power=1 << 40, temperature=-3, clock=2**32 - 1)
    record = ffi.from_buffer("pasta_device_sample *", packed(7, sample, 0, 0))
    assert (record.power, record.temperature, record.clock) == (2**32 - 1, 2**16 - 1, 2**32 - 1)
    assert record.max_clock == 1980


def test_samples_are_records_of_the_ring(ring: Ring) -> None:
    first, *_ = sampled(ring, FakeSampler(FULL))
    assert ring.string(first["uuid"]) == "GPU-0"
    assert (first["device"], first["thread"], first["flags"]) == (1, 0, 0)
    assert (first["context"], first["stream"], first["correlation"]) == (2**16 - 1, 2**64 - 1, 0)
    assert (first["power"], first["memory_total"]) == (300_000, 80 << 30)
    times = [each["time"] for each in recorded(ring)]
    assert times == sorted(times) and times[0] > ring.start_time


def test_a_failing_device_is_left_out_once(ring: Ring) -> None:
    sampler = FakeSampler(RuntimeError("gone"), FULL)
    log: list[str] = []
    sampling = DeviceSampling(sampler, 0.001, lambda pid: False, log.append)
    sampling.follow("ring", ring)
    wait_until(lambda: sampler.asked.count(1) >= 3, "the other device is sampled")
    sampling.stop()
    assert sampler.asked.count(0) == 1
    assert log == ["device GPU-0 is no longer sampled: RuntimeError: gone"]
    assert {ring.string(each["uuid"]) for each in recorded(ring)} == {"GPU-1"}


def test_a_library_that_fails_is_one_line(ring: Ring) -> None:
    log: list[str] = []
    sampler = FakeSampler(fails=OSError("no driver"))
    sampling = DeviceSampling(sampler, 0.001, lambda pid: False, log.append)
    sampling.follow("ring", ring)
    wait_until(lambda: log, "the failure is logged")
    assert sampling.stop()
    assert log == ["devices are not sampled: OSError: no driver"]
    assert recorded(ring) == []


def test_nothing_is_appended_after_the_end(ring: Ring) -> None:
    sampler = FakeSampler(FULL)
    sampler.go_on.clear()
    sampling = DeviceSampling(sampler, 0.001, lambda pid: False, print)
    sampling.follow("ring", ring)
    assert sampler.entered.wait(30)  # the library is asked, when the process ends
    sampling.leave("ring")
    sampler.go_on.set()
    assert sampling.stop()
    assert recorded(ring) == []
    assert len(sampler.asked) == 1  # nor is the library asked without processes


def test_events_of_devices_name_their_ordinals(ring: Ring) -> None:
    """The fake sampler guesses 1 for GPU-0 and 2 for GPU-1."""
    device = ffi.new("pasta_device *")
    device.uuid = ring.intern("GPU-0")
    payload = ffi.buffer(device)[:]
    assert lib.pasta_append(ring._ring, abi.KINDS["device"], 2, payload, len(payload))
    rows = sampled(ring, FakeSampler(FULL, FULL), times=2)
    found = {ring.string(each["uuid"]): each["device"] for each in rows}
    assert found == {"GPU-0": 2, "GPU-1": -1}  # 2 is taken, so the guess was wrong


def test_full_ring_drops_and_counts(ring: Ring) -> None:
    payload = packed(ring.intern("GPU-0"), FULL, 0, 0)
    slots = len(payload) // abi.SLOT + 1
    room = ring.segment_slots * ring.backed // slots
    assert lib.pasta_has_room(ring._ring, slots)
    kept = sum(ring.append_sample(0, payload) for _ in range(room + 10))
    assert kept == room
    assert not lib.pasta_has_room(ring._ring, slots)
    assert ring.dropped() == {"device_sample": 10}
    assert len(recorded(ring)) == room


@pytest.mark.parametrize("ring", [{"ring_max": 8 << 20}], indirect=True, ids=["8 MiB"])
def test_room_comes_with_memory(ring: Ring) -> None:
    payload = packed(ring.intern("GPU-0"), FULL, 0, 0)
    ring.back_ahead()
    appended = 0
    while lib.pasta_has_room(ring._ring, 2) and ring.segments < ring.max_segments:
        appended += ring.append_sample(0, payload)
        if not lib.pasta_has_room(ring._ring, 2):
            ring.back_ahead()
    assert ring.segments == ring.max_segments  # nothing to wait for
    assert ring.dropped() == {} and appended > ring.segment_slots


def test_strings_of_the_launcher_are_those_of_the_ring(ring: Ring) -> None:
    id = ring.intern("GPU-0")
    assert id and ring.intern("GPU-0") == id != ring.intern("GPU-1")
    assert ring.string(id) == "GPU-0"


@pytest.mark.parametrize(
    ("processes", "ours", "expected"),
    [
        (None, (), (2**16 - 1, 2**64 - 1)),
        ({}, (), (0, 0)),
        ({1: 10, 2: 20}, (2,), (1, 10)),
        ({1: None}, (), (1, 2**64 - 1)),
        ({1: 10, 1 << 23: 20}, (), (2**16 - 1, 2**64 - 1)),  # no such process here
        ({os.getpid(): 10}, (), (0, 0)),  # descends from the launcher
    ],
)
def test_other_processes(
    ring: Ring, processes: dict[int, int | None] | None, ours: tuple[int, ...],
    expected: tuple[int, int],
) -> None:  # fmt: skip
    sampler = FakeSampler(FULL._replace(processes=processes))
    first, *_ = sampled(ring, sampler, is_ours=lambda pid: pid in ours)
    assert (first["others"], first["memory_others"]) == expected


UUIDS = ["GPU-aa00", "GPU-ab00", "GPU-ac00"]


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        (None, {0: 0, 1: 1, 2: 2}),
        ("", {}),
        ("1", {1: 0}),
        ("2, 0", {2: 0, 0: 1}),
        ("0,-1,1", {0: 0}),
        ("0,3,1", {0: 0}),
        ("1,1", {}),
        ("gpu-AB", {1: 0}),
        ("GPU-a", {}),  # not unique
        ("GPU-ac00,GPU-aa", {2: 0, 0: 1}),
        ("MIG-GPU-aa00/1/0", {0: -1, 1: -1, 2: -1}),
    ],
)
def test_visible_nvidia_devices(visible: str | None, expected: dict[int, int]) -> None:
    assert visible_ordinals(UUIDS, visible, in_order=True, is_mig=False) == expected


def test_order_of_different_devices_is_not_known() -> None:
    unknown = {0: -1, 1: -1, 2: -1}
    for visible in (None, "1"):
        assert visible_ordinals(UUIDS, visible, in_order=False, is_mig=False) == unknown
        assert visible_ordinals(UUIDS, visible, in_order=True, is_mig=True) == unknown
    assert visible_ordinals(UUIDS, "GPU-ab", in_order=False, is_mig=True) == {1: 0}


class FakeNvml:
    """A device's links as pynvml gives them: `versions` of NVLinks, None for an inactive one."""

    NVML_NVLINK_MAX_LINKS = 18
    NVML_NVLINK_VERSION_3_0, NVML_NVLINK_VERSION_4_0, NVML_NVLINK_VERSION_5_0 = 4, 6, 7

    class NVMLError(Exception): ...

    def __init__(self, *versions: int | None, pcie: tuple[int, int] | None = None) -> None:
        self.versions, self.pcie = versions, pcie

    def nvmlDeviceGetNvLinkVersion(self, handle: int, link: int) -> int | None:
        if link >= len(self.versions):
            raise self.NVMLError
        return self.versions[link]

    def nvmlDeviceGetNvLinkState(self, handle: int, link: int) -> bool:
        return self.nvmlDeviceGetNvLinkVersion(handle, link) is not None

    def _pcie(self, place: int) -> int:
        if self.pcie is None:
            raise self.NVMLError
        return self.pcie[place]

    def nvmlDeviceGetMaxPcieLinkGeneration(self, handle: int) -> int:
        return self._pcie(0)

    def nvmlDeviceGetMaxPcieLinkWidth(self, handle: int) -> int:
        return self._pcie(1)


@pytest.mark.parametrize(
    ("nvml", "expected"),
    [
        (FakeNvml(*[6] * 18, pcie=(5, 16)), 450_000),  # H100, H200
        (FakeNvml(*[7] * 18, pcie=(5, 16)), 900_000),  # B200
        (FakeNvml(6, None, 6), 50_000),
        (FakeNvml(6, 99), None),  # a version that is not known
        (FakeNvml(None, None, pcie=(4, 16)), 31_504),  # without a partner
        (FakeNvml(pcie=(5, 16)), 63_008),
        (FakeNvml(pcie=(99, 16)), None),
        (FakeNvml(), None),
    ],
)
def test_bandwidth_of_links(nvml: FakeNvml, expected: int | None) -> None:
    assert link_bandwidth(nvml, 0) == expected


def test_reasons_are_bits() -> None:
    bits = abi.THROTTLE
    assert throttle(0) == 0
    assert throttle(0x1) == bits["idle"]
    assert throttle(0x4 | 0x40 | 0x8) == bits["power"] | bits["thermal"] | bits["hardware"]
    assert throttle(0x2 | 1 << 50) == bits["setting"] | bits["other"]


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, {0: 0, 1: 1, 2: 2}),
        ({"HIP_VISIBLE_DEVICES": "2,1"}, {2: 0, 1: 1}),
        ({"CUDA_VISIBLE_DEVICES": "2"}, {2: 0}),
        ({"HIP_VISIBLE_DEVICES": "0", "CUDA_VISIBLE_DEVICES": "2"}, {0: 0}),
        ({"ROCR_VISIBLE_DEVICES": "1,2", "HIP_VISIBLE_DEVICES": "1"}, {2: 0}),
        ({"ROCR_VISIBLE_DEVICES": "1,9,0"}, {1: 0}),
        # PASTA's source numbers all devices then
        ({"ROCR_VISIBLE_DEVICES": "GPU-ab"}, {1: -1}),
    ],
)
def test_visible_amd_devices(environment: dict[str, str], expected: dict[int, int]) -> None:
    assert amd.visible_ordinals(UUIDS, environment) == expected


class FakeSmi(SimpleNamespace):
    """AMD SMI with two devices, listed against HIP's order."""

    AmdSmiClkType = SimpleNamespace(GFX="GFX", MEM="MEM")
    AmdSmiTemperatureType = SimpleNamespace(HOTSPOT=1)
    AmdSmiTemperatureMetric = SimpleNamespace(CURRENT=0)
    amdsmi_wrapper = SimpleNamespace(AMDSMI_STATUS_BUSY=30)

    def __init__(self, **answers: Any) -> None:
        self.answers, self.calls = answers, list[str]()
        super().__init__()

    def amdsmi_init(self) -> None: ...
    def amdsmi_shut_down(self) -> None: ...

    def amdsmi_get_processor_handles(self) -> list[int]:
        return [1, 0]

    def amdsmi_get_gpu_enumeration_info(self, handle: int) -> dict[str, Any]:
        return {"hip_id": handle, "hip_uuid": f"GPU-{handle:016x}"}

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("amdsmi_get_"):
            raise AttributeError(name)

        def answer(handle: int, *arguments: Any) -> Any:
            self.calls.append(name)
            found = self.answers[name.removeprefix("amdsmi_get_")]
            if isinstance(found, Exception):
                raise found
            return found(*arguments) if callable(found) else found

        return answer


ANSWERS: dict[str, Any] = {
    "power_info": {"socket_power": "N/A", "current_socket_power": 310},
    "power_cap_info": {"power_cap": 750_000_000},
    "clock_info": lambda type: {"clk": {"GFX": 1700, "MEM": 900}[type], "max_clk": 2100},
    "violation_status": {"active_ppt_pwr": True, "active_vr_thrm": False, "active_prochot_thrm": 0},
    "temp_metric": 64,
    "gpu_activity": {"gfx_activity": 97, "umc_activity": 65535},
    "gpu_vram_usage": {"vram_used": 1024, "vram_total": 196_608},
    "gpu_device_bdf": "0000:05:00.0",
    "link_metrics": {"num_links": 0, "links": []},
    "pcie_info": {"pcie_static": {"max_pcie_width": 16, "pcie_interface_version": 5}},
    "gpu_process_list": [
        {"pid": 5, "memory_usage": {"vram_mem": 1 << 30}},
        {"pid": 6, "memory_usage": {"vram_mem": 0}},
    ],
}


def test_answers_of_amd_smi() -> None:
    sampler = amd.AmdSmiSampler(FakeSmi(**ANSWERS))
    assert sampler.open() == ["GPU-0000000000000000", "GPU-0000000000000001"]
    assert sampler.sample(0) == Sample(
        power=310_000, power_limit=750_000, clock=1700, max_clock=2100, memory_clock=900,
        throttle=abi.THROTTLE["power"], temperature=64, utilization=97, memory_activity=None,
        memory_used=1 << 30, memory_total=192 << 30, link_bandwidth=63_008, processes={5: 1 << 30},
    )  # fmt: skip


def amd_links(*speeds: int | str) -> dict[str, Any]:
    """As AMD SMI lists them: the device itself among them, and places without a link."""
    links = [{"bdf": f"0000:{n:02x}:00.0", "max_bandwidth": gb} for n, gb in enumerate(speeds)]
    unused = {"bdf": "0000:00:00.0", "max_bandwidth": 512}
    return {"num_links": len(links), "links": [*links, unused]}


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ({"link_metrics": amd_links(*[512] * 8)}, 448_000),  # MI300X, with itself
        ({"link_metrics": amd_links(512, *["N/A"] * 3)}, 64_000),
        ({"link_metrics": amd_links("N/A")}, 63_008),
        ({"link_metrics": RuntimeError("not supported")}, 63_008),
        (
            {"pcie_info": {"pcie_static": {"max_pcie_width": 16, "pcie_interface_version": 99}}},
            None,
        ),
        ({"gpu_device_bdf": RuntimeError("not supported")}, None),
    ],
)
def test_bandwidth_of_amd_links(answers: dict[str, Any], expected: int | None) -> None:
    sampler = amd.AmdSmiSampler(FakeSmi(**{**ANSWERS, **answers}))
    sampler.open()
    assert sampler.sample(0).link_bandwidth == expected


def test_queries_that_amd_smi_cannot_answer() -> None:
    busy, never = RuntimeError("busy"), RuntimeError("not supported")
    busy.err_code = 30  # type: ignore[attr-defined]
    smi = FakeSmi(**{**ANSWERS, "temp_metric": busy, "gpu_activity": never})
    sampler = amd.AmdSmiSampler(smi)
    sampler.open()
    for _ in range(3):
        sample = sampler.sample(0)
        assert (sample.temperature, sample.utilization, sample.power) == (None, None, 310_000)
    assert smi.calls.count("amdsmi_get_temp_metric") == 3
    assert smi.calls.count("amdsmi_get_gpu_activity") == 1


def test_launcher_and_process_publish_at_once(producer: Path, tmp_path: Path) -> None:
    session = Session.create(tmp_path / "session")
    environment = {**os.environ, "PASTA_SHIM": session.configuration()}
    kind, count = abi.KINDS["memory_set"], 1_000_000
    process = subprocess.Popen([producer], stdin=subprocess.PIPE, text=True, env=environment)
    assert process.stdin is not None
    process.stdin.write(f"publish {kind} 1 1\n")
    process.stdin.flush()
    directory = session.directory / "rings"

    def opened() -> Ring | None:
        with suppress(RunError):  # it is not initialized yet
            return next((Ring(path) for path in directory.iterdir()), None)
        return None

    wait_until(opened, "the process has a ring")
    ring = opened()
    assert ring is not None
    payload = packed(ring.intern("GPU-0"), FULL, 0, 0)
    process.stdin.write(f"publish {kind} 2 {count - 1}\n")
    process.stdin.close()
    appended = 0
    while process.poll() is None:
        ring.back_ahead()
        appended += sum(ring.append_sample(0, payload) for _ in range(100))
    found = {"device_sample": 0, "memory_set": 0}
    positions = []
    for batch, _ in ring.batches(0, final=True):
        for name in found:
            found[name] += len(batch[name])
        positions += batch.positions(batch["device_sample"]).tolist()
    assert found == {"device_sample": appended, "memory_set": count}
    assert ring.torn == 0 and appended > 100
    # they were at work at once: samples lie between events of the process
    assert max(positions) - min(positions) > 2 * appended
    ring.close()
