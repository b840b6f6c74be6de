"""The trace against the rules of the Trace Event Format, and against the events."""

from __future__ import annotations

import gzip
import io
import json
from collections import Counter
from typing import Any

import pytest

from pasta import abi
from pasta.plugins import find_tools
from pasta.testing import Events, run_tool
from tests.support.allocators import allocating
from tests.support.streams import STEPS, training_run

(EventTrace,) = find_tools("event_trace")

#: Fields that each phase must have, with their types.
NUMBER = (int, float)
TIMED = {"pid": int, "ts": NUMBER}
PLACED = {**TIMED, "tid": int}
DRAWN = {**PLACED, "name": str, "cat": str, "args": dict}
PHASES: dict[str, dict[str, Any]] = {
    "X": {**DRAWN, "dur": NUMBER},
    "i": {**DRAWN, "s": str},
    "C": {**TIMED, "name": str, "args": dict},
    "M": {**PLACED, "name": str, "args": dict},
    "s": {**PLACED, "name": str, "cat": str, "id": int},
    "f": {**PLACED, "name": str, "cat": str, "id": int, "bp": str},
    "b": {**TIMED, "name": str, "cat": str, "id": str},
    "e": {**TIMED, "name": str, "cat": str, "id": str},
}


def nanoseconds(event: dict[str, Any], field: str = "ts") -> int:
    return round(1000 * event[field])


def validated(text: bytes) -> list[dict[str, Any]]:
    """Events of a trace. Raises AssertionError if it violates the format."""
    document = json.loads(text)
    assert document["schemaVersion"] == 1
    events: list[dict[str, Any]] = document["traceEvents"]
    slices: dict[tuple[int, int], list[tuple[int, int]]] = {}
    flows, nested = {}, Counter()
    named = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    numbers = Counter(e["args"]["External id"] for e in events if is_numbered(e))
    assert max(numbers.values(), default=1) == 1
    for event in events:
        for name, type_ in PHASES[event["ph"]].items():
            assert isinstance(event[name], type_), (name, event)
            assert not isinstance(event[name], bool)
        place = (event["pid"], event.get("tid", 0))
        if event["ph"] in "Xisf":
            assert place in named, f"an unnamed track: {event}"
        if event["ph"] == "X":
            begin = nanoseconds(event)
            assert event["dur"] >= 0
            slices.setdefault(place, []).append((begin, -begin - nanoseconds(event, "dur")))
        elif event["ph"] == "s":
            assert (event["cat"], event["id"]) not in flows
            flows[event["cat"], event["id"]] = event
        elif event["ph"] == "f":
            flows.pop((event["cat"], event["id"]))
        elif event["ph"] in "be":
            nested[event["cat"], event["id"], event["name"]] += 1 if event["ph"] == "b" else -1
            assert nested[event["cat"], event["id"], event["name"]] in (0, 1)
        if event["ph"] != "M" and not is_numbered(event) and "External id" in event.get("args", {}):
            assert event["args"]["External id"] in numbers
    assert not flows, "arrows to nowhere"
    assert not any(nested.values())
    for each in slices.values():
        around: list[int] = []
        for begin, end in sorted(each):
            while around and -around[-1] <= begin:
                around.pop()
            assert not around or -end <= -around[-1], "slices that cross"
            around.append(end)
    for event in events:
        if event["ph"] in "sf":
            spans = slices[event["pid"], event["tid"]]
            assert any(begin <= nanoseconds(event) <= -end for begin, end in spans)
    return events


def is_numbered(event: dict[str, Any]) -> bool:
    return event.get("cat") in ("cpu_op", "user_annotation")


def trace(events: Events, **arguments: Any) -> list[dict[str, Any]]:
    result = run_tool(EventTrace, events, options={"compress": False}, **arguments)
    file = io.BytesIO()
    result.files["trace.json"](file)
    return validated(file.getvalue())


def test_training_run_gives_a_valid_and_complete_trace() -> None:
    events = trace(training_run())
    count = Counter((event["ph"], event.get("name")) for event in events)
    launches = 4 * STEPS
    assert count["X", "cudaLaunchKernel"] == launches
    assert count["s", "ac2g"] == count["f", "ac2g"] == launches - 4
    assert count["s", "fwdbwd"] == count["f", "fwdbwd"] == launches
    kernels = ("vadd", "at::native::kernel", "triton_&_fused", "nöyau")
    assert [count["X", kernel] for kernel in kernels] == [STEPS - 1] * 4
    assert [count["X", f"step {step}"] for step in range(STEPS)] == [1] * STEPS
    assert count["b", "data"] == count["e", "data"] == STEPS
    assert count["i", "Memcpy HtoD"] == count["i", "Memcpy DtoH"] == STEPS
    assert count["X", "cudaStreamSynchronize"] == STEPS
    assert count["i", "events dropped"] == 1
    assert count["i", "[memory]"] == 2 * STEPS - 1
    slices = Counter(event["cat"] for event in events if event["ph"] == "X")
    # launches in an operator each, inside another, which has a gradient
    assert slices == {
        "cuda_runtime": launches + STEPS, "cpu_op": 3 * launches, "kernel": launches - 4,
        "user_annotation": STEPS,
    }  # fmt: skip


def test_compressed_trace_has_the_same_events() -> None:
    result = run_tool(EventTrace, training_run())
    file = io.BytesIO()
    result.files["trace.json.gz"](file)
    assert len(validated(gzip.decompress(file.getvalue()))) > 100


def test_timestamps_keep_nanoseconds() -> None:
    events = Events(start_time=5_000_000_000_000_000_000)
    events.add("mark", name="late", time=5_000_000_000_000_000_000 + 86_400_000_000_123)
    events.add("mark", name="early", time=5_000_000_000_000_000_000 - 1)
    file = io.BytesIO()
    run_tool(EventTrace, events, options={"compress": False}).files["trace.json"](file)
    assert b'"ts":86400000000.123' in file.getvalue()
    assert b'"ts":-0.001' in file.getvalue()


def test_overlapping_kernels_of_a_stream_are_all_drawn() -> None:
    events = Events()
    for start, end in ((0, 100), (50, 80), (60, 200), (210, 220)):
        ordinal = events.launch("k")
        events.launch_end(ordinal)
        events.complete(ordinal, 2_000_000 + start, 2_000_000 + end)
    kernels = [event for event in trace(events) if event.get("cat") == "kernel"]
    lanes = [event["tid"] for event in kernels]
    assert len(set(lanes)) == 3
    assert lanes[0] == lanes[3]


def test_copies_and_sets_with_device_times_are_slices_with_an_arrow_from_their_call() -> None:
    events = Events(start_time=1_000_000)
    events.operator("outer")
    events.copy(
        "host_to_device", 1, 2, 64, device=0, stream=5, correlation=1, flags=2, time=1_001_000
    )
    events.operator_end()
    events.add("memory_set", device=0, stream=5, address=2, bytes=8, value=0, correlation=2)
    events.copy_complete(1, 1_005_000, 1_007_500, "host_to_device", bytes=64, stream=5, thread=9)
    events.copy_complete(2, 1_007_500, 1_008_000, bytes=8, stream=5, thread=9)
    found = trace(events)
    copy, call, set_, set_call = (
        next(event for event in found if event["name"] == name)
        for name in ("Memcpy HtoD", "cudaMemcpyAsync", "Memset", "cudaMemset")
    )
    assert (copy["ph"], copy["cat"], copy["ts"], copy["dur"]) == ("X", "gpu_memcpy", 5, 2.5)
    assert (set_["ph"], set_["cat"], set_["ts"], set_["dur"]) == ("X", "gpu_memset", 7.5, 0.5)
    assert (call["ph"], call["cat"], call["ts"], call["dur"]) == ("X", "cuda_runtime", 1, 0)
    assert copy["tid"] == set_["tid"] == copy["args"]["stream"]
    assert call["tid"] == set_call["tid"] == 1
    assert copy["args"]["correlation"] == call["args"]["correlation"]
    assert copy["args"]["External id"] == call["args"]["External id"] == 1
    arrows = [(e["ph"], e["id"], e["tid"], e["ts"]) for e in found if e["ph"] in "sf"]
    assert arrows == [
        (phase, made["args"]["correlation"], made["tid"], made["ts"])
        for pair in ((call, copy), (set_call, set_))
        for phase, made in zip("sf", pair, strict=True)
    ]
    assert not [event for event in found if event["ph"] == "i"]


def test_copies_that_complete_in_parts_or_not_at_all_or_in_a_graph() -> None:
    events = Events(start_time=1_000_000)
    common = {"device": 0, "stream": 5}
    events.copy("device_to_host", 1, 2, 100, correlation=1, **common)
    events.copy("device_to_host", 1, 2, 100, correlation=2, **common)  # by a kernel
    events.copy("device_to_host", 1, 2, 100, correlation=3, **common, flags=abi.FLAG_GRAPH)
    events.copy("host_to_host", 1, 2, 100, **common)  # by the host
    for start in (1_100_000, 1_100_500):  # at the same time
        events.copy_complete(1, start, start + 1000, "device_to_host", bytes=50, stream=5)
    events.copy_complete(3, 1_200_000, 1_200_500, "device_to_host", bytes=100, stream=5)
    events.copy_complete(7, 1_300_000, 1_300_500, "peer_to_peer", bytes=1, stream=5)
    events.copy_complete(8, 1_400_000, 1_400_500, bytes=1, stream=5)  # of sets: no direction
    found = trace(events)
    times = sorted(
        (event["ts"], event["name"]) for event in found if event.get("cat", "").startswith("gpu_")
    )
    assert times == [
        (2, "Memcpy DtoH"), (4, "Memcpy HtoH"), (100, "Memcpy DtoH"), (100.5, "Memcpy DtoH"),
        (200, "Memcpy DtoH"), (300, "Memcpy PtoP"), (400, "Memset"),
    ]  # fmt: skip
    instants = [event["ts"] for event in found if event["ph"] == "i"]
    assert sorted(instants) == [2, 4]
    assert sum(event["ph"] == "s" for event in found) == 1  # to the first part
    assert sum(event["name"] == "cudaMemcpy" for event in found) == 2


def test_a_kernel_and_a_copy_that_overlap_on_a_stream_are_on_two_tracks() -> None:
    events = Events()
    events.launch_end(events.launch("k"))
    events.copy("device_to_host", 1, 2, 100, correlation=1)
    events.complete(0, 2_000_000, 2_000_100)
    events.copy_complete(1, 2_000_050, 2_000_080, "device_to_host", bytes=100)
    kernel, copy = (
        next(event for event in trace(events) if event.get("cat") == name)
        for name in ("kernel", "gpu_memcpy")
    )
    assert kernel["tid"] != copy["tid"] and kernel["pid"] == copy["pid"]


def test_launches_without_device_times_are_instants() -> None:
    events = Events()
    events.launch("k", stream=5)
    events.launch_end(0)
    found = trace(events)
    (instant,) = [event for event in found if event["ph"] == "i"]
    assert instant["name"] == "k"
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in found if e["name"] == "thread_name"}
    assert names[instant["pid"], instant["tid"]] == "stream 0x5"
    assert "s" not in {event["ph"] for event in found}


def test_launch_calls_without_returns_are_instants() -> None:
    events = Events()
    for ordinal in range(2):
        events.launch("k")
        events.complete(ordinal, 5000 * ordinal + 100, 5000 * ordinal + 200)
    found = trace(events)
    calls = [event for event in found if event["name"] == "cudaLaunchKernel"]
    assert [event["ph"] for event in calls] == ["i", "i"]
    assert [event["dur"] for event in found if event["ph"] == "X"] == [0.1, 0.1]
    assert not {"s", "f"} & {event["ph"] for event in found}


@pytest.mark.parametrize(
    "build",
    [
        lambda e: (e.push("a"), e.launch("k")),  # never closed
        lambda e: (e.pop(), e.pop(domain="d")),  # never opened
        lambda e: (e.push("a"), e.add("operator_begin", name="op"), e.pop()),  # crossed
        lambda e: (e.push("a"), e.push("b", domain="d"), e.pop(), e.pop(domain="d")),
        lambda e: (e.launch("k"), e.launch("k", thread=2), e.launch_end(0), e.launch_end(1)),
        lambda e: (e.add("range_start", name="r", id=1), e.add("range_start", name="r", id=1)),
        lambda e: e.add("range_end", id=9),
        lambda e: e.complete(3, 100, 200),
        lambda e: e.copy_complete(3, 100, 200),
        lambda e: (e.copy("host_to_device", 1, 2, 3, correlation=1), e.copy_complete(1, 200, 100)),
        lambda e: (e.push('quote " and \\ and </script> and \u2028'), e.pop()),
        lambda e: (e.operator("\x00\x1f\x7f\ud800" + "n" * 100_000, module="<b>\t"), e.launch("k")),
        lambda e: (e.operator("a", 3), e.operator("b", 1), e.operator_end(2), e.operator_end(1)),
        lambda e: (e.operator("a"), e.push("b", domain="torch"), e.operator_end()),
        lambda e: (e.operator("a"), e.add("operator_tensors", role=1, count=9, tensor=(7,) * 4)),
    ],
)
def test_irregular_event_streams_give_valid_traces(build: Any) -> None:
    events = Events()
    build(events)
    assert trace(events)


def test_every_event_kind_is_drawn() -> None:
    events = Events()
    for kind in abi.KINDS:
        if kind != "pad":
            events.add(kind)
    assert trace(events)


def test_memory_counters_follow_live_bytes() -> None:
    events = Events()
    events.alloc(0x1000, 100)
    events.alloc(0x1000, 60)  # the first one's free was missed
    events.alloc(0x3000, 5, device=1)
    events.free(0x1000)
    counters = [event for event in trace(events) if event["ph"] == "C"]
    reported = [(event["name"], event["args"]["bytes"]) for event in counters]
    assert reported == [
        ("device 0: device", 100), ("device 0: device", 0), ("device 0: device", 60),
        ("device 1: device", 5), ("device 0: device", 0),
    ]  # fmt: skip


def test_samples_of_devices_are_counters() -> None:
    events = Events()
    events.add("device_sample", device=1, power=250_500, clock=1500, memory_used=3 << 30)
    events.add("device_sample", uuid="GPU-2", power=100_000)  # of no known ordinal
    counters = [event for event in trace(events) if event["ph"] == "C"]
    assert [(event["name"], event["args"]) for event in counters] == [
        ("device 1: power (W)", {"W": 250.5}),
        ("device 1: clock (MHz)", {"MHz": 1500}),
        ("device 1: memory in use (MiB)", {"MiB": 3072}),
        ("GPU-2: power (W)", {"W": 100}),
    ]


def test_operators_have_inputs_and_call_stacks() -> None:
    events = Events()
    events.frames(
        5, ("/site-packages/torch/nn/functional.py", "linear", 3), ("/my/model.py", "forward", 9),
        ("/my/train.py", "<module>", 70),
    )  # fmt: skip
    events.tensor(1, 0x1000, 64, "4,16", strides="16,1")
    events.tensor(2, 0x2000, 64, "", dtype="Long")
    for id in range(3, 20):
        events.tensor(id, 0x1000 * id, 64, str(id), strides="1", dtype="BFloat16")
    events.add("operator_tensors", role=1, count=3, tensor=(17, 18, 19, 0))
    events.operator("aten::cat", inputs=range(1, 17), stack=5, module="Net.cat (Cat)", sequence=77)
    events.add("operator_tensors", role=2, count=1, tensor=(1, 0, 0, 0))  # its output
    events.operator_end()
    events.tensor(1, 0x1000, 64, "8", strides="1")
    events.operator("aten::relu", inputs=(1,))
    events.operator_end()
    cat, relu = (event["args"] for event in trace(events) if event.get("cat") == "cpu_op")
    assert cat["Input Dims"] == [[4, 16], [], *[[id] for id in range(3, 20)]]
    assert cat["Input Strides"][:2] == [[16, 1], []]
    assert cat["Input type"] == ["float", "long int", *["c10::BFloat16"] * 17]
    assert cat["Call stack"] == "/my/model.py(9): forward;/my/train.py(70): <module>"
    assert cat["Module Hierarchy"] == "Net.cat (Cat)"
    assert (cat["Sequence number"], cat["Fwd thread id"]) == (77, 0)
    assert relu == {
        "External id": 2, "Input type": ["float"], "Input Strides": [[1]], "Input Dims": [[8]],
    }  # fmt: skip


def test_kernels_launches_and_operators_are_linked() -> None:
    events = Events(step=1000)
    events.add("context_create", device=1, name="Device X")
    events.operator("outer")
    events.operator("inner", 2)
    events.launch_end(events.launch("k", device=1, stream=7, registers=20, shared_static=8))
    events.complete(0, 9_000_000, 9_000_500, thread=4, device=1, stream=7)
    events.operator_end(2)
    events.copy("host_to_device", 1, 2, 3, device=1)
    events.operator_end(1)
    events.add("sync", what=3, duration=10)
    found = trace(events)
    kernel, launch, inner, copy, outer = (
        next(event for event in found if event["name"] == name)
        for name in ("k", "cudaLaunchKernel", "inner", "Memcpy HtoD", "outer")
    )
    assert kernel["args"]["correlation"] == launch["args"]["correlation"] == 1
    for event, operator in ((kernel, inner), (launch, inner), (copy, outer)):
        assert event["args"]["External id"] == operator["args"]["External id"]
    assert (inner["dur"], outer["dur"]) == (4, 7)
    assert kernel["args"]["stream"] == kernel["tid"]
    assert kernel["args"]["device"] == kernel["pid"] == 1
    assert kernel["args"]["registers per thread"] == 20
    assert "shared memory" not in kernel["args"]  # the launch's stream is unknown
    (sync,) = (event for event in found if event["name"] == "cudaDeviceSynchronize")
    assert sync["args"] == {}  # outside of operators
    begin, end = (event for event in found if event.get("cat") == "ac2g")
    assert (begin["id"], begin["tid"], begin["ts"]) == (end["id"], launch["tid"], launch["ts"])
    assert (end["pid"], end["ts"]) == (kernel["pid"], kernel["ts"])


def test_gradients_are_linked_by_sequence_number() -> None:
    events = Events()
    events.operator("aten::linear", sequence=3, module="Net.fc (Linear)", framework_thread=1)
    events.operator("aten::addmm", 2, sequence=3, module="Net.fc (Linear)", framework_thread=1)
    events.operator_end(2)
    events.operator_end(1)
    for _ in range(2):  # of a retained graph
        of_forward = {"thread": 2, "framework_thread": 2, "forward_thread": 1, "sequence": 3}
        events.operator("evaluate_function: AddmmBackward0", **of_forward)
        events.operator("AddmmBackward0", 2, scope=1, **of_forward)
        events.operator_end(2, thread=2)
        events.operator_end(1, thread=2)
    found = trace(events)
    times = {name: [e["ts"] for e in found if e["name"] == name] for name in ("aten::addmm",)}
    begins = [event for event in found if (event["ph"], event["name"]) == ("s", "fwdbwd")]
    ends = [event for event in found if (event["ph"], event["name"]) == ("f", "fwdbwd")]
    assert [event["ts"] for event in begins] == times["aten::addmm"] * 2
    gradients = [event for event in found if event["name"] == "AddmmBackward0"]
    assert [event["ts"] for event in ends] == [event["ts"] for event in gradients]
    for event in gradients:
        assert event["args"]["Fwd thread id"] == 1
        assert event["args"]["Module Hierarchy"] == "Net.fc (Linear)"


def test_tensor_memory_is_a_counter() -> None:
    events = Events()
    events.tensor_alloc(0x1000, 100, "host", device=-1)
    events.tensor_alloc(0x2000, 512, thread=3, allocated=512, reserved=2048)
    events.tensor_free(0x1000, "host", device=-1)
    reported = [event["args"] for event in trace(events) if event["name"] == "[memory]"]
    host = {"Total Reserved": 0, "Device Id": -1, "Device Type": 0, "Addr": 0x1000}
    assert reported == [
        {**host, "Total Allocated": 100, "Bytes": 100},
        {"Total Reserved": 2048, "Total Allocated": 512, "Bytes": 512, "Device Id": 0,
         "Device Type": 1, "Addr": 0x2000},
        {**host, "Total Allocated": 0, "Bytes": -100},
    ]  # fmt: skip


def test_totals_of_allocators_follow_from_tensors() -> None:
    dense, sparse = (
        [event for event in trace(allocating(dense=dense)) if event["name"] == "[memory]"]
        for dense in (True, False)
    )
    assert sparse == dense
    names = ("Total Allocated", "Total Reserved", "Bytes")
    assert [tuple(event["args"][name] for name in names) for event in sparse[:3]] == [
        (300, 1000, 300), (900, 2000, 600), (600, 2000, -300),
    ]  # fmt: skip


def test_trace_metadata_names_devices_and_rank() -> None:
    events = Events()
    events.add("process_start", environment="RANK=3\x1fA=b=c")
    events.add("context_create", device=1, name="Device X")
    file = io.BytesIO()
    run_tool(EventTrace, events, options={"compress": False}).files["trace.json"](file)
    document = json.loads(file.getvalue())
    assert document["distributedInfo"] == {"rank": 3}
    assert document["deviceProperties"] == [{"id": 0, "name": ""}, {"id": 1, "name": "Device X"}]
    assert document["displayTimeUnit"] == "ms"


def test_framework_events_follow_the_option() -> None:
    assert EventTrace().asks_for_tensors
    assert not EventTrace({"operators": False}).asks_for_tensors
    assert not EventTrace().needs_compiled


def test_process_id_equal_to_a_device_ordinal() -> None:
    events = Events()
    events.process = events.process._replace(pid=1)
    for device in (0, 1):
        events.complete(events.launch("k", device=device), 9_000_000, 9_000_500, device=device)
    found = trace(events)
    pids = [event["pid"] for event in found if event.get("cat") == "kernel"]
    assert pids[0] == 0
    assert pids[1] not in (0, 1)


def test_launch_without_return_has_no_duration() -> None:
    events = Events(step=1000)
    events.operator("a")
    for _ in range(3):
        events.launch("lost")
    events.launch_end(events.launch("k"))
    events.launch("lost")
    events.operator_end()
    events.launch("lost")
    events.add("mark", name="late")
    found = [event for event in trace(events) if event["name"] == "cudaLaunchKernel"]
    assert {event["args"]["kernel"]: event["dur"] for event in found} == {"lost": 0, "k": 1}
    assert sum("External id" in event["args"] for event in found) == 5


def test_graph_kernels_are_linked_to_the_graph_launch() -> None:
    events = Events()
    events.add("graph_launch", correlation=5)
    ordinals = [events.launch("k", flags=abi.FLAG_GRAPH) for _ in range(2)]
    for ordinal in ordinals:
        events.launch_end(ordinal)
        events.complete(ordinal, 9_000_000 + 1000 * ordinal, 9_000_500 + 1000 * ordinal)
    events.add("graph_launch_end", correlation=5)
    slices = [event for event in trace(events) if event["ph"] == "X"]
    assert [event["name"] for event in slices] == ["k", "k", "cudaGraphLaunch"]
    assert slices[-1]["dur"] == 7


def test_kinds_are_ranked_by_device_time_then_number() -> None:
    events = Events()
    for _ in range(3):
        events.push("a")
    for number in (1, 2):
        events.complete(events.launch("k"), 1000, 1000 + number)
    events.copy("device_to_host", 4096, 8192, 64, correlation=9)
    events.copy_complete(9, 1000, 5000)
    found = run_tool(EventTrace, events).tables["events"].rows()
    assert [(row["event"], row["device_time"]) for row in found] == [
        ("copy_complete", 4000),
        ("kernel_complete", 3),
        ("range_push", None),
        ("kernel_launch", None),
        ("memory_copy", None),
    ]
