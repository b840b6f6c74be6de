"""Needs of tools, by the names in `Tool.needs`: each processor is declared once, here."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from pasta.processors.context import Context
    from pasta.processors.processor import Processor


class Need(NamedTuple):
    """Something that tools may need from a run.

    `create` makes the processor `context.NAME` from the context and all needs of the run; without
    it the need is satisfied outside of the pipeline. `attach` sets the context of the new process
    on an unpickled processor.
    """

    create: Callable[[Context, Collection[str]], Processor] | None = None
    attach: Callable[[Any, Context], None] | None = None
    #: Needs that this one implies; processors that this one queries are fed first.
    requires: tuple[str, ...] = ()
    #: Module of the processor's compiled functions, and the kind of events that it calls them for.
    compiled: tuple[str, str] | None = None
    #: Kinds of events that the processor follows; None: any.
    reads: frozenset[str] | None = None


def _objects(context: Context, needs: Collection[str]) -> Processor:
    from pasta.processors.objects import ObjectTable

    return ObjectTable(history="history" in needs)


def _launches(context: Context, needs: Collection[str]) -> Processor:
    from pasta.processors.correlate import LaunchNames

    return LaunchNames()


def _ranges(context: Context, needs: Collection[str]) -> Processor:
    from pasta.processors.correlate import OpenRanges

    return OpenRanges()


def _operators(context: Context, needs: Collection[str]) -> Processor:
    from pasta.processors.operators import Operators

    return Operators()


def _stacks(context: Context, needs: Collection[str]) -> Processor:
    from pasta.processors.stacks import Stacks

    return Stacks(context.conventions, context.symbols)


def _attach_stacks(stacks: Any, context: Context) -> None:
    stacks.symbols = context.symbols


def _call_paths(context: Context, needs: Collection[str]) -> Processor:
    from pasta.processors.call_paths import CallPaths

    return CallPaths()


def _of_tensors(context: Context) -> tuple[Any, ...]:
    return (
        context.objects, context.operators, context.ranges, context.strings, context.conventions
    )  # fmt: skip


def _tensors(context: Context, needs: Collection[str]) -> Processor:
    from pasta.processors.tensors import Tensors

    return Tensors(*_of_tensors(context))


def _attach_tensors(tensors: Any, context: Context) -> None:
    tensors.attach(*_of_tensors(context))


def compiled_modules(needs: Collection[str], kinds: Collection[str]) -> list[str]:
    """Modules whose compiled functions the processors of these needs call for kinds of events."""
    found = (need.compiled for name, need in NEEDS.items() if name in needs)
    return [of[0] for of in found if of is not None and of[1] in kinds]


#: Needs by name, in the order in which their processors are fed.
NEEDS: Final[dict[str, Need]] = {
    "objects": Need(_objects, compiled=("pasta.processors.objects", "memory_alloc")),
    #: The table of objects keeps a row of every object until the run ends.
    "history": Need(requires=("objects",)),
    "launches": Need(_launches, reads=frozenset({"kernel_launch"})),
    "ranges": Need(_ranges),
    "operators": Need(
        _operators,
        requires=("stacks",),
        compiled=("pasta.processors.operators", "operator_begin"),
    ),
    "stacks": Need(_stacks, _attach_stacks, reads=frozenset({"python_frame", "host_frame"})),
    "call_paths": Need(_call_paths, requires=("stacks",), reads=frozenset({"host_stack"})),
    "tensors": Need(
        _tensors,
        _attach_tensors,
        requires=("objects", "ranges", "operators"),
        compiled=("pasta.processors.tensors", "operator_begin"),
    ),
    #: Frameworks report the events of their allocators, as for `on_tensors`.
    "allocations": Need(),
    #: All events are recorded: `context.recorded()`.
    "recording": Need(),
}


def with_required(names: Iterable[str]) -> frozenset[str]:
    """Needs with all needs that they require, directly or not."""
    found: set[str] = set()
    open_ = list(names)
    while open_:
        name = open_.pop()
        if name not in found:
            found.add(name)
            open_ += NEEDS[name].requires if name in NEEDS else ()
    return frozenset(found)
