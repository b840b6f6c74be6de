"""Base class and registry of backends and frameworks.

Reading entry points takes longer than the rest of the launcher's start; it happens only for names
that are not built in, and for lists.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from pasta.capabilities import Source
from pasta.errors import PastaError
from pasta.settings import Section

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

#: States of checks: usable, usable without something, not usable.
GOOD, NOTE, BAD = "ok", "note", "missing"


class Check(NamedTuple):
    """Outcome of one check of `pasta doctor`."""

    name: str
    state: str  # GOOD, NOTE or BAD
    found: str
    remedy: str = ""


def built_check(name: str, path: Path | None) -> Check:
    """Check that a native part of PASTA was built."""
    if path and path.exists():
        return Check(name, GOOD, str(path))
    return Check(name, BAD, "not built", "pip install --force-reinstall pasta-profiler")


class Extension:
    """A backend or a framework; all but its names is optional."""

    name: str
    title: str
    #: Sources of events, by the names in process_start.
    sources: tuple[Source, ...] = ()
    #: Settings, declared in a subclass of `Section`.
    settings: type[Section] = Section

    def checks(self) -> Iterator[Check]:
        """Checks for `pasta doctor`."""
        yield from ()


def entry_points(group: str) -> Sequence[EntryPoint]:
    """Entry points of installed packages."""
    from importlib import metadata  # half of the launcher's time, rarely needed

    return tuple(metadata.entry_points(group=group))


T = TypeVar("T", bound=Extension)


class Registry(Generic[T]):
    """The backends or the frameworks, by name.

    `modules`: modules of the built-in objects, in order, which have the object as `attribute`.
    `group`: entry points of packages, with the names of their objects; None: no packages.
    """

    def __init__(self, modules: Sequence[str], attribute: str, group: str | None = None) -> None:
        self._group, self._modules, self._attribute = group, modules, attribute
        self._found: dict[str, T] = {}
        #: Errors of package objects that cannot be loaded, by name.
        self.failures: dict[str, str] = {}
        self._asked = False

    def built_in(self) -> list[T]:
        """The built-in objects."""
        return self.known()[: len(self._modules)]

    def known(self) -> list[T]:
        """The built-in objects, and those of packages if already loaded."""
        if not self._found:
            for module in self._modules:
                found: T = getattr(import_module(module), self._attribute)
                self._found[found.name] = found
        return list(self._found.values())

    def installed(self) -> list[T]:
        """All objects, including those of packages; errors of loading are in `failures`."""
        self.known()
        if self._group and not self._asked:
            self._asked = True
            for point in entry_points(self._group):
                try:
                    self._found.setdefault(point.name, point.load())
                except Exception as error:
                    why = f"{point.value} cannot be loaded: {type(error).__name__}: {error}"
                    self.failures[point.name] = why
        return list(self._found.values())

    def first(self, accepts: Callable[[T], bool]) -> T | None:
        """The first object that `accepts`, searched in packages last; None without one."""
        return next(filter(accepts, self._lazily()), None)

    def find(self, name: str) -> T | None:
        """The object of a name, or None. Raises PastaError if that of a package cannot be
        loaded."""
        found = self.first(lambda each: each.name == name)
        if found is None and name in self.failures:
            raise PastaError(
                f"{name}: {self.failures[name]}", remedy="repair the package, or uninstall it"
            )
        return found

    def _lazily(self) -> Iterator[T]:
        known = self.known()
        yield from known
        yield from (each for each in self.installed() if each not in known)
