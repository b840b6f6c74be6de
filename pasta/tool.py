"""What a tool is: a class with options, handlers of events, and a result.

    class Syncs(Tool):
        \"\"\"How long the host waited.\"\"\"

        longest = option(10, help="waits to list")

        def start(self) -> None:
            self.waited = 0

        def on_syncs(self, syncs) -> None:        # NumPy structured array, in ring order
            self.waited += int(syncs["duration"].sum())

        def result(self) -> Result:
            return Result(summary=f"the host waited {self.waited:,} ns")

An instance's attributes are its state: they are pickled when the target ends and its last events
are handed to another process. `context` is not part of it. What the class says is read once, when
the tool is loaded.
"""

from __future__ import annotations

import difflib
import inspect
import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, BinaryIO, ClassVar, Generic, Literal, TypeVar, overload

from pasta.errors import ToolError, shown
from pasta.processors.demangle import demangle
from pasta.table import Column, Figure, Table, Unit

if TYPE_CHECKING:
    from pathlib import Path

    from pasta.probes.accumulators import Accumulator
    from pasta.probes.language import ProbeFunction
    from pasta.probes.maps import Map, MapSpec
    from pasta.probes.runtime import ProbeRuntime
    from pasta.probes.windows import Sampling
    from pasta.processors.batch import Batch
    from pasta.processors.correlate import LaunchNames, OpenRanges
    from pasta.processors.objects import ObjectTable
    from pasta.processors.operators import Operators
    from pasta.processors.stacks import Stacks
    from pasta.processors.strings import Strings
    from pasta.processors.tensors import Tensors

__all__ = [
    "HANDLERS",
    "Column",
    "Context",
    "Figure",
    "Finding",
    "Option",
    "Result",
    "Run",
    "Table",
    "Tool",
    "Unit",
    "option",
]

T = TypeVar("T")

#: Event kinds of each handler, in the order in which the handlers of a batch are called. Kinds
#: that share a handler come merged, in ring order; `on_batch` gets every batch as a whole.
HANDLERS: dict[str, tuple[str, ...]] = {
    "on_contexts": ("context_create", "context_destroy"),
    "on_streams": ("stream_create", "stream_destroy"),
    "on_modules": ("module_load", "module_unload"),
    "on_memory": ("memory_alloc", "memory_free"),
    "on_tensors": ("tensor_alloc", "tensor_free", "tensor_create", "allocator_state"),
    "on_ranges": ("range_push", "range_pop", "range_start", "range_end", "mark"),
    "on_operators": ("operator_begin", "operator_tensors", "operator_end"),
    "on_frames": ("python_frame",),
    "on_launches": ("kernel_launch",),
    "on_launch_ends": ("kernel_launch_end",),
    "on_completions": ("kernel_complete",),
    "on_samples": ("pc_sample",),
    "on_counters": ("counter",),
    "on_graph_launches": ("graph_launch", "graph_launch_end"),
    "on_graphs": ("graph_node", "graph_instantiate"),
    "on_copies": ("memory_copy",),
    "on_sets": ("memory_set",),
    "on_uvm": ("uvm_attach", "uvm_prefetch", "uvm_advise", "uvm_fault", "uvm_migration"),
    "on_syncs": ("sync",),
    "on_events": ("event_create", "event_destroy", "event_record", "event_wait"),
    "on_batch": (),
}
#: Handlers of records that have a launch's ordinal, by which `context.launches` knows its kernel.
OF_A_LAUNCH = ("on_completions", "on_samples", "on_counters")
#: Gets what `Trace` maps of the tool took; not a handler of events.
ON_ACCESSES = "on_accesses"

OptionKind = Literal["bool", "int", "float", "str", "bytes", "duration"]

_ACCEPTED: dict[str, str] = {
    "bool": "true or false",
    "int": "an integer",
    "float": "a number",
    "str": "a text",
    "bytes": 'a size such as 4096, "4KiB" or "1MB"',
    "duration": 'a duration such as "10ms", "2s" or a number of nanoseconds',
}
_BOOLS = {"true": True, "yes": True, "on": True, "1": True} | {
    "false": False, "no": False, "off": False, "0": False,
}  # fmt: skip
#: What a suffix of a size or duration stands for, in lower case: bytes, and ns.
SCALES: dict[str, dict[str, int]] = {
    "bytes": {"": 1, "b": 1}
    | {f"{letter}ib": 1 << 10 * (power + 1) for power, letter in enumerate("kmgt")}
    | {f"{letter}b": 1000 ** (power + 1) for power, letter in enumerate("kmgt")},
    "duration": {"": 1, "ns": 1, "us": 10**3, "µs": 10**3, "ms": 10**6, "s": 10**9}
    | {"min": 60 * 10**9, "h": 3600 * 10**9},
}


class Option(Generic[T]):
    """A named, typed, validated setting of a tool; reads as its value on an instance."""

    def __init__(
        self,
        default: T,
        help: str,
        choices: Sequence[T] | None,
        kind: OptionKind,
        minimum: int | float | None,
    ) -> None:
        self.help = help
        self.kind = kind
        self.choices = choices
        self.minimum = minimum
        self.name = ""
        self.given = default
        self.default: T = self.parse(default)

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, tool: None, owner: type) -> Option[T]: ...
    @overload
    def __get__(self, tool: Tool, owner: type) -> T: ...
    def __get__(self, tool: Tool | None, owner: type) -> Option[T] | T:
        if tool is None:
            return self
        value: T = tool._options[self.name]
        return value

    def __set__(self, tool: Tool, value: object) -> None:
        raise AttributeError(f"option {self.name} is set when the tool is created")

    @property
    def accepted(self) -> str:
        """What a user may give, in words."""
        if self.choices is not None:
            return "one of " + ", ".join(map(str, self.choices))
        least = f", at least {self.minimum}" if self.minimum is not None else ""
        return _ACCEPTED[self.kind] + least

    def parse(self, value: object) -> T:
        """The value of a TOML value or of a `--set` text. Raises ValueError if not accepted."""
        try:
            parsed = self._parsed(value)
        except OverflowError:
            raise ValueError(value) from None
        if self.kind in ("int", "bytes", "duration") and abs(parsed) >= 1 << 63:
            raise ValueError(value)
        if self.kind == "float" and not math.isfinite(parsed):
            raise ValueError(value)
        if self.choices is not None and parsed not in self.choices:
            raise ValueError(value)
        if self.minimum is not None and parsed < self.minimum:
            raise ValueError(value)
        return parsed  # type: ignore[no-any-return]

    def _parsed(self, value: object) -> Any:
        text = value.strip() if isinstance(value, str) else None
        if self.kind == "str" and isinstance(value, str) and "\0" not in value:
            return value
        if self.kind == "bool":
            if text is not None and text.lower() in _BOOLS:
                return _BOOLS[text.lower()]
            if isinstance(value, bool):
                return value
        elif isinstance(value, bool):
            pass
        elif self.kind in ("int", "bytes", "duration") and isinstance(value, int):
            return value
        elif self.kind == "int" and text is not None:
            return int(text, 0)
        elif self.kind == "float" and (text is not None or isinstance(value, (int, float))):
            return float(text if text is not None else value)  # type: ignore[arg-type]
        elif self.kind in SCALES and text is not None:
            match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([a-zµ]*)", text, re.IGNORECASE)
            scale = SCALES[self.kind].get(match[2].lower()) if match else None
            if match and scale is not None:
                whole = match[1]
                return int(whole) * scale if "." not in whole else round(float(whole) * scale)
        raise ValueError(value)


@overload
def option(
    default: str,
    *,
    kind: Literal["bytes", "duration"],
    help: str,
    choices: Sequence[int] | None = None,
    minimum: int | None = None,
) -> Option[int]: ...
@overload
def option(
    default: T,
    *,
    kind: None = None,
    help: str,
    choices: Sequence[T] | None = None,
    minimum: int | float | None = None,
) -> Option[T]: ...
def option(
    default: Any,
    *,
    kind: Literal["bytes", "duration"] | None = None,
    help: str,
    choices: Sequence[Any] | None = None,
    minimum: int | float | None = None,
) -> Any:
    """An option of a tool, typed by its default: bool, int, float or str.

    `kind` "bytes" takes sizes ("4KiB") and gives int bytes; "duration" takes durations ("10ms")
    and gives int nanoseconds. Raises TypeError for a default of another type.
    """
    found = kind or type(default).__name__
    if found not in _ACCEPTED:
        raise TypeError(f"an option is bool, int, float or str, not {found}")
    return Option(default, help, choices, found, minimum)  # type: ignore[arg-type]


Confidence = Literal["high", "medium", "low"]
_WEIGHTS: dict[Confidence, float] = {"high": 1.0, "medium": 0.6, "low": 0.3}


@dataclass(frozen=True)
class Finding:
    """Something in the program that its author may want to change; reports put the best first.

    `gain` is the share (0 to 1) of what `of` names, "device time" or "peak memory", that would be
    saved at most, as the evidence says; None where it does not say. `confidence`: "high" where the
    evidence shows the fault itself, "medium" where it shows the cost and the remedy may not apply,
    "low" for a place to look at.
    """

    what: str  # in a line, without where: "one kernel takes most of the device time"
    where: str  # kernel, operator, line, object
    evidence: str  # the measured figures that say so
    remedy: str  # a command to paste, or a change to a named line: "train.py:12 step: …"
    gain: float | None = None
    of: str = "device time"
    confidence: Confidence = "medium"

    @property
    def rank(self) -> float:
        """By which findings of all tools are compared: the gain to be expected."""
        return (self.gain or 0.0) * _WEIGHTS[self.confidence]


@dataclass(frozen=True)
class Result:
    """What a tool found.

    `files`: functions are called with an open binary file to write to, files at paths are moved.
    `notes`: lines that a reader of the result should know; PASTA adds what the backend of the run
    could not give.
    """

    summary: str
    tables: Mapping[str, Table] = field(default_factory=dict)
    findings: Sequence[Finding] = ()
    figures: Mapping[str, Figure] = field(default_factory=dict)
    files: Mapping[str, Callable[[BinaryIO], None] | Path] = field(default_factory=dict)
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class Run:
    """The process that is profiled. `start_time` is its monotonic clock, as records have it."""

    pid: int = 0
    program: str = ""
    start_realtime: int = 0  # ns since the epoch
    start_time: int = 0  # ns


@dataclass
class Context:
    """What a tool may ask about the run; `tool.context`."""

    strings: Strings
    run: Run = Run()
    #: Versions of the run's sources by their names, for events that do not name any.
    sources: Mapping[str, str] = field(default_factory=dict)
    #: All recorded batches from the beginning; for tools with `needs_recording`, in `result`.
    recorded: Callable[[], Iterator[Batch]] = lambda: iter(())
    #: Files of modules' images by the hash of their content, where they were kept.
    images: Callable[[int], Path | None] = lambda hash: None
    _objects: ObjectTable | None = None
    _launches: LaunchNames | None = None
    _ranges: OpenRanges | None = None
    _probes: ProbeRuntime | None = None
    _operators: Operators | None = None
    _stacks: Stacks | None = None
    _tensors: Tensors | None = None

    def demangled(self, names: Iterable[int]) -> list[str]:
        """C++ names of kernel name ids; takes an integer array as well."""
        return [demangle(name) for name in self.strings.many(names)]

    @property
    def objects(self) -> ObjectTable:
        """Live objects as of the batch at hand; for tools with `needs_objects`."""
        return _required(self._objects, "needs_objects")

    @property
    def launches(self) -> LaunchNames:
        """Kernel names by launch ordinal; for tools with handlers of OF_A_LAUNCH."""
        return _required(self._launches, " or ".join(OF_A_LAUNCH))

    @property
    def ranges(self) -> OpenRanges:
        """Open ranges as of records of the batch at hand; for tools with `needs_ranges`."""
        return _required(self._ranges, "needs_ranges")

    @property
    def operators(self) -> Operators:
        """Operators of frameworks as of records of the batch at hand; for `needs_operators`."""
        return _required(self._operators, "needs_operators")

    @property
    def stacks(self) -> Stacks:
        """Python stacks by id; for tools with `needs_operators`."""
        return _required(self._stacks, "needs_operators")

    @property
    def sampling(self) -> Sampling:
        """Which launches were probed, and estimates from them; for tools with probes."""
        return _required(self._probes, "probes").sampling

    @property
    def tensors(self) -> Tensors:
        """What tensors in `objects` are, as of the end of the batch; for `needs_tensors`."""
        return _required(self._tensors, "needs_tensors")


def _required(part: T | None, what: str) -> T:
    if part is None:
        raise ToolError(
            f"no tool of this run has {what}", remedy=f"define {what} in the tool's class"
        )
    return part


class Tool:
    """Base of all tools. The first line of the docstring is what `pasta tools` says about it."""

    #: Name in presets, on the command line and of the results' directory.
    name: ClassVar[str] = "tool"
    #: `context.objects` is kept: costs Numba's import, and time per allocation.
    needs_objects: ClassVar[bool] = False
    #: …and keeps a row of every object for ever, under its id.
    needs_object_history: ClassVar[bool] = False
    #: `context.ranges` is kept.
    needs_ranges: ClassVar[bool] = False
    #: `context.operators` is kept: which operator of a framework is open around a record.
    needs_operators: ClassVar[bool] = False
    #: …and `context.tensors`, which needs objects and ranges too: what tensors are.
    needs_tensors: ClassVar[bool] = False
    #: The allocators of frameworks are followed; so they are for tools with `on_tensors`.
    needs_allocations: ClassVar[bool] = False
    #: `context.recorded()` gives all events in `result`, so that nothing must be held in memory.
    needs_recording: ClassVar[bool] = False
    #: Capabilities (docs/backends.md) that the results have something of where the backend gives
    #: it, beside the kinds of the handlers: results say which of them it does not give.
    uses: ClassVar[tuple[str, ...]] = ()

    context: Context

    _declared_maps: ClassVar[Mapping[str, Map[Any]]] = {}
    _probes: ClassVar[tuple[ProbeFunction, ...]] = ()

    @property
    def asks_for_tensors(self) -> bool:
        """Whether frameworks are to tell operators and the tensors they take, as `needs_tensors`
        has it too; nothing of the context is kept for it."""
        return self.needs_tensors

    @property
    def needs_compiled(self) -> bool:
        """Whether processors compiled by Numba work for this tool; they run in a collector."""
        return (
            self.needs_objects
            or self.needs_object_history
            or self.needs_operators
            or self.needs_tensors
            or self.needs_probes
        )

    @property
    def needs_probes(self) -> bool:
        """Whether the tool has probes: accesses inside kernels must be seen."""
        return bool(self._probes)

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        if "name" not in cls.__dict__:
            cls.name = snake_case(cls.__name__)
        try:
            check_name(cls.name, "tool")
        except ValueError as error:
            raise ToolError(str(error), remedy="give its class another `name`") from None
        if "pasta.probes" in sys.modules:  # else there can be none
            cls._find_probes()
        for attribute in cls.__dict__:
            known = (*HANDLERS, ON_ACCESSES)
            if attribute.startswith("on_") and attribute not in known:
                raise ToolError(
                    f"tool {cls.name}: there is no handler {attribute}",
                    remedy=_choose(attribute, known),
                )

    @classmethod
    def _find_probes(cls) -> None:
        from pasta.probes.declare import maps_of, probes_of

        cls._declared_maps = maps_of(cls)
        cls._probes = probes_of(cls, cls._declared_maps)
        if cls._probes:
            # what is accessed may be tensors, and operators may launch the kernels
            cls.needs_objects = cls.needs_object_history = cls.needs_tensors = True
        traces = [name for name, each in cls._declared_maps.items() if each.map_type == "trace"]
        if bool(traces) != hasattr(cls, ON_ACCESSES):
            raise ToolError(
                f"tool {cls.name}: {traces[0] if traces else ON_ACCESSES} is of no use alone",
                remedy=f"a Trace map needs the method {ON_ACCESSES}, and the method a Trace map",
            )

    def __init__(self, options: Mapping[str, object] | None = None) -> None:
        """Options from TOML or `--set`. Raises ToolError for unknown or unaccepted ones."""
        declared = self.options()
        self._options: dict[str, Any] = {key: each.default for key, each in declared.items()}
        for key, value in (options or {}).items():
            self._options[key] = self.accept(key, value)
        self._maps: dict[str, Accumulator] = {
            name: each.accumulator(self._options) for name, each in self._declared_maps.items()
        }
        for probe in self._probes:
            probe.definitions(self._options)  # raises where an option does not fit

    @classmethod
    def accept(cls, key: str, value: object, *, typed: bool = False) -> Any:
        """The value of an option from TOML or `--set`; `typed`: from TOML, where a text is no
        boolean. Raises ToolError."""
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
                remedy=f"give {declared[key].accepted}",
            ) from None

    @classmethod
    def probes(cls) -> tuple[ProbeFunction, ...]:
        """Functions that run at every access of their kinds inside kernels."""
        return cls._probes

    def maps(self) -> dict[str, MapSpec]:
        """Maps by name, as executors build them for this instance's options."""
        return {name: each.spec for name, each in self._maps.items()}

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
    def handlers(cls) -> list[str]:
        """Names of the handlers the class has, in the order in which they are called."""
        return [name for name in HANDLERS if hasattr(cls, name)]

    @classmethod
    def kinds(cls) -> frozenset[str] | None:
        """Event kinds the tool wants; None: all of them."""
        if hasattr(cls, "on_batch") or cls.needs_recording:
            return None
        return frozenset(kind for name in cls.handlers() for kind in HANDLERS[name])

    @classmethod
    def wants(cls) -> frozenset[str]:
        """Capabilities that results are made of: `uses`, kinds of the handlers, accesses."""
        kinds = (kind for name in cls.handlers() for kind in HANDLERS[name])
        return frozenset((*cls.uses, *kinds, *(("accesses",) if cls._probes else ())))

    @classmethod
    def summary_line(cls) -> str:
        """First line of the docstring, or nothing."""
        return (inspect.getdoc(cls) or "").partition("\n")[0] if cls.__doc__ else ""

    def start(self) -> None:
        """Called once, before the first event; `context` is there."""

    def result(self) -> Result:
        """Called once, after the last event."""
        raise NotImplementedError(f"tool {self.name} has no result()")

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in vars(self).items() if key != "context"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)


def check_name(name: object, what: str) -> None:
    """Raises ValueError for a name that is not plain: directories and files are called by it."""
    if not isinstance(name, str) or not _PLAIN_NAME.fullmatch(name):
        raise ValueError(
            f"the {what} name {name!r:.100} is not made of at most 100 letters, digits, spaces and"
            " ._+-, the first a letter or digit"
        )


_PLAIN_NAME = re.compile(r"\w[\w .+-]{0,99}")


def snake_case(name: str) -> str:
    """`KernelFreq` → `kernel_freq`, `UVMAdvisor` → `uvm_advisor`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


def _choose(wrong: str, known: Iterable[str]) -> str:
    """A remedy for a wrong name: close ones first, else all there are."""
    names = sorted(known)
    close = difflib.get_close_matches(wrong, names, 3)
    if close:
        return "did you mean " + " or ".join(close) + "?"
    return "there are " + ", ".join(names) if names else "it has none"
