"""How a tool's class says what its probes are: `@probe.global_memory` and the like."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import FunctionType
from typing import Any, overload

from pasta.errors import ProbeError
from pasta.probes.kinds import GROUPS, KIND
from pasta.probes.language import Helper, Per, ProbeFunction, translate
from pasta.probes.maps import Map
from pasta.tool import Tool

Function = Callable[..., Any]


@dataclass(frozen=True)
class Declared:
    """A function decorated as a probe, in the class that has it."""

    function: FunctionType
    kinds: tuple[str, ...]
    per: Per


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
                raise TypeError("a probe is a plain function")
            where = (function.__code__.co_filename, function.__code__.co_firstlineno)
            if per not in ("lane", "warp"):
                raise ProbeError(*where, f"per = {per!r}", 'give "lane" or "warp"')
            for kind in self.kinds:
                if kind not in KIND:
                    known = f"the kinds are {', '.join(KIND)}"
                    raise ProbeError(*where, f"there is no kind of access {kind!r}", known)
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
        raise AttributeError(f"there is no @probe.{name}: give {' or '.join(close)}")

    def on(self, *kinds: str, per: Per = "lane") -> Callable[[Function], Declared]:
        """Kinds by name: `@probe.on("global", "async_copy")`."""
        return Decorator(tuple(dict.fromkeys(kinds)))(per=per)

    def function(self, function: Function) -> Helper:
        """A function that probes may call: integers in, an integer out."""
        if not isinstance(function, FunctionType):
            raise TypeError("a probe's function is a plain function")
        return Helper(function)


probe = Probe()


def maps_of(owner: type[Tool]) -> dict[str, Map[Any]]:
    """Maps of a tool's class and its bases, by name."""
    return _members(owner, Map)


def probes_of(owner: type[Tool], maps: Mapping[str, Map[Any]]) -> tuple[ProbeFunction, ...]:
    """Probes of a tool's class and its bases, translated. Raises ProbeError."""
    return tuple(
        translate(
            each.function,
            tool=owner.name,
            kinds=each.kinds,
            per=each.per,
            maps=maps,
            options=owner.options(),
        )
        for each in _members(owner, Declared).values()
    )


def _members(owner: type[Tool], sort: type[Any]) -> dict[str, Any]:
    """Attributes of a sort, as the class sees them: one that a subclass replaces is gone."""
    found: dict[str, Any] = {}
    for base in reversed(owner.__mro__):
        for name, value in vars(base).items():
            if isinstance(value, sort):
                found[name] = value
            else:
                found.pop(name, None)
    return found
