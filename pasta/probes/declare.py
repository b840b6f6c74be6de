"""Decorators that declare a tool's probes, such as `@probe.global_memory`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from types import FunctionType
from typing import Any, overload

from pasta.errors import ProbeError
from pasta.members import Member, Owner, members_of
from pasta.probes.kinds import GROUPS, KIND
from pasta.probes.language import Helper, Per, ProbeFunction, translate
from pasta.probes.maps import Map, accumulators_of
from pasta.probes.specs import MapSpec

Function = Callable[..., Any]


@dataclass(frozen=True)
class Declared(Member):
    """A function decorated as a probe."""

    function: FunctionType
    kinds: tuple[str, ...]
    per: Per

    def of(self, owner: Any) -> Translated:
        """The probe, translated for this class. Raises ProbeError."""
        members = members_of(owner)
        function = translate(
            self.function,
            tool=owner.name,
            kinds=self.kinds,
            per=self.per,
            maps={name: each for name, each in members.items() if isinstance(each, Map)},
            options=owner.options(),
        )
        return Translated(function)


@dataclass(frozen=True)
class Decorator:
    """`@probe.NAME`, or `@probe.NAME(per="warp")`."""

    kinds: tuple[str, ...]

    @overload
    def __call__(self, function: Function) -> Declared: ...
    @overload
    def __call__(self, *, per: Per = "lane") -> Callable[[Function], Declared]: ...
    def __call__(
        self, function: Function | None = None, *, per: Per = "lane"
    ) -> Declared | Callable[[Function], Declared]:
        def declare(function: Function) -> Declared:
            if not isinstance(function, FunctionType):
                raise TypeError("a probe must be a plain function")
            where = (function.__code__.co_filename, function.__code__.co_firstlineno)
            if per not in ("lane", "warp"):
                raise ProbeError(*where, f"per = {per!r}", 'use "lane" or "warp"')
            for kind in self.kinds:
                if kind not in KIND:
                    known = f"the kinds are {', '.join(KIND)}"
                    raise ProbeError(*where, f"{kind!r} is not a kind of access", known)
            if "__" in function.__name__:
                raise ProbeError(
                    *where, f"the probe's name {function.__name__}", "use one without __"
                )
            return Declared(function, self.kinds, per)

        return declare if function is None else declare(function)


class Probe:
    """The decorators of probes."""

    global_memory = Decorator(GROUPS["global_memory"])
    shared_memory = Decorator(GROUPS["shared_memory"])
    local_memory = Decorator(GROUPS["local_memory"])
    memory = Decorator(GROUPS["memory"])
    barrier = Decorator(GROUPS["barrier"])
    block_enter = Decorator(GROUPS["block_enter"])
    block_exit = Decorator(GROUPS["block_exit"])
    call = Decorator(GROUPS["call"])

    def __getattr__(self, name: str) -> Decorator:
        from difflib import get_close_matches

        known = [*GROUPS, "on", "function"]
        close = get_close_matches(name, known, n=2) or known
        raise AttributeError(f"there is no @probe.{name}: use {' or '.join(close)}")

    def on(self, *kinds: str, per: Per = "lane") -> Callable[[Function], Declared]:
        """A probe of kinds by name: `@probe.on("global", "async_copy")`."""
        return Decorator(tuple(dict.fromkeys(kinds)))(per=per)

    def function(self, function: Function) -> Helper:
        """Declare a function of integers that probes may call; it returns an integer."""
        if not isinstance(function, FunctionType):
            raise TypeError("a probe function must be a plain function")
        return Helper(function)


probe = Probe()


@dataclass(frozen=True)
class Translated(Member):
    """A probe of a class, translated for its maps and options."""

    function: ProbeFunction

    # accessed objects may be tensors, and operators may launch the kernels
    needs = ("objects", "history", "tensors", "probes")
    uses = ("accesses",)

    def attach(self, tool: Owner) -> None:
        """Validate the options of a new instance. Raises ProbeError."""
        self.function.definitions(tool._options)


def probes_of(tool: Owner | type[Owner]) -> tuple[ProbeFunction, ...]:
    """Probes of a tool or of a class of tools."""
    members = tool._members.values()
    return tuple(each.function for each in members if isinstance(each, Translated))


def count_by_launch(tool: Owner) -> None:
    """Have devices count estimated maps by launch, for a run that probes only some launches."""
    for each in accumulators_of(tool).values():
        each.spec = replace(each.spec, sampled=each.spec.estimated)


def maps_of(tool: Owner) -> dict[str, MapSpec]:
    """Specifications of the maps of a tool, by name, for its options."""
    return {name: each.spec for name, each in accumulators_of(tool).items()}
