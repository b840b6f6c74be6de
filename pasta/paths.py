"""Paths of PASTA's files in a wheel, an editable install or a checkout."""

from __future__ import annotations

import os
import sys
import sysconfig
from pathlib import Path

from pasta import private
from pasta.errors import MissingDependency, RunError

PACKAGE = Path(__file__).resolve().parent
NATIVE = PACKAGE / "_native"
LIBPASTA = NATIVE / "libpasta.so"
LIBPASTA_MANAGED = NATIVE / "libpasta_managed.so"
DEMOS = NATIVE / "bin"


def presets() -> Path:
    """Directory of the built-in presets: pasta/toml in a wheel, toml/ beside it in a checkout."""
    in_wheel = PACKAGE / "toml"
    return in_wheel if in_wheel.is_dir() else PACKAGE.parent / "toml"


def installed(package: str) -> str:
    """Name of a package's metadata, which ends with its version; empty if it is not installed.

    importlib.metadata would import the parser of e-mails.
    """
    from importlib.util import find_spec  # the launcher needs it for probes only

    found = find_spec(package)
    if found is None or found.origin is None:
        return ""
    beside = Path(found.origin).parent.parent
    return " ".join(sorted(each.name for each in beside.glob(f"{package}-*.*-info")))


def cache(*parts: str, make: bool = False) -> Path:
    """Path in the user's cache of compiled code, in a directory that other users cannot write to.
    `make`: create the directory, independent of the umask. Raises RunError if other users can write
    to both candidates."""
    place = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    for name in ("pasta", f"pasta-{os.geteuid()}"):
        objection = private.objection_to_code(place / name)
        if not objection:
            if make:
                private.make_if_possible(place / name)
            return place.joinpath(name, *parts)
    raise RunError(
        f"compiled code cannot be stored in {place}: {objection}",
        remedy="set XDG_CACHE_HOME to a directory that you own",
    )


def module_path() -> list[str]:
    """The module search path without entries relative to the current directory."""
    return [path for path in sys.path if path and os.path.isabs(path)]


def built(library: Path) -> Path:
    """A library of PASTA. Raises MissingDependency if it was not built."""
    if not library.exists():
        raise MissingDependency(
            f"{library} was not built", remedy="pip install --force-reinstall pasta-profiler"
        )
    return library


def google_pasta() -> Path | None:
    """Metadata directory of google-pasta in this environment, whose package `pasta` conflicts; None
    without it."""
    for site in sys.path:
        if site.endswith("-packages"):
            for found in Path(site).glob("google_pasta-*.dist-info"):
                return found
    return None


def embedding_module() -> Path | None:
    """The cffi embedding module built for this Python, or None."""
    path = NATIVE / f"_embed{sysconfig.get_config_var('EXT_SUFFIX')}"
    return path if path.exists() else None


def libpython() -> Path | None:
    """The shared library of this Python, or None if only a static one exists.

    Searches the configured library directory, the base prefix (relocated builds, conda) and the
    multi-architecture directory (Debian). PASTA_LIBPYTHON overrides it; set but empty: None.
    """
    named = os.environ.get("PASTA_LIBPYTHON")
    if named is not None:
        return Path(named) if named else None
    version = f"{sys.version_info.major}.{sys.version_info.minor}{sys.abiflags}"
    names = [
        str(sysconfig.get_config_var("INSTSONAME") or ""),
        f"libpython{version}.so.1.0",
        f"libpython{version}.so",
    ]
    directories = [
        str(sysconfig.get_config_var("LIBDIR") or ""),
        os.path.join(sys.base_prefix, "lib"),
        os.path.join(
            str(sysconfig.get_config_var("LIBDIR") or ""),
            str(sysconfig.get_config_var("MULTIARCH") or ""),
        ),
    ]
    for directory in directories:
        for name in names:
            path = Path(directory, name)
            if directory and ".so" in name and path.is_file():
                return path
    return None
