"""Base class of tools: options, event handlers and a result.

    class Syncs(Tool):
        \"\"\"How long the host waited.\"\"\"

        longest = option(10, help="waits to list")

        def start(self) -> None:
            self.waited = 0

        def on_syncs(self, syncs) -> None:        # NumPy structured array, in ring order
            self.waited += int(syncs["duration"].sum())

        def result(self) -> Result:
            return Result(summary=f"the host waited {self.waited:,} ns")

All attributes of an instance except `context` are its state. They are pickled if the target ends
and another process handles its last events. Declarations of the class are read once, when the tool
is loaded.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, get_args

from pasta import abi
from pasta.errors import ToolError, shown
from pasta.findings import Confidence, Finding, Result, Topic
from pasta.members import Member, members_of
from pasta.names import check_name, snake_case
from pasta.options import Option, option
from pasta.processors.context import Context, Process
from pasta.processors.needs import NEEDS, with_required
from pasta.table import Column, Figure, Table, Unit

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = [
    "HANDLERS",
    "Column",
    "Confidence",
    "Context",
    "Figure",
    "Finding",
    "Option",
    "OtherPass",
    "Process",
    "Result",
    "Table",
    "Tool",
    "Unit",
    "option",
]

#: Event kinds of each handler, in the order in which the handlers of a batch are called. Kinds
#: that share a handler are merged in ring order; `on_batch` receives every batch as a whole.
HANDLERS: dict[str, tuple[str, ...]] = {**abi.HANDLERS, "on_batch": ()}
#: Handlers of launch results; `context.launches` maps the ordinals to kernels.
LAUNCH_HANDLERS = tuple(
    name for name, kinds in HANDLERS.items() if set(kinds) & set(abi.kinds_of("launch_result"))
)
#: Receives the accesses of the tool's `Trace` maps; not an event handler.
ON_ACCESSES = "on_accesses"


class OtherPass(NamedTuple):
    """The pass with memory accesses of a program that ran twice, for `Tool.join`."""

    #: Tables that the tool stored in that pass, by name.
    tables: Mapping[str, Table]
    #: Launches that both passes have: ordinals (uint64) in the other pass, ascending, ordinals in
    #: this pass, and whether (bool) the other pass probed them.
    other_launches: NDArray[Any]
    own_launches: NDArray[Any]
    probed: NDArray[Any]


class Tool:
    """Base class of all tools. `pasta tools` shows the first line of a tool's docstring.

    A tool handles events in the methods that it defines among these:

        on_devices         device properties
        on_contexts        device contexts created and destroyed
        on_streams         streams created and destroyed
        on_modules         modules with device code loaded and unloaded
        on_memory          allocations and frees
        on_tensors         a framework's allocations, frees, tensors and allocator totals
        on_ranges          annotated ranges and marks
        on_operators       begins and ends of framework operators, and their tensors
        on_frames          frames of Python stacks
        on_host_frames     native frames of the host's call stacks
        on_host_stacks     call stacks of launches and other work
        on_host_samples    sampled call stacks of host threads
        on_launches        kernel launches
        on_launch_ends     returns of launch calls
        on_collectives     communicators, and calls of communication libraries
        on_completions     device times of kernels
        on_kernel_details  how kernels were queued and configured
        on_samples         program counter samples
        on_counters        hardware counters of launches
        on_tensor_maps     tensor maps among launch arguments
        on_instruction_counts  executed instructions per launch
        on_graph_launches  graph launches and returns of the launch calls
        on_graphs          nodes and instances of graphs
        on_copies          memory copies
        on_sets            memory sets
        on_copy_completions  device times of copies and sets
        on_uvm             attachment, prefetch and advice of managed memory
        on_uvm_activity    faults, migrations and thrashing of managed memory
        on_syncs           waits of the host for devices
        on_events          accelerator events created, destroyed, recorded and waited for
        on_overheads       overhead of the vendor's profiling library
        on_device_samples  power, clocks, temperature and memory of devices over time
        on_batch           all events: a `pasta.processors.batch.Batch`, after the other handlers
        on_accesses        accesses of a `Trace` map: a `pasta.probes.records.Accesses`

    All but the last two receive the records of their kinds in a batch as a read-only NumPy
    structured array in ring order, and are called only if there are any. docs/events.md lists the
    kinds of each handler and the fields of each kind; the field `kind` distinguishes them. An
    absent value is all ones, -1, or 0 for a string id.
    """

    #: Name in presets, on the command line and in the run directory.
    name: ClassVar[str] = "tool"
    #: Heading of its results in HTML reports; derived from the name by default.
    title: ClassVar[str] = ""
    #: Section of its results in HTML reports.
    topic: ClassVar[Topic] = "other"
    #: Names in `pasta.processors.needs.NEEDS`; a subclass adds to the names of its bases.
    needs: ClassVar[Collection[str]] = ()
    #: Capabilities (docs/backends.md) that results depend on, besides the kinds of the handlers.
    #: Results list those that the backend of the run does not have.
    uses: ClassVar[tuple[str, ...]] = ()
    #: Whether a tool with probes estimates results for all launches from the probed ones. Counters
    #: without "launch" are then estimated; scale other numbers with `context.sampling`. If False,
    #: the summary states that results cover the probed launches only.
    estimates: ClassVar[bool] = False
    #: Whether a tool with probes also has results without accesses: if the source does not provide
    #: them, or the recorded run has none.
    optional_accesses: ClassVar[bool] = False

    #: Whether a tool with probes runs in both passes of a program that runs twice (`--passes
    #: auto`), without its probes in the pass with device times. The joined result uses the events
    #: of that pass and the tables of the other one, which `join` receives. Built-in tools only.
    both_passes: ClassVar[bool] = False

    context: Context

    #: Maps and probes of the class, by name.
    _members: ClassVar[Mapping[str, Member]] = {}

    @property
    def asks_for_tensors(self) -> bool:
        """Whether frameworks must report operators and their tensors. "tensors" in `needs` implies
        it; a subclass may return True without a processor."""
        return "tensors" in self.needed()

    @property
    def asks_for_roofs(self) -> bool:
        """Whether the launcher measures unknown roofs of devices for `context.roofs`."""
        return False

    @property
    def passes(self) -> tuple[str, ...]:
        """The passes that this tool needs if the program runs twice (`--passes auto`): "times",
        with device times, and "accesses", with probes. A tool may need only one."""
        return ("times", "accesses")

    @property
    def needs_compiled(self) -> bool:
        """Whether the tool needs a processor with compiled functions, and therefore a collector."""
        return any(NEEDS[name].compiled for name in self.needed() & NEEDS.keys())

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        if "name" not in cls.__dict__:
            cls.name = snake_case(cls.__name__)
        try:
            check_name(cls.name, "tool")
        except ValueError as error:
            raise ToolError(str(error), remedy="give its class another `name`") from None
        cls._check_needs()
        if not isinstance(cls.title, str) or cls.topic not in get_args(Topic):
            raise ToolError(
                f"tool {cls.name}: the title or topic of its class is not accepted",
                remedy=f"set a title, and a topic of {', '.join(get_args(Topic))}",
            )
        cls._extend()
        for attribute in cls.__dict__:
            known = (*HANDLERS, ON_ACCESSES)
            if attribute.startswith("on_") and attribute not in known:
                raise ToolError(
                    f"tool {cls.name}: there is no handler {attribute}",
                    remedy=_choose(attribute, known),
                )

    @classmethod
    def _check_needs(cls) -> None:
        if isinstance(cls.needs, str) or not isinstance(cls.needs, Collection):
            raise ToolError(
                f"tool {cls.name}: needs = {shown(cls.needs)} is not accepted",
                remedy='use a tuple of names, as needs = ("objects",)',
            )
        for name in cls.needs:
            if name not in NEEDS:
                raise ToolError(
                    f"tool {cls.name}: {shown(name)} in needs is unknown",
                    remedy=_choose(str(name), NEEDS),
                )

    @classmethod
    def _extend(cls) -> None:
        """Complete the class with its members."""
        cls._members = {name: each.of(cls) for name, each in members_of(cls).items()}
        callers = [name for name, each in cls._members.items() if each.calls == ON_ACCESSES]
        if bool(callers) != hasattr(cls, ON_ACCESSES):
            raise ToolError(
                f"tool {cls.name}: {callers[0] if callers else ON_ACCESSES} has no effect alone",
                remedy=f"a Trace map needs the method {ON_ACCESSES}, and the method a Trace map",
            )

    def __init__(self, options: Mapping[str, object] | None = None) -> None:
        """Sets options from TOML or `--set`. Raises ToolError for unknown or invalid ones."""
        declared = self.options()
        self._options: dict[str, Any] = {key: each.default for key, each in declared.items()}
        for key, value in (options or {}).items():
            self._options[key] = self.accept(key, value)
        for member in self._members.values():
            member.attach(self)

    @classmethod
    def accept(cls, key: str, value: object, *, typed: bool = False) -> Any:
        """Parse the value of an option from `--set`, or with `typed` from TOML, where a boolean
        must not be text. Raises ToolError."""
        declared = cls.options()
        if key not in declared:
            raise ToolError(
                f"tool {cls.name} has no option {shown(key)}", remedy=_choose(key, declared)
            )
        try:
            if typed and declared[key].kind == "bool" and not isinstance(value, bool):
                raise ValueError(value)
            return declared[key].parse(value)
        except ValueError:
            raise ToolError(
                f"tool {cls.name}: {key} = {shown(value)} is not accepted",
                remedy=f"use {declared[key].accepted}",
            ) from None

    @classmethod
    def options(cls) -> dict[str, Option[Any]]:
        """Options of the class and its bases, by name."""
        found: dict[str, Option[Any]] = {}
        for base in reversed(cls.__mro__):
            found.update(
                {key: each for key, each in vars(base).items() if isinstance(each, Option)}
            )
        return found

    @classmethod
    def needed(cls) -> frozenset[str]:
        """Needs of the class, its bases, handlers, maps and probes, and all that these require."""
        names = {name for base in cls.__mro__ for name in vars(base).get("needs", ())}
        names.update(name for each in cls._members.values() for name in each.needs)
        if any(name in LAUNCH_HANDLERS for name in cls.handlers()):
            names.add("launches")
        return with_required(names)

    @classmethod
    def handlers(cls) -> list[str]:
        """Names of the handlers that the class defines, in call order."""
        return [name for name in HANDLERS if hasattr(cls, name)]

    @classmethod
    def kinds(cls) -> frozenset[str] | None:
        """Event kinds that the tool follows; None: all."""
        if hasattr(cls, "on_batch") or "recording" in cls.needed():
            return None
        return frozenset(kind for name in cls.handlers() for kind in HANDLERS[name])

    @classmethod
    def wants(cls) -> frozenset[str]:
        """Capabilities that results depend on: `uses`, kinds of handlers, accesses of probes."""
        kinds = (kind for name in cls.handlers() for kind in HANDLERS[name])
        of_members = (name for each in cls._members.values() for name in each.uses)
        return frozenset((*cls.uses, *kinds, *of_members))

    @classmethod
    def summary_line(cls) -> str:
        """First line of the docstring; empty without one."""
        return (inspect.getdoc(cls) or "").partition("\n")[0] if cls.__doc__ else ""

    def start(self) -> None:
        """Called once, before the first event; `context` is set."""

    def join(self, other: OtherPass) -> None:
        """Called before `result` if `both_passes` is set, to join two passes. The tool has received
        the events of the pass with device times; `other` is the pass with accesses. Raises
        ValueError if `other` is damaged."""

    def result(self) -> Result:
        """Called once, after the last event. Returns summary, tables, findings, figures, files."""
        raise NotImplementedError(f"tool {self.name} has no result()")

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in vars(self).items() if key != "context"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)


def _choose(wrong: str, known: Iterable[str]) -> str:
    """Remedy for a wrong name: the closest known names, otherwise all."""
    names = sorted(known)
    close = difflib.get_close_matches(wrong, names, 3)
    if close:
        return "did you mean " + " or ".join(close) + "?"
    return "there are " + ", ".join(names) if names else "it has none"
