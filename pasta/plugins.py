"""Finds tools: built in, in `--tool-path` directories, in files, or in installed packages.

A name is searched in the tool paths first (so that a user's tool can replace a built-in one), then
among the built-in tools, then in the entry points of the group `pasta.tools`. In a directory the
tool NAME is in NAME.py, otherwise a class of that tool name in any file there.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import pasta.tools
from pasta import private
from pasta.contained import contained
from pasta.errors import ProbeError, ToolError, shown
from pasta.extensions import entry_points
from pasta.tool import Option, Tool

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "pasta.tools"


class Listed(NamedTuple):
    """A tool as shown by `pasta tools`; `error`: why it cannot be loaded."""

    name: str
    source: str  # "built-in", a path, or "package NAME"
    summary: str = ""
    options: Mapping[str, Option[Any]] = MappingProxyType({})
    error: str = ""


def load_tools(
    specs: Sequence[str],
    options: Mapping[str, Mapping[str, object]] | None = None,
    paths: Sequence[str | os.PathLike[str]] = (),
    origins: Mapping[str, object] = MappingProxyType({}),
    *,
    sampled: bool = False,
) -> list[Tool]:
    """Instances of the tools with their options, in the given order, without duplicates.

    `options` are by tool name; `origins` are the places where a tool ("NAME") or an option
    ("NAME.OPTION") was given; `sampled`: probes run in some launches only.

    Raises ToolError for an unknown tool, a file that cannot be loaded,
    wrong options, and options of a tool that does not exist.
    """
    classes: dict[str, type[Tool]] = {}
    for spec in specs:
        with _given_in(origins.get(spec)):
            _add(classes, spec, paths)
    options = options or {}
    for name, values in options.items():
        for key, value in values.items() or [("", None)]:
            origin = origins.get(f"{name}.{key}")
            with _given_in(origin):
                if name not in classes:
                    _check_exists(name, key, classes, paths)
                elif key:  # origins in files are not strings
                    in_file = origin is not None and not isinstance(origin, str)
                    classes[name].accept(key, value, typed=in_file)
    return [_made(found, options.get(name), sampled) for name, found in classes.items()]


def load_usable_tools(
    specs: Sequence[str],
    options: Mapping[str, Mapping[str, object]] | None = None,
    paths: Sequence[str | os.PathLike[str]] = (),
    *,
    sampled: bool = False,
) -> tuple[list[Tool], dict[str, BaseException]]:
    """`load_tools` for a run that has begun: also the errors of tools that cannot be loaded, by
    name. A tool without a class has the name of its file."""
    classes: dict[str, type[Tool]] = {}
    tools: list[Tool] = []
    failed: dict[str, BaseException] = {}
    for spec in specs:
        try:
            _add(classes, spec, paths)
        except Exception as error:
            file = spec.partition(":")[0]
            failed[Path(file).stem if file.endswith(".py") else spec] = error
    for name, found in classes.items():
        try:
            tools.append(_made(found, (options or {}).get(name), sampled))
        except Exception as error:
            failed[name] = error
    return tools, failed


def _add(
    classes: dict[str, type[Tool]], spec: str, paths: Sequence[str | os.PathLike[str]]
) -> None:
    for found in find_tools(spec, paths):
        other = classes.setdefault(found.name, found)
        if other is not found:
            raise ToolError(
                f"two tools are named {found.name}: {_file_of(other)} and {_file_of(found)}",
                remedy="remove one of them, or give it another `name`",
            )


@contextmanager
def _given_in(origin: object | None) -> Iterator[None]:
    """Adds the origin of a tool or option to ToolErrors."""
    try:
        yield
    except ProbeError:
        raise  # has its place
    except ToolError as error:
        if origin is None:
            raise
        raise ToolError(f"{origin}: {error.message}", remedy=error.remedy) from error


def _made(found: type[Tool], options: Mapping[str, object] | None, sampled: bool) -> Tool:
    try:
        with contained(loading=True):
            made = found(options)
            _evaluate(made)
        if sampled and "probes" in made.needed():
            from pasta.probes.declare import count_by_launch

            count_by_launch(made)
        return made
    except ToolError:
        raise
    except (Exception, SystemExit) as error:
        path = _file_of(found)
        where = f"{path}{_line_in(error, Path(path))}"
        raise ToolError(
            f"tool {found.name} cannot be created: {where}: {_one_line(error)}"
        ) from error


def _evaluate(tool: Tool) -> None:
    """Evaluates all that a run reads from a tool before it begins, for its exceptions."""
    kind = type(tool)
    kind.wants(), kind.kinds(), kind.summary_line()
    _ = tool.needs_compiled, tool.asks_for_tensors


def find_tools(spec: str, paths: Sequence[str | os.PathLike[str]] = ()) -> list[type[Tool]]:
    """Classes for a tool's name, FILE.py (all in it) or FILE.py:CLASS. Raises ToolError."""
    file, _, class_name = spec.partition(":")
    if file.endswith(".py") or os.sep in file:
        return _classes_of_file(Path(file), class_name)
    for directory in map(Path, paths):
        found = _in_directory(directory, spec)
        if found:
            return [found]
    found = _built_in(spec) or _entry_point(spec)
    if found is None:
        raise _unknown(spec, tool_names(paths))
    return [found]


def list_tools(paths: Sequence[str | os.PathLike[str]] = ()) -> list[Listed]:
    """All tools that can be found by name, with their summaries and options."""
    found: dict[str, Listed] = {}
    for directory in map(Path, paths):
        for path in _tool_files(directory):
            for listed in _listed(
                lambda path=path: _classes_of_file(path, ""), path.stem, str(path)
            ):
                found.setdefault(listed.name, listed)
    for name in built_in_names():
        for listed in _listed(lambda name=name: [_built_in(name)], name, "built-in"):
            found.setdefault(listed.name, listed)
    for point in entry_points(GROUP):
        source = f"package {point.dist.name}" if point.dist else "package"
        for listed in _listed(lambda point=point: [_loaded(point)], point.name, source):
            found.setdefault(listed.name, listed)
    return sorted(found.values(), key=lambda listed: listed.name)


def _listed(load: Any, name: str, source: str) -> Iterator[Listed]:
    try:
        for found in load():
            yield Listed(found.name, source, found.summary_line(), found.options())
    except ToolError as error:
        yield Listed(name, source, error=str(error))


def built_in_names() -> list[str]:
    """Names of the built-in tools, from their files, without imports."""
    directories = map(Path, pasta.tools.__path__)
    return sorted({path.stem for each in directories for path in _tool_files(each)})


def tool_names(paths: Sequence[str | os.PathLike[str]] = ()) -> list[str]:
    """Names of all tools: built in, in the directories `paths`, and of installed packages."""
    names = set(built_in_names())
    names.update(path.stem for each in paths for path in _tool_files(Path(each)))
    names.update(point.name for point in entry_points(GROUP))
    return sorted(names)


def _tool_files(directory: Path) -> list[Path]:
    if not os.path.isdir(directory):
        return []
    return sorted(
        path for path in directory.glob("*.py") if not path.stem.startswith(("_", "test_"))
    )


def _built_in(name: str) -> type[Tool] | None:
    if name not in built_in_names():
        return None
    module = importlib.import_module(f"pasta.tools.{name}")
    for found in _classes(module):
        if found.name == name:
            return found
    raise ToolError(f"{module.__file__} defines no tool {name}")


def _in_directory(directory: Path, name: str) -> type[Tool] | None:
    if not os.path.isdir(directory):
        where = shown(str(directory), 200)[1:-1]
        raise ToolError(f"tool path {where} is not a directory", remedy="correct --tool-path")
    files = _tool_files(directory)
    files.sort(key=lambda path: path.stem != name)  # NAME.py first, often the only one read
    owners = frozenset([directory.stat().st_uid])
    for path in files:
        objection = private.writers_objection(path, owners)
        if objection and path.stem != name:
            continue
        if objection:
            raise ToolError(
                f"tool {name} is not loaded: {objection}", remedy=f"-t {path} if you trust it"
            )
        if path.stem == name:
            classes = _classes_of_file(path, "")
        else:
            try:
                classes = _classes_of_file(path, "")
            except ToolError:
                continue  # reported when that tool is requested
        for found in classes:
            if found.name == name:
                return found
    return None


def _entry_point(name: str) -> type[Tool] | None:
    for point in entry_points(GROUP):
        if point.name == name:
            return _loaded(point)
    return None


def _loaded(point: EntryPoint) -> type[Tool]:
    try:
        found = point.load()
    except Exception as error:
        raise ToolError(
            f"tool {point.name} ({point.value}) cannot be loaded: {_one_line(error)}",
            remedy="repair or remove the package that provides it",
        ) from error
    if not (isinstance(found, type) and issubclass(found, Tool)):
        raise ToolError(f"tool {point.name} ({point.value}) is not a pasta.tool.Tool")
    return found


def _classes_of_file(path: Path, class_name: str) -> list[type[Tool]]:
    if not os.path.isfile(path):
        what = "is a directory" if os.path.isdir(path) else "does not exist"
        raise ToolError(f"tool file {shown(str(path), 200)[1:-1]} {what}", remedy="name a .py file")
    if path.suffix != ".py":
        raise ToolError(f"tool file {path} is not a Python file", remedy="name a .py file")
    classes = _classes(_module_of(path))
    if not classes:
        raise ToolError(
            f"{path} defines no tool", remedy="define a class that derives from pasta.tool.Tool"
        )
    if not class_name:
        return classes
    for found in classes:
        if class_name in (found.__name__, found.name):
            return [found]
    raise _unknown(class_name, [found.__name__ for found in classes], where=f"{path} has")


def _module_of(path: Path) -> ModuleType:
    """The file as a module, whose name depends on its path, so that pickles find their classes."""
    real = path.resolve()
    name = f"pasta_tool_{real.stem}_{zlib.crc32(os.fsencode(real)):08x}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, real)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        with contained(loading=True):
            spec.loader.exec_module(module)
    except ProbeError:
        del sys.modules[name]
        raise  # has its place
    except ToolError as error:
        del sys.modules[name]
        message = f"{path}{_line_in(error, real)}: {error.message}"
        raise ToolError(message, remedy=error.remedy) from error
    except KeyboardInterrupt:
        raise
    # A tool file that calls sys.exit() must not end the launcher.
    except BaseException as error:
        del sys.modules[name]
        raise ToolError(f"{path}{_line_in(error, real)}: {_one_line(error)}") from error
    return module


def _line_in(error: BaseException, path: Path) -> str:
    """`:LINE` of the error in the file at `path`; empty if unknown."""
    if isinstance(error, SyntaxError) and error.filename == str(path) and error.lineno:
        return f":{error.lineno}"
    import traceback

    lines = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename == str(path)
    ]
    return f":{lines[-1]}" if lines else ""


def _one_line(error: BaseException) -> str:
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    text = text.strip().partition("\n")[0]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _classes(module: ModuleType) -> list[type[Tool]]:
    """Tools that a module defines, without imported ones, in order of definition."""
    return [
        value
        for value in vars(module).values()
        if isinstance(value, type)
        and issubclass(value, Tool)
        and value.__module__ == module.__name__
        and not value.__name__.startswith("_")
    ]


def _file_of(found: type[Tool]) -> str:
    return str(getattr(sys.modules.get(found.__module__), "__file__", found.__module__))


def _check_exists(
    name: str, key: str, chosen: Iterable[str], paths: Sequence[str | os.PathLike[str]]
) -> None:
    """Raises ToolError for options of an unknown tool; a tool that does not run may have some."""
    known = sorted({*chosen, *tool_names(paths)})
    if name in known:
        return
    from pasta.config import suggest_key

    setting = suggest_key(f"{name}.{key}")
    if setting.startswith("did"):
        raise ToolError(f"unknown key {shown(f'{name}.{key}')}", remedy=setting)
    raise _unknown(name, known)


def _unknown(name: str, known: Sequence[str], where: str = "there are") -> ToolError:
    from difflib import get_close_matches

    close = get_close_matches(name[:100], known, 3)
    hint = f"did you mean {' or '.join(close)}? " if close else ""
    if name.isidentifier() and os.path.isfile(f"{name}.py"):
        hint = f"the file here is ./{name}.py; "
    return ToolError(f"there is no tool {shown(name)}", remedy=f"{hint}{where} {', '.join(known)}")
