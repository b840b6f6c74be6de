"""One run's processing: batches in, filtered batches out, tools fed on the way."""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from pasta.processors.batch import Batch
from pasta.processors.correlate import LaunchNames, OpenRanges
from pasta.processors.filter import Filter, Selection
from pasta.progress import doing
from pasta.tool import HANDLERS, OF_A_LAUNCH, ON_ACCESSES, Context, Result, Tool

if TYPE_CHECKING:
    from numpy.typing import NDArray

T = TypeVar("T")
Limit = Callable[[], AbstractContextManager[None]]
#: Parts of a context that batches are fed to, in this order; later ones ask earlier ones.
_PARTS = ("_objects", "_launches", "_ranges", "_operators", "_stacks", "_tensors")


@dataclass(frozen=True)
class ToolFailure:
    """Why a tool was disabled: in which method, and the traceback."""

    tool: str
    where: str
    traceback: str

    @property
    def reason(self) -> str:
        """The exception in one line."""
        return self.traceback.strip().rpartition("\n")[2]


class Pipeline:
    """Filters batches and hands them to tools.

    A tool that raises anything at all is disabled and kept in `failures`; the others go on.
    `state` and `restore` move the work to another process between two batches. `limit` is entered
    around every call of a tool: the collector bounds its time so.
    """

    def __init__(
        self,
        filter: Filter,
        tools: Sequence[Tool],
        context: Context,
        limit: Limit = nullcontext,
    ) -> None:
        self._set_up(filter, tools, context, limit)
        self._create_parts()
        for tool in self.tools:
            self._guarded(tool, "start", tool.start)

    def _set_up(
        self, filter: Filter, tools: Sequence[Tool], context: Context, limit: Limit
    ) -> None:
        names = [tool.name for tool in tools]
        if len(set(names)) < len(names):
            raise ValueError(f"tools of one name: {', '.join(sorted(names))}")
        self.filter = filter
        self.tools = list(tools)
        self.context = context
        self.selection = Selection(filter)
        self.failures: dict[str, ToolFailure] = {}
        self.limit = limit
        for tool in self.tools:
            tool.context = context

    def _create_parts(self) -> None:
        context, tools = self.context, self.tools
        tensors = any(tool.needs_tensors for tool in tools)
        history = any(tool.needs_object_history for tool in tools)
        if history or tensors or any(tool.needs_objects for tool in tools):
            from pasta.processors.objects import ObjectTable

            context._objects = ObjectTable(history=history)
        if any(name in OF_A_LAUNCH for tool in tools for name in tool.handlers()):
            context._launches = LaunchNames()
        if tensors or any(tool.needs_ranges for tool in tools):
            context._ranges = OpenRanges()
        if tensors or any(tool.needs_operators for tool in tools):
            from pasta.processors.operators import Operators
            from pasta.processors.stacks import Stacks

            context._operators, context._stacks = Operators(), Stacks()
        if tensors:
            from pasta.processors.tensors import Tensors

            context._tensors = Tensors(*self._of_tensors())
        if any(tool.needs_probes for tool in tools):
            from pasta.probes.runtime import ProbeRuntime

            context._probes = ProbeRuntime(tools, context.objects, context._operators)

    def _of_tensors(self) -> tuple[Any, ...]:
        context = self.context
        return context.objects, context.operators, context.ranges, context.strings

    def feed(self, batch: Batch) -> Batch:
        """Processes a batch; returns what the filter keeps of it, which is what to record."""
        whole, launched = batch, batch["kernel_launch"]["ordinal"]
        batch = _read_only(self.selection.apply(batch, self.context.strings))
        for part in self._parts():
            if part is not None:
                part.feed(batch)
        if self.context._operators is not None:
            self.context._operators.follow_graphs(whole)
        if self.context._probes is not None:
            self.context._probes.feed(batch, launched)
        for tool in self.tools:
            for name in tool.handlers():
                if tool.name in self.failures:
                    break
                records = batch if name == "on_batch" else _records(batch, HANDLERS[name])
                if records is not None:
                    self._guarded(tool, name, getattr(tool, name), records)
        return batch

    @property
    def kinds(self) -> frozenset[str] | None:
        """Kinds of events that make a difference to the results; None: all."""
        names = self.context._launches
        if self.filter.selects_launches or any(
            part is not None and part is not names for part in self._parts()
        ):
            return None
        found = {"kernel_launch"}
        for tool in self.tools:
            kinds = tool.kinds()
            if kinds is None:
                return None
            found |= kinds
        return frozenset(found)

    def _parts(self) -> list[Any]:
        return [getattr(self.context, name) for name in _PARTS]

    def feed_accesses(self, chunk: Any = b"", *, final: bool = False) -> None:
        """Runs the probes over access records; `final`: no more events come.

        The events before them have been fed. Raises ValueError for a record that is cut off.
        """
        if self.context._probes is None:
            return
        for tool, accesses in self.context._probes.run(chunk, final=final):
            if tool.name not in self.failures:
                self._guarded(tool, ON_ACCESSES, getattr(tool, ON_ACCESSES), accesses)

    def feed_device(self, data: bytes) -> None:
        """Takes what patches on a GPU counted: entries of a probe_data event's buffer."""
        if self.context._probes is not None:
            self.context._probes.device.feed(data)

    def finish(self) -> dict[str, Result]:
        """Results of the tools that still work, by name."""
        self.feed_accesses(final=True)
        probes = self.context._probes
        if probes is not None:
            probes.flush()
            probes.kernels.read_code(self.context.images, self.context.strings)
        results = {}
        for number, tool in enumerate(self.tools, 1):
            if tool.name not in self.failures:
                doing(f"computing results of {tool.name}", f"tool {number} of {len(self.tools)}")
                result = self._guarded(tool, "result", _result, tool)
                if result is not None:
                    results[tool.name] = result
        return results

    def _guarded(self, tool: Tool, where: str, call: Callable[..., T], *arguments: Any) -> T | None:
        try:
            with self.limit():
                return call(*arguments)
        # Also SystemExit and KeyboardInterrupt: nothing that a tool raises reaches the target.
        except BaseException:
            self.fail(tool, where)
            return None

    def fail(self, tool: Tool, where: str) -> None:
        """Disables a tool; called while its exception is handled."""
        self.failures[tool.name] = ToolFailure(tool.name, where, traceback.format_exc())

    def state(self) -> bytes:
        """All that the rest of the work needs, for `restore`; strings are not part of it.

        A tool whose attributes cannot be pickled is disabled.
        """
        if self.context._probes is not None:
            self.context._probes.flush()
        states: dict[str, bytes] = {}
        for tool in self.tools:
            if tool.name not in self.failures:
                state = self._guarded(tool, "pickling", _pickled, tool)
                if state is not None:
                    states[tool.name] = state
        return pickle.dumps(
            {
                "filter": self.filter,
                "selection": self.selection,
                "parts": self._parts(),
                "probes": self.context._probes,
                "failures": self.failures,
                "tools": states,
            }
        )

    @classmethod
    def restore(
        cls, state: bytes, tools: Sequence[Tool], context: Context, limit: Limit = nullcontext
    ) -> Pipeline:
        """The pipeline as it was; `tools` are fresh ones of the same names and options."""
        saved: dict[str, Any] = pickle.loads(state)
        pipeline = cls.__new__(cls)
        pipeline._set_up(saved["filter"], tools, context, limit)
        pipeline.selection = saved["selection"]
        pipeline.failures = saved["failures"]
        for name, part in zip(_PARTS, saved["parts"], strict=True):
            setattr(context, name, part)
        if context._tensors is not None:
            context._tensors.attach(*pipeline._of_tensors())
        for tool in pipeline.tools:
            if tool.name not in pipeline.failures:
                pipeline._guarded(tool, "unpickling", _unpickle, tool, saved["tools"])
        context._probes = saved["probes"]
        if context._probes is not None:
            context._probes.attach(pipeline.tools)
        return pipeline


def _read_only(batch: Batch) -> Batch:
    """The batch in views through which no tool can change what others see and what is recorded."""
    records = {kind: array.view() for kind, array in batch}
    for view in records.values():
        view.flags.writeable = False
    return Batch(batch.base, records)


def _records(batch: Batch, kinds: tuple[str, ...]) -> NDArray[Any] | None:
    """Records of some kinds in ring order; None without any."""
    if not any(len(batch.records.get(kind, ())) for kind in kinds):
        return None
    return batch.merged(*kinds)


def _result(tool: Tool) -> Result:
    result = tool.result()
    if not isinstance(result, Result):
        raise TypeError(f"result() must return a pasta.tool.Result, not {type(result).__name__}")
    if tool.needs_probes:
        from pasta.probes.unseen import with_unseen

        return with_unseen(tool, result)
    return result


def _pickled(tool: Tool) -> bytes:
    return pickle.dumps(tool.__getstate__())


def _unpickle(tool: Tool, states: dict[str, bytes]) -> None:
    tool.__setstate__(pickle.loads(states[tool.name]))
