"""Synthetic event streams with all kinds of events, for tests of several tools."""

from __future__ import annotations

from pasta.processors.batch import ABSENT_U32
from pasta.testing import Events

STEPS = 12
KERNELS = ("_Z4vaddPfS_i", "_ZN2at6native6kernelIfEEvT_", "triton_&_fused", "nöyau")


def training_run() -> Events:
    """12 steps of two threads: allocations, copies, 4 kernels a step, frees one step late."""
    events = Events(step=1_000_000)
    events.add("process_start", executable="/bin/program", command="program")
    events.add("context_create", device=0)
    events.alloc(0x2_0000_0000, 1 << 32, "virtual", flags=4)
    events.alloc(0x7000_0000, 512, flags=4)
    events.alloc(0x10_0000, 1 << 16, "pinned")
    events.alloc(0x20_0000, 1 << 20)
    events.frames(1, ("/site-packages/torch/nn/modules/module.py", "call", 5), ("/a.py", "f", 7))
    events.frames(2, ("/b.py", "<module>", 9))
    events.role(0x20_0000, "parameter", "weight")
    for step in range(STEPS):
        thread = 1 + step % 2
        events.push(f"step {step}", thread=thread)
        events.add("range_start", name="data", id=step, thread=thread)
        events.alloc(0x2_0000_0000 + step * 4096, 4096 * (1 + step % 3), "pool", thread=thread)
        events.tensor_alloc(
            0x20_0000 + 512 * step, 512, allocated=512 * (step + 1), reserved=1 << 20, stack=step
        )
        events.copy("host_to_device", 0x10_0000, 0x20_0000, 4096, flags=2, thread=thread)
        events.copy("device_to_host", 0x20_0000, 0x5_0000_0000 + step, 1 << step, thread=thread)
        events.add("range_end", id=step, thread=thread)
        for number, kernel in enumerate(KERNELS):
            made = 1 + number % 3
            events.tensor(made, 0x20_0000 + 512 * step, 512, f"{number},{step}", thread=thread)
            events.operator(
                f"aten::op{number}", thread=thread, sequence=10 * step + number,
                framework_thread=thread, module=f"Net.{number} (Layer)", stack=1 + number % 2,
                inputs=(1, 2),
            )  # fmt: skip
            events.operator("aten::inner", 2, thread=thread, framework_thread=thread)
            ordinal = events.launch(kernel, grid=(step + 1, number + 1, 1), thread=thread, stream=7)
            events.launch_end(ordinal, thread=thread)
            events.operator_end(2, thread=thread)
            events.operator_end(thread=thread, outputs=(made,))
            events.operator(
                f"Op{number}Backward0", thread=3, scope=1, sequence=10 * step + number,
                forward_thread=thread, framework_thread=3, inputs=(made,),
            )  # fmt: skip
            if number % 2:
                events.operator_end(thread=3)
            start = 10_000_000 + 1000 * ordinal
            if ordinal >= 4:
                late = ordinal - 4
                events.complete(
                    late, start - 4000, start - 4000 + 100 * (late % 4 + 1), thread=9, stream=7
                )
        events.add("memory_set", address=0x20_0000, bytes=64, value=0, device=0)
        events.add("sync", what=1, duration=500, thread=thread)
        events.add("mark", name="end of step", thread=thread)
        if step:
            events.free(0x2_0000_0000 + (step - 1) * 4096, "pool", thread=thread)
            events.tensor_free(0x20_0000 + 512 * (step - 1), allocated=512, reserved=1 << 20)
        events.pop(thread=thread)
    events.add("memory_free", address=0x20_0000, memory=ABSENT_U32, device=0)
    events.add("dropped", count=3)
    events.add("process_end", last_launch=STEPS * len(KERNELS))
    return events


#: Nanoseconds between events of `training`.
EVENT_STEP = 1000


def training() -> Events:
    """Two nested operators at one line, with a kernel and memory; and a gradient."""
    events = Events(step=EVENT_STEP)
    events.frames(
        7,
        ("/venv/site-packages/torch/nn/modules/linear.py", "forward", 3),
        ("/my/model.py", "forward", 9),
        ("/my/train.py", "<module>", 5),
    )
    events.operator("aten::linear", module="Net.fc (Linear)", stack=7, sequence=1)
    events.operator("aten::mm", 2)
    ordinal = events.launch("gemm")
    events.tensor_alloc(0x1000, 512)
    events.operator_end(2)
    events.operator_end(1)
    events.complete(ordinal, 5_000_000, 5_000_400)
    events.operator("MmBackward0", scope=1, forward_thread=1, sequence=1)
    ordinal = events.launch("gemm")
    events.operator_end(1)
    events.complete(ordinal, 6_000_000, 6_000_030)
    outside = events.launch("init")
    events.complete(outside, 7_000_000, 7_000_001)
    return events
