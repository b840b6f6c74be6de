"""Where PASTA's own files are, in a wheel, an editable install or a checkout."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

from pasta import private
from pasta.errors import RunError

PACKAGE = Path(__file__).resolve().parent
NATIVE = PACKAGE / "_native"
LIBPASTA = NATIVE / "libpasta.so"
#: What rocprofiler-sdk loads into HIP programs; links to libpasta.so.
LIBPASTA_AMD = NATIVE / "libpasta_amd.so"
DEMOS = NATIVE / "bin"


def presets() -> Path:
    """Directory of the built-in presets: pasta/toml in a wheel, toml/ beside it in a checkout."""
    installed = PACKAGE / "toml"
    return installed if installed.is_dir() else PACKAGE.parent / "toml"


def cache(*parts: str, make: bool = False) -> Path:
    """Where the user's compiled code is kept: code is loaded from there, so it is a directory that
    nobody else can write to. `make`: for who may have any umask. Raises RunError where others are
    in both of its places."""
    place = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    for name in ("pasta", f"pasta-{os.geteuid()}"):
        objection = private.objection_to_code(place / name)
        if not objection:
            if make:
                private.make_if_possible(place / name)
            return place.joinpath(name, *parts)
    raise RunError(
        f"compiled code cannot be kept in {place}: {objection}",
        remedy="set XDG_CACHE_HOME to a directory of yours",
    )


def module_path() -> list[str]:
    """Where this Python finds modules, without what depends on the current directory."""
    return [path for path in sys.path if path and os.path.isabs(path)]


def of_nvidia(wheels: Sequence[str], toolkit: str, *, program: bool = False) -> Path | None:
    """A file of NVIDIA's wheels in this environment, or of a CUDA toolkit, in that order.

    `wheels` are patterns below the packages' common directory, the newest packages' first;
    `toolkit` is a path in a toolkit. A program must be executable, and may also be on PATH.
    """
    homes = (
        os.environ.get("CUDA_HOME"),
        os.environ.get("CUDA_PATH"),
        "/usr/local/cuda",
        "/opt/cuda",
    )
    candidates = [
        *(
            found
            for site in module_path()
            for pattern in wheels
            for found in sorted(Path(site, "nvidia").glob(pattern), reverse=True)
        ),
        *(Path(home, toolkit) for home in homes if home),
    ]
    for candidate in candidates:
        if candidate.is_file() and (not program or os.access(candidate, os.X_OK)):
            return candidate
    on_path = shutil.which(Path(toolkit).name) if program else None
    return Path(on_path) if on_path else None


def google_pasta() -> Path | None:
    """Metadata of google-pasta in this environment, whose package PASTA's then overwrites."""
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
    """The shared library of this Python, or None where only a static one exists.

    Looks where the interpreter was configured to put it, beside its base prefix (relocated
    builds, conda) and in the multi-architecture directory (Debian). PASTA_LIBPYTHON names another
    one; set but empty, none.
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
