"""Streams with one kernel, or with one event of each kind, and ways to cut them short."""

from __future__ import annotations

from tests.support.amd_stream import GPU, Dispatch, Stream

S, D1, HOST = 0x55D6D3E60D10, 0x1101E00000, 0x9000000
KERNELS = {1: "_Z2k1Pfi.kd", 2: "k2.kd"}


def loaded() -> Stream:
    s = Stream()
    s.load(2, KERNELS)
    return s


def launching(s: Stream, kernel: int = 1, returns: bool = True, **fields: int) -> Dispatch:
    with s.call("hipLaunchKernel", stream=S):
        return s.dispatch(kernel, returns=returns, **fields)


CALLS: dict[str, dict[str, int]] = {
    "hipMalloc": {"size": 64, "ptr": D1},
    "hipMemcpyAsync": {"dst": D1, "src": HOST, "sizeBytes": 64, "kind": 1, "stream": S},
    "hipMemset": {"dst": D1, "value": 1, "sizeBytes": 64},
    "hipStreamSynchronize": {"stream": S},
    "hipEventRecord": {"event": 5, "stream": S},
    "hipGraphLaunch": {"graphExec": 5, "stream": S},
    "hipMemPrefetchAsync": {"dev_ptr": D1, "count": 64, "device": 0, "stream": S},
    "hipFree": {"ptr": D1},
}


def everything() -> Stream:
    """One of each kind of payload."""
    s = loaded()
    s.event("RUNTIME_INITIALIZATION:RUNTIME_INITIALIZATION_HIP", version=60300)
    for operation, arguments in CALLS.items():
        s.hip(operation, **arguments)
    s.hip("hipStreamCreate", stream=S)
    s.complete(launching(s))
    s.memory_copy("HOST_TO_DEVICE", bytes=64, source=HOST, destination=D1)
    s.runtime_allocation(0x7000, 64)
    s.runtime_free(0x7000)
    s.event("SCRATCH_MEMORY:SCRATCH_MEMORY_ALLOC", "EXIT", agent=GPU, queue=1, bytes=64, slots=1)
    s.event("SCRATCH_MEMORY:SCRATCH_MEMORY_FREE", "EXIT", agent=GPU, queue=1)
    for operation in ("roctxMarkA", "roctxRangePushA", "roctxRangeStartA"):
        s.roctx(operation, message="x")
    s.roctx("roctxRangePop")
    s.roctx("roctxRangeStop", id=1)
    s.roctx("roctxProfilerPause", "CONTROL")
    s.roctx("roctxProfilerResume", "CONTROL")
    s.unload(2, KERNELS)
    return s


#: Payloads, and the smaller of both versions' sizes.
WHOLE = {
    "CODE_OBJECT_LOAD": 88, "KERNEL_DISPATCH": 152, "HIP_RUNTIME_API": 120, "MARKER": 32,
    "MEMORY_COPY": 48, "MEMORY_ALLOCATION": 48, "SCRATCH": 56, "HIP_STREAM": 24,
    "RUNTIME_INITIALIZATION": 24, "SYMBOL": 72,
}  # fmt: skip


def cut_short(s: Stream, size: int) -> Stream:
    """Limits each payload, and the size it states, to a number of bytes."""

    def cut(line: str) -> str:
        name = line.split()[0]
        short = any(kind in name and size < whole for kind, whole in WHOLE.items())
        return f"{line} @size={size}" if short else line

    s.lines = [cut(line) for line in s.lines]
    return s
