"""One run's processing: batches in, filtered batches out, tools fed on the way."""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar, cast

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
#: Parts that each `needs_…` of a tool stands for.
_NEEDS = {
    "needs_objects": {"_objects"},
    "needs_object_history": {"_objects"},
    "needs_ranges": {"_ranges"},
    "needs_operators": {"_operators", "_stacks"},
    "needs_tensors": {"_objects", "_ranges", "_operators", "_stacks", "_tensors"},
    "needs_probes": {"_objects", "_probes"},
}
_MAX_REASON = 500


@dataclass(frozen=True)
class ToolFailure:
    """Why a tool was disabled: in which method, the exception in one line, and its traceback."""

    tool: str
    where: str
    reason: str
    traceback: str

    @classmethod
    def of(cls, tool: str, where: str, error: BaseException) -> ToolFailure:
        """The failure that an exception is, also one whose text cannot be made."""
        kind = type(error).__name__
        try:
            text = str(error).strip().partition("\n")[0][:_MAX_REASON]
            trace = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        except Exception:
            text, trace = "", f"{kind}, of which no traceback can be made\n"
        return cls(tool, where, f"{kind}: {text}" if text else kind, trace)


@dataclass(frozen=True, eq=False)
class LoadedTool:
    """A tool with what its class said when it was loaded.

    The pipeline goes by this alone: attributes that the instance sets later (`self.name = {}`)
    change nothing of it.
    """

    tool: Tool
    name: str
    handlers: tuple[str, ...]
    kinds: frozenset[str] | None
    needs: frozenset[str]
    has_probes: bool
    #: Parts of the context that must work for this tool.
    parts: frozenset[str] = field(default=frozenset())

    @classmethod
    def of(cls, tool: Tool) -> LoadedTool:
        """Raises whatever the class raises."""
        kind = type(tool)
        handlers = tuple(kind.handlers())
        needs = frozenset(name for name in _NEEDS if getattr(tool, name))
        parts = {part for name in needs for part in _NEEDS[name]}
        if any(name in OF_A_LAUNCH for name in handlers):
            parts.add("_launches")
        return cls(
            tool,
            name_of(kind),
            handlers,
            kind.kinds(),
            needs,
            bool(kind.probes()),
            frozenset(parts),
        )


def name_of(kind: type[Tool]) -> str:
    """A tool's name, or its class's where it has no usable one."""
    name: object = kind.name
    return name if isinstance(name, str) and name else kind.__name__


class ContextView:
    """What tools get as their `context`: they share it, so none can replace or delete in it."""

    __slots__ = ("_of",)

    def __init__(self, context: Context) -> None:
        object.__setattr__(self, "_of", context)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._of, name)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"context.{name} is shared by all tools and cannot be set")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"context.{name} is shared by all tools and cannot be deleted")

    def __reduce__(self) -> Any:
        raise TypeError("the context of a tool is no part of its state")


class Pipeline:
    """Filters batches and hands them to tools.

    A tool that raises anything at all is disabled and kept in `failures`; the others go on. Where
    a part of the context fails, the tools that need it are disabled. `state` and `restore` move
    the work to another process between two batches. `limit` is entered around every call of a
    tool: the collector bounds its time so. `failures` are of tools that could not be loaded.
    """

    def __init__(
        self,
        filter: Filter,
        tools: Sequence[Tool],
        context: Context,
        limit: Limit = nullcontext,
        failures: Iterable[ToolFailure] = (),
    ) -> None:
        self._set_up(filter, tools, context, limit, failures)
        self._create_parts()
        for each in self.working():
            self._guarded(each.name, "start", _call, each.tool, "start")

    def _set_up(
        self,
        filter: Filter,
        tools: Sequence[Tool],
        context: Context,
        limit: Limit,
        failures: Iterable[ToolFailure] = (),
    ) -> None:
        names = [name_of(type(tool)) for tool in tools]
        if len(set(names)) < len(names):
            raise ValueError(f"tools of one name: {', '.join(sorted(names))}")
        self.filter = filter
        self.context = context
        self.selection = Selection(filter)
        self.failures = {each.tool: each for each in failures}
        #: Names of all tools, also of those that could not be loaded.
        self.names = list(dict.fromkeys((*names, *self.failures)))
        self.limit = limit
        self.loaded: list[LoadedTool] = []
        for name, tool in zip(names, tools, strict=True):
            each = self._guarded(name, "loading", self._load, tool)
            if each is not None:
                self.loaded.append(each)

    def _load(self, tool: Tool) -> LoadedTool:
        loaded = LoadedTool.of(tool)
        tool.context = cast(Context, ContextView(self.context))
        return loaded

    @property
    def tools(self) -> list[Tool]:
        return [each.tool for each in self.loaded]

    def working(self) -> list[LoadedTool]:
        """Tools that have not failed."""
        return [each for each in self.loaded if each.name not in self.failures]

    def _create_parts(self) -> None:
        parts = {part for each in self.loaded for part in each.parts}
        for name in (*_PARTS, "_probes"):
            if name in parts:
                self._try(name, self._create, name)

    def _create(self, name: str) -> None:
        context = self.context
        if name == "_objects":
            from pasta.processors.objects import ObjectTable

            history = any("needs_object_history" in each.needs for each in self.loaded)
            context._objects = ObjectTable(history=history)
        elif name == "_launches":
            context._launches = LaunchNames()
        elif name == "_ranges":
            context._ranges = OpenRanges()
        elif name == "_operators":
            from pasta.processors.operators import Operators

            context._operators = Operators()
        elif name == "_stacks":
            from pasta.processors.stacks import Stacks

            context._stacks = Stacks()
        elif name == "_tensors":
            from pasta.processors.tensors import Tensors

            context._tensors = Tensors(*self._of_tensors())
        elif name == "_probes":
            from pasta.probes.runtime import ProbeRuntime

            probing = [each.tool for each in self.loaded if each.has_probes]
            context._probes = ProbeRuntime(probing, context.objects, context._operators)

    def _of_tensors(self) -> tuple[Any, ...]:
        context = self.context
        return context.objects, context.operators, context.ranges, context.strings

    def feed(self, batch: Batch) -> Batch:
        """Processes a batch; returns what the filter keeps of it, which is what to record."""
        whole, launched = batch, batch["kernel_launch"]["ordinal"]
        batch = _read_only(self.selection.apply(batch, self.context.strings))
        for name in _PARTS:
            part = getattr(self.context, name)
            if part is not None:
                self._try(name, part.feed, batch)
        if self.context._operators is not None:
            self._try("_operators", self.context._operators.follow_graphs, whole)
        if self.context._probes is not None:
            self._try("_probes", self.context._probes.feed, batch, launched)
        for each in self.working():
            for name in each.handlers:
                if each.name in self.failures:
                    break
                records = batch if name == "on_batch" else _records(batch, HANDLERS[name])
                if records is not None:
                    self._guarded(each.name, name, _call, each.tool, name, records)
        return batch

    def _try(self, part: str, work: Callable[..., T], *arguments: Any) -> T | None:
        """Does what a part of the context has to do while a working tool needs that part; where it
        fails, these tools are disabled."""
        if not any(part in each.parts for each in self.working()):
            return None
        try:
            return work(*arguments)
        except Exception as error:
            self._fail_part(part, error)
            return None

    def _fail_part(self, part: str, error: Exception) -> None:
        for each in self.working():
            if part in each.parts:
                self.fail(each.name, f"PASTA's own {part.strip('_')}", error)

    @property
    def kinds(self) -> frozenset[str] | None:
        """Kinds of events that make a difference to the results; None: all."""
        names = self.context._launches
        if self.filter.selects_launches or any(
            part is not None and part is not names for part in self._parts()
        ):
            return None
        found = {"kernel_launch"}
        for each in self.loaded:
            if each.kinds is None:
                return None
            found |= each.kinds
        return frozenset(found)

    def _parts(self) -> list[Any]:
        return [getattr(self.context, name) for name in _PARTS]

    def feed_accesses(self, chunk: Any = b"", *, final: bool = False) -> None:
        """Runs the probes over access records; `final`: no more events come.

        The events before them have been fed. Raises ValueError for a record that is cut off.
        """
        probes = self.context._probes
        if probes is None:
            return
        try:
            taken = probes.run(chunk, final=final)
        except ValueError:
            raise
        except Exception as error:
            self._fail_part("_probes", error)
            return
        loaded = {id(each.tool): each for each in self.loaded}
        for tool, accesses in taken:
            each = loaded[id(tool)]
            if each.name not in self.failures:
                self._guarded(each.name, ON_ACCESSES, _call, tool, ON_ACCESSES, accesses)

    def feed_device(self, data: bytes) -> None:
        """Takes what patches on a GPU counted: entries of a probe_data event's buffer."""
        if self.context._probes is not None:
            self._try("_probes", self._feed_device, data)

    def _feed_device(self, data: bytes) -> None:
        assert self.context._probes is not None
        self.context._probes.device.feed(data)

    def finish(self) -> dict[str, Result]:
        """Results of the tools that still work, by name."""
        if self.context._probes is not None:
            self._try("_probes", self._finish_probes)
        results = {}
        working = self.working()
        for number, each in enumerate(working, 1):
            doing(f"computing results of {each.name}", f"tool {number} of {len(working)}")
            result = self._guarded(each.name, "result", _result, each, self.context)
            if result is not None:
                results[each.name] = result
        return results

    def _finish_probes(self) -> None:
        self.feed_accesses(final=True)
        probes = self.context._probes
        assert probes is not None
        probes.flush()
        probes.kernels.read_code(self.context)

    def _guarded(self, name: str, where: str, call: Callable[..., T], *arguments: Any) -> T | None:
        try:
            with self.limit():
                return call(*arguments)
        # Also SystemExit and KeyboardInterrupt: nothing that a tool raises reaches the target.
        except BaseException as error:
            self.fail(name, where, error)
            return None

    def fail(self, name: str, where: str, error: BaseException) -> None:
        """Disables a tool because of an exception."""
        self.failures[name] = ToolFailure.of(name, where, error)

    def fail_all(self, where: str, error: BaseException) -> None:
        """Disables all tools that still work."""
        for each in self.working():
            self.fail(each.name, where, error)

    def state(self) -> bytes:
        """All that the rest of the work needs, for `restore`; strings are not part of it.

        Every tool's state is pickled by itself: one that cannot be is disabled.
        """
        if self.context._probes is not None:
            self._try("_probes", self.context._probes.flush)
        states: dict[str, bytes] = {}
        for each in self.working():
            state = self._guarded(each.name, "pickling", _pickled, each.tool)
            if state is not None:
                states[each.name] = state
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
        cls,
        state: bytes,
        tools: Sequence[Tool],
        context: Context,
        limit: Limit = nullcontext,
        failures: Iterable[ToolFailure] = (),
    ) -> Pipeline:
        """The pipeline as it was; `tools` are fresh ones of the same names and options."""
        saved: dict[str, Any] = pickle.loads(state)
        pipeline = cls.__new__(cls)
        pipeline._set_up(saved["filter"], tools, context, limit, failures)
        pipeline.selection = saved["selection"]
        pipeline.failures |= saved["failures"]
        for name, part in zip(_PARTS, saved["parts"], strict=True):
            setattr(context, name, part)
        if context._tensors is not None:
            context._tensors.attach(*pipeline._of_tensors())
        for each in pipeline.working():
            pipeline._guarded(each.name, "unpickling", _unpickle, each, saved["tools"])
        context._probes = saved["probes"]
        if context._probes is not None:
            context._probes.attach(pipeline.tools)
        return pipeline


def _read_only(batch: Batch) -> Batch:
    """The batch in views through which no tool can change what others see and what is recorded."""
    records = {kind: array.view() for kind, array in batch}
    for view in records.values():
        view.flags.writeable = False
    return Batch(batch.base, MappingProxyType(records))


def _records(batch: Batch, kinds: tuple[str, ...]) -> NDArray[Any] | None:
    """Records of some kinds in ring order; None without any."""
    if not any(len(batch.records.get(kind, ())) for kind in kinds):
        return None
    return batch.merged(*kinds)


def _call(tool: Tool, method: str, *arguments: Any) -> Any:
    return getattr(tool, method)(*arguments)


def _result(loaded: LoadedTool, context: Context) -> Result:
    result = loaded.tool.result()
    if not isinstance(result, Result):
        raise TypeError(f"result() must return a pasta.tool.Result, not {type(result).__name__}")
    if loaded.has_probes:
        from pasta.probes.unseen import with_unseen

        return with_unseen(loaded.name, loaded.tool, context, result)
    return result


def _pickled(tool: Tool) -> bytes:
    return pickle.dumps(type(tool).__getstate__(tool))


def _unpickle(loaded: LoadedTool, states: dict[str, bytes]) -> None:
    type(loaded.tool).__setstate__(loaded.tool, pickle.loads(states[loaded.name]))
