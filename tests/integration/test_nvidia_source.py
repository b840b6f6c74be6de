"""The NVIDIA source driven by a fake library: the records of each callback."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pasta import abi
from tests.support.places import PROGRAMS, ROOT
from tests.support.played import ABSENT16, ABSENT32, ABSENT64, LIBRARY, Played
from tests.support.played import play as play_program

SOURCES = PROGRAMS / "nvidia"
DEVICE, STREAM = 3, 0x51


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("fake-cuda")
    compiler = [os.environ.get("CC", "cc"), "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1"]
    library = [*compiler, "-shared", "-fPIC", "-fvisibility=hidden", SOURCES / "fake_sanitizer.c"]
    subprocess.run([*library, "-o", directory / "libsanitizer-public.so"], check=True)
    program = [*compiler, f"-I{ROOT / 'shim' / 'sources'}", SOURCES / "fake_cuda_program.c"]
    subprocess.run([*program, "-o", directory / "program", "-ldl", "-lpthread"], check=True)
    return directory


Play = Callable[..., Played]


@pytest.fixture
def play(built: Path, tmp_path: Path) -> Play:
    def run(*scripts: str, inject: str = "both", settings: str = "", **extra: str) -> Played:
        fake = str(built / "libsanitizer-public.so")
        if "sanitizer_lib" not in settings:
            settings += f"sanitizer_lib={fake}\n"
        settings += "nvidia.source=sanitizer\n"
        environment = {"FAKE_SANITIZER": fake, **extra}
        if inject in ("both", "preload"):
            environment["LD_PRELOAD"] = str(LIBRARY)
        if inject in ("both", "cuda"):
            environment["CUDA_INJECTION64_PATH"] = str(LIBRARY)
        return play_program([built / "program", *scripts], tmp_path, settings, **environment)

    return run


@pytest.fixture(params=["12.9", "13.5"])
def layout(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("inject", ["both", "preload", "cuda"])
def test_every_injection_method_records_without_side_effects(play: Play, inject: str) -> None:
    played = play("context", inject=inject)
    assert (played.status, played.stdout, played.stderr) == (7, "done\n", "")
    assert len(played["context_create"]) == 1
    start = played["process_start"][0]
    assert played.strings[int(start["source"])] == "nvidia_sanitizer"
    assert played.strings[int(start["version"])] == "13.5"


def test_process_without_cuda_leaves_no_run(play: Play, built: Path, tmp_path: Path) -> None:
    environment = {
        "PASTA_SHIM": f"session={tmp_path}\nschema={abi.SCHEMA}\nsanitizer_lib=/nonexistent\n",
        "LD_PRELOAD": str(LIBRARY),
    }
    done = subprocess.run(["/bin/true"], env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert not (tmp_path / "rings").exists()


def test_context_stream_module(play: Play, layout: str) -> None:
    played = play("context", FAKE_SANITIZER_API=layout)
    (context,) = played["context_create"]
    assert (context["handle"], context["context"], context["device"]) == (0xC0, 0, DEVICE)
    (stream,) = played["stream_create"]
    assert (stream["handle"], stream["id"], stream["device"]) == (STREAM, 0x5151, DEVICE)
    (module,) = played["module_load"]
    assert (module["handle"], module["bytes"]) == (0x4000, 24)
    assert module["hash"] not in (0, ABSENT64)
    (version,) = {played.strings[int(n)] for n in played["process_start"]["version"]}
    assert version == layout


def test_memory_as_recorded_on_an_h200(play: Play, layout: str) -> None:
    played = play("context", "memory", FAKE_SANITIZER_API=layout)
    allocs = played["memory_alloc"]
    memory = abi.enums()["memory"]
    assert [
        (memory[int(a["memory"])], int(a["address"]), int(a["bytes"])) for a in allocs[:-2]
    ] == [
        ("virtual", 0x200000000, 4297064448),
        ("device", 0x7F4D56C00000, 512),
        ("device", 0x7F4D4FE00000, 1048576),
        ("virtual", 0x7F4D34000000, 33554432),
        ("managed", 0x7F4D34000000, 4096),
        ("pinned", 0x7F4D54800000, 4096),
        ("pool", 0x302000000, 4096),
        ("module", 0x7F0000000000, 64),
        ("external", 0x303000000, 8192),
    ]
    assert [(memory[int(a["memory"])], int(a["address"])) for a in allocs[-2:]] == [
        ("array", 0xA1),
        ("external", 0x7F1200000000),
    ]
    assert allocs[-2]["bytes"] == ABSENT64
    internal = [bool(a["flags"] & abi.FLAG_INTERNAL) for a in allocs]
    assert internal[:4] == [True, True, False, False]
    assert allocs[6]["flags"] == abi.FLAG_ASYNC
    assert (allocs[6]["stream"], allocs[2]["stream"]) == (STREAM, ABSENT64)
    assert {int(a["context"]) for a in allocs[1:3]} == {0}

    frees = [(int(f["address"]), int(f["memory"])) for f in played["memory_free"]]
    kinds = {name: number for number, name in memory.items()}
    assert frees == [
        (0xA1, kinds["array"]),
        (0x302000000, kinds["pool"]),
        (0x7F4D34000000, kinds["managed"]),
        (0x7F4D54800000, kinds["pinned"]),
        (0x7F4D34000000, kinds["virtual"]),
    ]


def test_memory_sets_have_bytes(play: Play) -> None:
    sets = play("context", "memory")["memory_set"]
    assert sets["bytes"].tolist() == [4097, 4096, 30000, 4000, 2000, 2000]
    assert sets["element"].tolist() == [1, 1, 1, 4, 2, 4]
    assert sets["pitch"].tolist() == [0, 0, 512, 0, 0, 512]
    assert [bool(f & abi.FLAG_ASYNC) for f in sets["flags"]] == [False, True, *[False] * 4]


def test_copies(play: Play) -> None:
    copies = play("context", "memory")["memory_copy"]
    direction = abi.enums()["copy"]
    assert [direction[int(d)] for d in copies["direction"]] == [
        "host_to_device",
        "device_to_host",
        "device_to_device",
    ]
    assert copies["bytes"].tolist() == [4096, 3000, 4096]
    assert copies["source_pitch"].tolist() == [4096, 512, 4096]
    assert copies["source_device"].tolist() == [-1, DEVICE, DEVICE]
    assert copies["destination_device"].tolist() == [DEVICE, -1, DEVICE]
    assert set(copies["destination_stream"].tolist()) == {int(ABSENT64)}


def test_peer_copies_and_reused_context_handle(play: Play, layout: str) -> None:
    played = play("context", "peer", FAKE_SANITIZER_API=layout)
    peer, unknown = played["memory_copy"]
    assert abi.enums()["copy"][int(peer["direction"])] == "peer_to_peer"
    assert (peer["source_device"], peer["destination_device"]) == (DEVICE, DEVICE + 1)
    assert peer["destination_stream"] == STREAM + 1
    assert unknown["direction"] == ABSENT32
    created, destroyed = played["context_create"], played["context_destroy"]
    assert created["context"].tolist() == [0, 1, 2]
    assert created["device"].tolist() == [DEVICE, DEVICE + 1, DEVICE + 2]
    assert destroyed["context"].tolist() == [1]
    (stream,) = played["stream_destroy"]  # reported while its context is being destroyed
    assert (stream["context"], stream["device"]) == (1, DEVICE + 1)


def memory(records: np.ndarray[Any, Any]) -> list[tuple[Any, ...]]:
    """Address, bytes, device and context (None: absent) of records of device memory."""
    assert set(records["memory"].tolist()) == {1}
    return [
        (int(r["address"]), int(r["bytes"]), int(r["device"]), context(r["context"]))
        for r in records
        if not r["flags"] & abi.FLAG_INTERNAL
    ]


def context(number: Any) -> int | None:
    return None if number == ABSENT16 else int(number)


def test_contexts_of_one_device_see_each_others_memory(play: Play, layout: str) -> None:
    played = play("context", "siblings", FAKE_SANITIZER_API=layout)
    created, destroyed = played["context_create"], played["context_destroy"]
    assert created["context"].tolist() == [0, 1, 2]
    assert destroyed["context"].tolist() == [0, 1]
    assert played["stream_destroy"]["context"].tolist() == [0, 1]
    allocs = played["memory_alloc"]
    allocs, frees = allocs[allocs["memory"] == 1], played["memory_free"]
    # with two contexts the driver does not report which one allocated
    assert memory(allocs) == [
        (0x1E800000, 4096, DEVICE, 0),
        (0xF4800000, 8192, DEVICE, None),
        (0x1E800000, 12288, DEVICE, 2),
    ]
    assert memory(frees) == [
        (0x1E800000, 4096, DEVICE, None),
        (0xF4800000, 8192, DEVICE, 1),  # with its context
    ]
    for records in (allocs, frees):
        own = records[records["bytes"] == 512]
        assert [(int(r["context"]), int(r["flags"])) for r in own] == [
            (0, abi.FLAG_INTERNAL),
            (1, abi.FLAG_INTERNAL),
        ]
    times = [frees["time"][-1], destroyed["time"][1], created["time"][2]]
    assert times == sorted(times)


def test_peers_see_memory_and_copy_by_address(play: Play, layout: str) -> None:
    played = play("context", "peers", FAKE_SANITIZER_API=layout)
    near, far = DEVICE, DEVICE + 1
    allocs, frees = played["memory_alloc"], played["memory_free"]
    own = allocs[(allocs["memory"] == 1)]
    assert memory(own) == [
        (0x33E00000, 65536, near, 0),
        (0x52A10000, 131072, far, 1),
        (0x53A10000, 256, far, 1),
    ]
    (managed,) = frees[frees["memory"] == 2]
    assert (managed["address"], managed["device"]) == (0x60000000, near)
    # the last two with the context of their device
    assert memory(frees[frees["memory"] == 1]) == [
        (0x33E00000, 65536, near, 0),
        (0x52A10000, 131072, far, 1),
        (0x53A10000, 256, far, 1),
    ]
    assert played["context_destroy"]["context"].tolist() == [0, 1]
    copies = [
        (
            abi.enums()["copy"][int(copy["direction"])],
            int(copy["device"]),
            int(copy["source_device"]),
            int(copy["destination_device"]),
        )
        for copy in played["memory_copy"]
    ]
    within, between = "device_to_device", "peer_to_peer"
    assert copies == [
        (within, near, near, near),
        (between, near, near, far),
        (between, far, far, near),
        (within, near, near, near),
        (within, near, near, near),
        (within, near, near, near),
        (within, far, far, far),
        (between, far, near, far),
        (between, far, near, far),
        (within, far, far, far),
    ]


def test_missed_notifications(play: Play) -> None:
    played = play("context", "missed")
    assert played["memory_alloc"]["bytes"].tolist()[2:] == [16, 16, 32]
    assert [(int(f["address"]), int(f["bytes"])) for f in played["memory_free"]] == [
        (0x10000, 32),
        (0x20000, 64),
    ]


def test_threads_lose_no_allocation(play: Play) -> None:
    played = play("context", "churn")
    assert (played.status, played.stderr) == (7, "")
    allocs, frees = played["memory_alloc"], played["memory_free"]
    allocs = allocs[(allocs["memory"] == 1) & (allocs["flags"] & abi.FLAG_INTERNAL == 0)]
    frees = frees[frees["flags"] & abi.FLAG_INTERNAL == 0]
    for records in (allocs, frees):
        churned = records[records["address"] >= 1 << 32]
        assert len(churned) == 8 * 1000
        assert set(churned["device"].tolist()) == {DEVICE}
        assert (records["address"] == 0x10000).sum() == 20
    copies = played["memory_copy"]
    assert set(copies["source_device"].tolist()) == {DEVICE}
    assert len(copies) == 8 * 1000
    # a device's memory is freed with the last context that sees it
    assert played["context_destroy"]["context"].tolist() == [*range(2, 22), 1, 0]
    assert (frees["time"] <= played["context_destroy"]["time"][-1]).all()


def test_launches(play: Play) -> None:
    played = play("context", "launches")
    launches, ends = played["kernel_launch"], played["kernel_launch_end"]
    assert played.names("kernel_launch") == ["_Z4vaddPf"] * 10 + ["_Z4failPf"] * 2 + ["_Z5otherPf"]
    assert launches["ordinal"].tolist() == list(range(13))
    assert launches["grid"][:10].tolist() == [[i + 1, 2, 1] for i in range(10)]
    assert launches["block"][0].tolist() == [256, 1, 1]
    assert launches["cluster"][0].tolist() == [2, 1, 1]
    assert launches["cluster"][11].tolist() == [ABSENT16] * 3
    assert set(launches["stream"].tolist()) == {STREAM}
    assert launches["entry_pc"].tolist() == [0x4000 + 16 * 9] * 12 + [0x4000 + 16 * 10]
    assert set(launches["shared_dynamic"].tolist()) == {int(ABSENT32)}
    ended = dict(zip(ends["ordinal"].tolist(), ends["correlation"].tolist(), strict=True))
    begun = dict(zip(launches["ordinal"].tolist(), launches["correlation"].tolist(), strict=True))
    del begun[10]  # it never ended
    assert ended == begun
    assert "looked up 3 functions\n" in played.stdout


def test_a_function_without_address_is_still_recorded(play: Play) -> None:
    launches = play("context", "launches", FAKE_SANITIZER_FAIL="function_pc=1")["kernel_launch"]
    assert len(launches) == 13
    assert set(launches["entry_pc"].tolist()) == {int(ABSENT64)}


def test_graph_nodes_are_launches_and_uploads_are_not(play: Play) -> None:
    played = play("context", "graph")
    assert played["graph_launch"]["upload"].tolist() == [1, 0, 0]
    assert played["graph_launch_end"]["launch_id"].tolist() == [int(ABSENT64), 1, 2]
    assert (
        played["graph_launch"]["correlation"].tolist()
        == played["graph_launch_end"]["correlation"].tolist()
    )
    launches = played["kernel_launch"]
    assert launches["graph_node"].tolist() == [0x91, 0x91]
    assert launches["stream"].tolist() == [STREAM, STREAM]
    assert launches["correlation"].tolist() == played["kernel_launch_end"]["correlation"].tolist()
    for kind, node in (("memory_copy", 0x92), ("memory_set", 0x93)):
        assert played[kind]["graph_node"].tolist() == [node, node]
        assert played[kind]["stream"].tolist() == [STREAM, STREAM]
    for kind in ("kernel_launch", "memory_copy", "memory_set", "memory_free"):
        assert all(flags & abi.FLAG_GRAPH for flags in played[kind]["flags"])
    in_graph = played["memory_alloc"]["flags"] & abi.FLAG_GRAPH != 0
    assert played["memory_alloc"]["address"][in_graph].tolist() == [0x5000, 0x5000]
    assert played["memory_free"]["address"].tolist() == [0x5000, 0x5000]
    assert played["memory_free"]["bytes"].tolist() == [256, 256]
    assert played["memory_free"]["device"].tolist() == [DEVICE, DEVICE]


def test_synchronisation_and_events(play: Play, layout: str) -> None:
    played = play("context", "events", FAKE_SANITIZER_API=layout)
    what = abi.enums()["sync"]
    assert [(what[int(s["what"])], int(s["handle"])) for s in played["sync"]] == [
        ("stream", STREAM),
        ("context", 0xC0),
        ("event", 0xE1),
    ]
    for kind in ("event_create", "event_record", "event_wait", "event_destroy"):
        (event,) = played[kind]
        assert (event["handle"], event["device"]) == (0xE1, DEVICE)
    assert played["event_record"][0]["stream"] == STREAM
    assert played["event_create"][0]["stream"] == ABSENT64


def test_managed_memory(play: Play) -> None:
    played = play("context", "managed")
    (attach,) = played["uvm_attach"]
    assert (attach["address"], attach["advice"], attach["stream"]) == (0x7F4D34000000, 3, STREAM)
    assert played["uvm_prefetch"]["destination"].tolist() == [1, -1, 2]
    assert played["uvm_prefetch"]["bytes"].tolist() == [4096, 4096, 64]
    assert played["uvm_advise"]["advice"].tolist() == [1, 5]
    assert played["uvm_advise"]["destination"].tolist() == [-1, 2]


def test_profiler_start_and_stop(play: Play) -> None:
    played = play("context", "profiler")
    assert played.names("kernel_launch") == ["_Z8profiledv"]
    assert played["kernel_launch"]["grid"][:, 0].tolist() == [2]
    assert played["kernel_launch"]["ordinal"].tolist() == [1]
    for kind in ("profiling_start", "profiling_stop"):
        (change,) = played[kind]
        assert abi.enums()["origin"][int(change["origin"])] == "profiler"
    assert 0x8000 in played["memory_alloc"]["address"]


def test_threads_lose_no_launch(play: Play) -> None:
    played = play("threads")
    launches, ends = played["kernel_launch"], played["kernel_launch_end"]
    assert len(launches) == len(ends) == 16000
    assert sorted(launches["ordinal"].tolist()) == list(range(16000))
    assert len(set(launches["correlation"].tolist())) == 16000
    by_stream = {int(s): launches[launches["stream"] == s] for s in range(8)}
    for stream, mine in by_stream.items():
        assert mine["grid"][:, 0].tolist() == list(range(2000))
        assert {played.strings[int(n)] for n in mine["name"]} == {f"_Z1k{stream % 4}v"}
    begun = dict(zip(launches["correlation"].tolist(), launches["thread"].tolist(), strict=True))
    assert dict(zip(ends["correlation"].tolist(), ends["thread"].tolist(), strict=True)) == begun
    assert sorted(played["context_create"]["context"].tolist()) == [0, 1, 2]
    contexts = played["context_create"]
    handles = {int(context["context"]): int(context["handle"]) for context in contexts}
    for stream, mine in by_stream.items():
        assert {handles[int(number)] for number in mine["context"]} == {0x1000 + stream % 2}


def test_child_of_a_process_with_cuda_is_not_recorded(play: Play) -> None:
    played = play("context", "fork")
    assert played.names("kernel_launch") == ["_Z6parentv"]


def test_empty_subscription_records_nothing(play: Play, tmp_path: Path) -> None:
    played = play("context", "launches", settings="nvidia.empty=1\n")
    assert (played.status, played.stderr, played.tables) == (7, "", {})
    assert played.stdout.endswith("done\n")


NO_FILE, NO_SANITIZER = "sanitizer_lib=/no/such.so\n", "sanitizer_lib=libm.so.6\n"


@pytest.mark.parametrize(
    ("settings", "extra", "line"),
    [
        (NO_FILE, {}, r"/no/such\.so.*; pip install 'nvidia-cuda-sanitizer-api>=13'"),
        (NO_SANITIZER, {}, r"libm\.so\.6 has no sanitizer\w+; pip install"),
        ("", {"FAIL": "subscribe=10"}, r"subscribe failed with 10 \(The maximum.*without it"),
        ("", {"FAIL": "enable_domain=13"}, r"enable_domain failed with 13 .*driver"),
        ("", {"FAIL": "enable_callback=1"}, r"enable_callback failed with 1 .*doctor"),
        ("", {"API": "99"}, r"newer than this PASTA supports \(callback 4 of domain 5\)"),
    ],
)
def test_failing_calls_are_one_line_and_the_program_runs(
    play: Play, settings: str, extra: dict[str, str], line: str
) -> None:
    fake = {f"FAKE_SANITIZER_{name}": value for name, value in extra.items()}
    played = play("context", "launches", settings=settings, **fake)
    assert (played.status, played.stdout.splitlines()[-1]) == (7, "done")
    assert re.fullmatch(rf"pasta: CUDA is not recorded: .*{line}.*\n", played.stderr)
    assert "kernel_launch" not in played.tables


def test_silent_subscription_is_logged(play: Play) -> None:
    played = play("context", FAKE_SANITIZER_SILENT="1")
    assert (played.status, played.stderr) == (7, "")
    assert "no callback came in this process" in played.log


def test_another_injected_tool_is_logged(play: Play, built: Path) -> None:
    other = str(built / "libsanitizer-public.so")
    done = play(inject="preload", CUDA_INJECTION64_PATH=other)
    assert f"CUDA_INJECTION64_PATH names {other}" in done.log
