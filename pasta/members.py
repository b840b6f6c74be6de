"""Declarations in tool classes by libraries, besides options and event handlers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Protocol


class Owner(Protocol):
    """Interface of tools for their members."""

    name: ClassVar[str]
    estimates: ClassVar[bool]
    _members: ClassVar[Mapping[str, Member]]
    _options: dict[str, Any]


class Member:
    """Base of attributes that extend a class of tools, such as the maps and probes of
    `pasta.probes`. A class inherits the members of its bases that it does not replace.
    """

    #: Needs that the member adds to its tool, as in `Tool.needs`.
    needs: ClassVar[tuple[str, ...]] = ()
    #: Additional capabilities that results depend on, as in `Tool.uses`.
    uses: ClassVar[tuple[str, ...]] = ()
    #: Method of the tool that it calls, if any.
    calls: ClassVar[str] = ""

    def of(self, owner: Any) -> Member:
        """The member for a completely defined class. Raises PastaError."""
        return self

    def attach(self, tool: Any) -> None:
        """Prepare a new instance, after its options are set. Raises PastaError."""


def members_of(owner: type) -> dict[str, Member]:
    """Members of a class by name, including members of its bases that it does not replace."""
    found: dict[str, Member] = {}
    for base in reversed(owner.__mro__):
        for name, value in vars(base).items():
            if isinstance(value, Member):
                found[name] = value
            else:
                found.pop(name, None)
    return found
