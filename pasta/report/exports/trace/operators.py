"""Draws operators of frameworks, with inputs, call stacks and links to their gradients."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from pasta.processors.stacks import Stacks
from pasta.report.exports.trace.format import Draws, Track, Tracks

_ABSENT_U8, _ABSENT_U16, _ABSENT_U32 = 0xFF, 0xFFFF, 0xFFFF_FFFF
#: Scope of gradient operators, and role of input tensors.
_BACKWARD, _INPUT = 1, 1
_FIELDS = (
    "name", "module", "stack", "sequence", "forward_thread", "framework_thread", "depth", "scope",
    "inputs", "tensor",
)  # fmt: skip
_EVALUATE = '"autograd::engine::evaluate_function: '
_NUMBERS = re.compile(r"[-0-9,]*")
#: Maximum number of forward operators that wait for their gradients.
_MAX_FORWARD = 1 << 17
#: Maximum frames of a Python stack in the trace.
_MAX_FRAMES = 8
#: Element types as torch.profiler names them.
_TYPES = {
    "Byte": "unsigned char", "Char": "signed char", "Short": "short int", "Int": "int",
    "Long": "long int", "Half": "c10::Half", "Float": "float", "Double": "double",
    "ComplexHalf": "c10::complex<c10::Half>", "ComplexFloat": "c10::complex<float>",
    "ComplexDouble": "c10::complex<double>", "Bool": "bool", "BFloat16": "c10::BFloat16",
}  # fmt: skip


@dataclass(slots=True)
class Forward:
    """An operator that may have a gradient."""

    track: Track
    time: int
    module: int


class Operators:
    """Draws operators on their threads. `stacks` must have been fed all earlier events."""

    def __init__(self, out: Tracks, stacks: Stacks) -> None:
        self.out = out
        self.stacks = stacks
        self.flows = 0  # from forward operators to gradients
        self.forward: dict[tuple[int, int], Forward] = {}
        self.calls: dict[int, str] = {}  # arguments that name a stack's frames
        self.tensors: dict[int, tuple[int, int, int]] = {}  # shape, strides, dtype
        self.forms: dict[int, tuple[str, str]] = {}  # JSON of shapes and types by string id

    @property
    def draws(self) -> Draws:
        """Handlers by event kind."""
        return {
            "operator_begin": (self.operator_begin, _FIELDS),
            "operator_end": (self.operator_end, ("depth",)),
            "operator_tensors": (self.operator_tensors, ("role", "count", "tensor")),
            "tensor_create": (self.tensor, ("tensor", "shape", "strides", "dtype")),
        }

    def operator_begin(
        self, time: int, thread: int, device: int, stream: int, name: int, module: int, stack: int,
        sequence: int, forward_thread: int, framework_thread: int, depth: int, scope: int,
        inputs: int, tensor: list[int],
    ) -> None:  # fmt: skip
        """Begins an operator's slice, linked to the forward operator of a gradient."""
        track = self.out.thread(thread)
        lost = (each for each in track.open if each.what[0] == "operator" and each.what[1] >= depth)
        for each in lost:
            self.out.end(track, each.what, time)
            break
        self.out.numbers += 1
        args = [f'"External id":{self.out.numbers}']
        gradient = forward_thread != _ABSENT_U16
        linked = None
        if sequence != _ABSENT_U32:
            fwd = forward_thread if gradient else 0
            args.append(f'"Sequence number":{sequence},"Fwd thread id":{fwd}')
            if gradient:
                linked = self.forward.get((forward_thread, sequence))
                around = track.open[-1] if track.open else None
                if around and around.name.startswith(_EVALUATE) and "Sequence" not in around.args:
                    around.args += f",{args[-1]}"  # as in torch.profiler's traces
            else:
                key = (framework_thread, sequence)
                self.forward.pop(key, None)  # the innermost of a sequence number is the newest
                self.forward[key] = Forward(track, time, module)
                if len(self.forward) > _MAX_FORWARD:
                    del self.forward[next(iter(self.forward))]
        if linked:
            module = module or linked.module
            if scope == _BACKWARD:
                self.flows += 1
                self.out.arrow("fwdbwd", self.flows, (linked.track, linked.time), (track, time))
        if module:
            args.append(f'"Module Hierarchy":{self.out.text(module)}')
        if stack not in (0, _ABSENT_U32):
            args.append(self._call_stack(stack))
        taken = tensor[:inputs] + track.inputs if inputs != _ABSENT_U8 else []
        track.inputs = []
        if taken:
            args.append(self._tensors(taken))
        detail = ",".join(args)
        what = ("operator", depth)
        self.out.begin(track, what, time, "cpu_op", self.out.text(name), detail, self.out.numbers)

    def operator_end(self, time: int, thread: int, device: int, stream: int, depth: int) -> None:
        """Ends an operator's slice."""
        self.out.end(self.out.thread(thread), ("operator", depth), time)

    def operator_tensors(
        self, time: int, thread: int, device: int, stream: int, role: int, count: int,
        tensor: list[int],
    ) -> None:  # fmt: skip
        """Collects inputs that did not fit into the next operator's record."""
        if role == _INPUT:
            self.out.thread(thread).inputs += tensor[:count]

    def tensor(
        self, time: int, thread: int, device: int, stream: int, id: int, shape: int, strides: int,
        dtype: int,
    ) -> None:  # fmt: skip
        """Records the shape, strides and type of a tensor."""
        if id != _ABSENT_U32:
            self.tensors[id] = (shape, strides, dtype)

    def _call_stack(self, stack: int) -> str:
        if stack not in self.calls:
            frames = self.stacks.own(stack, self.out.strings)[:_MAX_FRAMES]
            lines = ";".join(f"{each.file}({each.line}): {each.function}" for each in frames)
            self.calls[stack] = f'"Call stack":{json.dumps(lines)}'
        return self.calls[stack]

    def _tensors(self, ids: list[int]) -> str:
        """JSON members with the types, strides and shapes of an operator's inputs."""
        known = [self.tensors[id] for id in ids if id in self.tensors]
        types, strides, shapes = (
            ",".join(self._form(tensor[at])[kind] for tensor in known)
            for at, kind in ((2, 1), (1, 0), (0, 0))
        )
        return f'"Input type":[{types}],"Input Strides":[{strides}],"Input Dims":[{shapes}]'

    def _form(self, id: int) -> tuple[str, str]:
        """A string id as JSON: as the list of a shape or strides, and as a type name."""
        if id not in self.forms:
            text = self.out.strings[id]
            numbers = text if _NUMBERS.fullmatch(text) else ""
            self.forms[id] = f"[{numbers}]", json.dumps(_TYPES.get(text, text))
        return self.forms[id]
