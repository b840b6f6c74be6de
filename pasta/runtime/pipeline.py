"""Processing of one run: feeds batches to the filter, processors, probes and tools."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar, cast

from pasta.frameworks import conventions
from pasta.processors.batch import Batch
from pasta.processors.filter import Filter, Selection
from pasta.processors.needs import NEEDS, compiled_modules
from pasta.processors.processor import Follower
from pasta.progress import report_progress
from pasta.runtime.loaded_tool import ContextView, LoadedTool, ToolFailure, name_of
from pasta.table import Table
from pasta.tool import HANDLERS, ON_ACCESSES, Context, Result, Tool

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pasta.compiled import Compiled
    from pasta.processors.operators import Operators
    from pasta.processors.processor import Processor
    from pasta.runtime.probe_runtime import ProbeRuntime

#: Kinds of events of almost every program.
EXPECTED = frozenset({"memory_alloc"})

T = TypeVar("T")
Limit = Callable[[], AbstractContextManager[None]]


class Pipeline:
    """Filters batches and feeds them to processors and tools.

    A tool that raises anything is disabled and listed in `failures`; the others continue. If a
    processor fails, the tools that need it are disabled. `state` and `restore` move the work to
    another process between two batches. `limit` is entered around every call of a tool; the
    collector uses it to limit the time. The parameter `failures` lists tools that could not be
    loaded.
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
        self._create_processors()
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
            raise ValueError(f"several tools have the same name: {', '.join(sorted(names))}")
        self.filter = filter
        self.context = context
        self.processors: dict[str, Processor] = {}
        context.processors = MappingProxyType(self.processors)
        context.conventions = conventions()
        self.selection = Selection(filter)
        context.selected_kernels = lambda: self.selection.kernels
        self.failures = {each.tool: each for each in failures}
        #: Names of all tools, also of those that could not be loaded.
        self.names = list(dict.fromkeys((*names, *self.failures)))
        context.tools = tuple(self.names)
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
        """The loaded tools, including those that have failed."""
        return [each.tool for each in self.loaded]

    def working(self) -> list[LoadedTool]:
        """Tools that have not failed."""
        return [each for each in self.loaded if each.name not in self.failures]

    def _create_processors(self) -> None:
        wanted = frozenset().union(*(each.needs for each in self.loaded))
        if self.filter.needs_operators:
            self._create("operators", _operators, wanted)
        for name, need in NEEDS.items():
            if need.create is not None and name in wanted and name not in self.processors:
                self._try(name, self._create, name, need.create, wanted)
        if "probes" in wanted:
            self._try("probes", self._create, "probes", _probe_runtime, self._probing())

    def _create(self, name: str, create: Callable[[Context, Any], Processor], given: Any) -> None:
        self.processors[name] = create(self.context, given)

    def _probing(self) -> list[Tool]:
        return [each.tool for each in self.loaded if each.has_probes]

    @property
    def probes(self) -> ProbeRuntime | None:
        """The runtime of probes; None if no tool has any."""
        return cast("ProbeRuntime | None", self.processors.get("probes"))

    def compile(self, kinds: Collection[str], *, accesses: bool = True) -> None:
        """Compile, side by side, the functions that processors will call for these kinds of events
        and, with `accesses`, for accesses, unless their code is in the cache. Others are compiled
        when called."""
        modules = compiled_modules(self.processors, kinds)
        probes = self.probes if accesses else None
        if probes is None and not modules:
            return
        from pasta.compiled.building import build_missing, declared

        functions: list[Compiled] = []
        if probes is not None:
            self._try("probes", lambda probes: functions.extend(probes.functions()), probes)
        for module in modules:
            functions += declared(module)
        report_progress("compiling")
        build_missing(functions)

    def feed(self, batch: Batch) -> Batch:
        """Process a batch; return the records of it that the filter keeps, which are recorded."""
        whole = batch
        operators = self._follow_operators(whole) if self.filter.needs_operators else None
        batch = _read_only(self.selection.apply(batch, self.context.strings, operators))
        processors = [each for each in self.processors.items() if each[1] is not operators]
        for name, processor in processors:
            self._try(name, processor.feed, batch)
        for name, processor in processors:
            if _follows(type(processor)):
                self._try(name, cast(Follower, processor).follow, batch, whole)
        for each in self.working():
            for name in each.handlers:
                if each.name in self.failures:
                    break
                records = batch if name == "on_batch" else _records(batch, HANDLERS[name])
                if records is not None:
                    self._guarded(each.name, name, _call, each.tool, name, records)
        return batch

    def _follow_operators(self, whole: Batch) -> Operators | None:
        """The operators of a batch, by which launches are selected; None if they failed."""
        operators = cast("Operators | None", self.processors.get("operators"))
        if operators is None:
            return None
        try:
            operators.feed(whole)
            operators.follow(whole, whole)
        except Exception as error:
            del self.processors["operators"]
            self.fail_all("PASTA's own operators", error)
            return None
        return operators

    def _try(self, name: str, work: Callable[..., object], *arguments: Any) -> None:
        """Do a processor's work while a working tool needs it; if it fails, disable these tools."""
        if not any(name in each.needs for each in self.working()):
            return
        try:
            work(*arguments)
        except Exception as error:
            self._fail_processor(name, error)

    def _fail_processor(self, name: str, error: Exception) -> None:
        for each in self.working():
            if name in each.needs:
                self.fail(each.name, f"PASTA's own {name}", error)

    @property
    def kinds(self) -> frozenset[str] | None:
        """Event kinds that the results depend on; None: all."""
        wanted = [each.kinds for each in self.loaded]
        read = [NEEDS[name].reads if name in NEEDS else None for name in self.processors]
        found = {"kernel_launch"}
        for kinds in (*wanted, *read):
            if kinds is None or self.filter.selects_launches:
                return None
            found |= kinds
        return frozenset(found)

    def feed_accesses(self, chunk: Any = b"", *, final: bool = False) -> None:
        """Run the probes over access records, after the events before them were fed; `final`: no
        more events follow. Raises ValueError for a truncated record."""
        probes = self.probes
        if probes is None:
            return
        try:
            taken = probes.run(chunk, final=final)
        except ValueError:
            raise
        except Exception as error:
            self._fail_processor("probes", error)
            return
        loaded = {id(each.tool): each for each in self.loaded}
        for tool, accesses in taken:
            each = loaded[id(tool)]
            if each.name not in self.failures:
                self._guarded(each.name, ON_ACCESSES, _call, tool, ON_ACCESSES, accesses)

    def feed_device(self, data: bytes) -> None:
        """Give the maps what devices counted: the buffer of a probe_data event."""
        probes = self.probes
        if probes is not None:
            self._try("probes", lambda: probes.device.feed(data))

    def finish(self) -> dict[str, Result]:
        """Results by name, of the tools that have not failed."""
        if self.probes is not None:
            self._try("probes", self._finish_probes, self.probes)
        results = {}
        working = self.working()
        for number, each in enumerate(working, 1):
            report_progress(f"computing results of {each.name}", f"tool {number} of {len(working)}")
            result = self._guarded(each.name, "result", self._result, each)
            if result is not None:
                results[each.name] = result
        return results

    def _finish_probes(self, probes: ProbeRuntime) -> None:
        self.feed_accesses(final=True)
        probes.flush()
        probes.read_code()

    def _result(self, loaded: LoadedTool) -> Result:
        result = loaded.tool.result()
        if not isinstance(result, Result):
            kind = type(result).__name__
            raise TypeError(f"result() must return a pasta.tool.Result, not {kind}")
        if loaded.has_probes and self.probes is not None:
            from pasta.probes.unseen import with_unseen

            if not loaded.tool.estimates:
                tables = {name: _probed_only(each) for name, each in result.tables.items()}
                result = replace(result, tables=tables)
            return with_unseen(loaded.name, loaded.tool, self.context, self.probes, result)
        return result

    def _guarded(self, name: str, where: str, call: Callable[..., T], *arguments: Any) -> T | None:
        try:
            with self.limit():
                return call(*arguments)
        # Also SystemExit and KeyboardInterrupt: nothing that a tool raises reaches the target.
        except BaseException as error:
            self.fail(name, where, error)
            return None

    def fail(self, name: str, where: str, error: BaseException) -> None:
        """Disable a tool because of an exception."""
        self.failures[name] = ToolFailure.of(name, where, error)

    def fail_all(self, where: str, error: BaseException) -> None:
        """Disable all tools that have not failed."""
        for each in self.working():
            self.fail(each.name, where, error)

    def state(self) -> bytes:
        """The pickled state for `restore`, without strings.

        Each tool is pickled alone, and disabled if that fails.
        """
        if self.probes is not None:
            self._try("probes", self.probes.flush)
        states: dict[str, bytes] = {}
        for each in self.working():
            state = self._guarded(each.name, "pickling", _pickled, each.tool)
            if state is not None:
                states[each.name] = state
        return pickle.dumps(
            {
                "filter": self.filter,
                "selection": self.selection,
                "processors": self.processors,
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
        """A pipeline that continues from `state`; `tools` are new instances with the same names and
        options."""
        saved: dict[str, Any] = pickle.loads(state)
        pipeline = cls.__new__(cls)
        pipeline._set_up(saved["filter"], tools, context, limit, failures)
        pipeline.selection = saved["selection"]
        pipeline.failures |= saved["failures"]
        pipeline.processors.update(saved["processors"])
        for name, processor in pipeline.processors.items():
            attach = NEEDS[name].attach if name in NEEDS else None
            if attach is not None:
                attach(processor, context)
        for each in pipeline.working():
            pipeline._guarded(each.name, "unpickling", _unpickle, each, saved["tools"])
        if pipeline.probes is not None:
            pipeline.probes.attach(pipeline._probing(), context)
        return pipeline


@cache
def _follows(processor: type[Processor]) -> bool:
    """Whether processors of a class are followers: asking for the protocol takes 0.1 ms."""
    return issubclass(processor, Follower)


def _read_only(batch: Batch) -> Batch:
    """The batch in read-only views: tools cannot change data of other tools or the recording."""
    records = {kind: array.view() for kind, array in batch}
    for view in records.values():
        view.flags.writeable = False
    return Batch(batch.base, MappingProxyType(records))


def _records(batch: Batch, kinds: tuple[str, ...]) -> NDArray[Any] | None:
    """Records of some kinds in ring order; None without any."""
    if not any(len(batch.records.get(kind, ())) for kind in kinds):
        return None
    return batch.merged(*kinds)


def _probed_only(table: Table) -> Table:
    """The table of a tool that estimates nothing: unless it says which, all columns that add up
    cover the probed launches only."""
    if not isinstance(table, Table) or table.probed is not None:
        return table
    return replace(table, probed=dict.fromkeys(table.columns if table.sums is None else table.sums))


def _call(tool: Tool, method: str, *arguments: Any) -> Any:
    return getattr(tool, method)(*arguments)


def _probe_runtime(context: Context, tools: Sequence[Tool]) -> Processor:
    from pasta.runtime.probe_runtime import ProbeRuntime

    return ProbeRuntime(tools, context)


def _operators(context: Context, needs: Any) -> Processor:
    """Operators by which launches are selected, whether a tool needs them or not."""
    create = NEEDS["operators"].create
    assert create is not None
    return create(context, needs)


def _pickled(tool: Tool) -> bytes:
    return pickle.dumps(type(tool).__getstate__(tool))


def _unpickle(loaded: LoadedTool, states: dict[str, bytes]) -> None:
    type(loaded.tool).__setstate__(loaded.tool, pickle.loads(states[loaded.name]))
