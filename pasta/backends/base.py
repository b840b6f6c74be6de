"""A backend: what Python knows of one vendor's accelerators, as one object.

A backend is a subclass of `Backend` in a folder of its own, exported there as `BACKEND`; every part
but its name is optional. Its event source is in C (shim/include/pasta_source.h), in libpasta or in
a library that `libraries` names. docs/new-backend.md walks through a whole one.

The methods are called in this order: `prepare` before the program starts, then `environment` and
`shim_settings` for each process that is started with libpasta, and `nothing_recorded` where no
event came of it. What `prepare` returns is passed to the others, through JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pasta.extensions import Extension
from pasta.settings import Sections

if TYPE_CHECKING:
    from pasta.probes.device import DeviceProbes

#: What `prepare` of a backend found, in JSON's types.
Prepared = Mapping[str, Any]


class Launch(NamedTuple):
    """A program that is about to start, as a backend sees it."""

    program: str  # path of the executable
    is_named: bool  # by --backend; else the program's libraries decide
    config: Sections
    say: Callable[[str], None]  # a line to the user
    log: Callable[[str], None]  # a line in the session's log

    def explain(self, text: str) -> None:
        """A line to the user who named the backend, else to the log."""
        (self.say if self.is_named else self.log)(text)


class Backend(Extension):
    """One vendor's accelerators. The defaults are those of a backend that has nothing special.

    `name` is that of `--backend NAME`, as `pasta_listens_to` of its source in C has it.
    """

    #: Shared libraries with a source that libpasta loads in the program.
    libraries: tuple[Path, ...] = ()
    #: Environment variables by which the vendor's runtime loads one library: libpasta is named.
    injections: tuple[str, ...] = ()
    #: What did not happen where `--backend NAME` recorded nothing; ends "… --backend NAME, and ".
    unused = "the program did not use it"

    def prepare(self, launch: Launch) -> Prepared:
        """Finds what is needed before the program starts. Raises PastaError.

        A backend that cannot be used says so by `launch.explain`; the program runs regardless.
        """
        return {}

    def environment(
        self, target: Mapping[str, str], prepared: Prepared, config: Sections
    ) -> dict[str, str]:
        """The program's environment, `injections` among it, with what the vendor's runtime needs
        to load PASTA."""
        return dict(target)

    def withdrawn(self, environment: Mapping[str, str]) -> dict[str, str]:
        """An environment without what `environment` adds."""
        return dict(environment)

    def shim_settings(self, prepared: Prepared, config: Sections) -> dict[str, object]:
        """Further keys that libpasta reads; those of `settings` are passed by themselves."""
        return {}

    def nothing_recorded(self, prepared: Prepared) -> str | None:
        """Why there are no events; None where `prepare` has said it."""
        return self.unused

    def counters(self) -> list[list[str]]:
        """Names of hardware counters of each device. Raises MissingDependency."""
        return []

    @property
    def probes(self) -> DeviceProbes | None:
        """How probes run on these devices; None: not at all, and nothing is known of accesses."""
        return None
