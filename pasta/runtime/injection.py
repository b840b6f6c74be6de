"""The environment that loads libpasta into the target."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pasta import paths
from pasta.backends import BACKENDS
from pasta.frameworks import FRAMEWORKS
from pasta.frameworks.base import Wanted
from pasta.run.naming import RANK_VARIABLES, variables_of
from pasta.runtime.session import Session
from pasta.settings import native_window

if TYPE_CHECKING:
    from pasta.config import Config

#: Loads a library that receives annotations, as vendors' variables do for events; all of them find
#: libpasta already loaded by LD_PRELOAD.
_ANNOTATIONS = "NVTX_INJECTION64_PATH"
_SCHEMA = 1
#: Not a newline: programs read the output of `env` by lines.
_SEPARATOR = "\x1f"


def target_environment(
    session: Session, environment: Mapping[str, str], root: int, *, preload: bool = True
) -> dict[str, str]:
    """The environment of the target, whose first process has pid `root`.

    `preload`: preload the library. PASTA_INJECT=preload or =vendor restricts the mechanisms (for
    tests and unusual systems).
    """
    library = str(paths.built(paths.LIBPASTA))
    ways = environment.get("PASTA_INJECT", "both")
    target = dict(environment)
    if ways != "vendor" and preload:
        others = environment.get("LD_PRELOAD", "")
        own = [library]
        if session.uvm_plan.exists():
            own.append(str(paths.built(paths.LIBPASTA_MANAGED)))
        target["LD_PRELOAD"] = ":".join([*own, others] if others else own)
    if ways != "preload":
        target.setdefault(_ANNOTATIONS, library)
    config, prepared = session.config, session.document["backends"]
    chosen = config.backends()
    for backend in BACKENDS.known():
        wanted = backend in chosen and ways != "preload"
        for name in backend.injections:
            if wanted:
                target.setdefault(name, library)
            elif backend not in chosen and target.get(name) == library:
                del target[name]  # set by an enclosing pasta-preload
        if wanted:
            target = backend.environment(target, prepared.get(backend.name, {}), config)
        else:
            target = backend.withdrawn(target)
    target["PASTA_SHIM"] = shim_configuration(session, root)
    return target


def unprofiled_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment for a PASTA process that a profiled process starts."""
    own = {name: value for name, value in environment.items() if name != _ANNOTATIONS}
    for backend in BACKENDS.known():
        own = backend.withdrawn(own)
        for name in backend.injections:
            own.pop(name, None)
    libraries = (str(paths.LIBPASTA), str(paths.LIBPASTA_MANAGED))
    others = [each for each in own.pop("LD_PRELOAD", "").split(":") if each not in libraries]
    if any(others):
        own["LD_PRELOAD"] = ":".join(others)
    own["PASTA_SHIM"] = ""
    return own


def shim_configuration(session: Session, root: int, *, late: bool = False) -> str:
    """The configuration text for libpasta; `late`: the running process opens the library itself."""
    settings = {**_shim_settings(session, root), "late": int(late)}
    return _SEPARATOR.join(f"{key}={value}" for key, value in settings.items())


def _shim_settings(session: Session, root: int) -> dict[str, object]:
    config = session.config
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    selectors = (name for each in config.backends() for name in each.selectors)
    names = (*RANK_VARIABLES, *variables_of(config.out), *variables_of(config.root), *selectors)
    return {
        "schema": _SCHEMA,
        "session": session.directory,
        "root": root,
        "modules": _max_image_bytes(session),
        "quiet": int(session.document["verbosity"] < 0),
        "environment": ",".join(names),
        "python": sys.executable,
        "python_version": version,
        "python_path": ":".join(paths.module_path()),
        "libpython": paths.libpython() or "",
        "embed": paths.embedding_module() or "",
        "origin": paths.PACKAGE / "__init__.py",
        "probes": session.probes if session.probes.exists() else "",
        "uvm_plan": session.uvm_plan if session.uvm_plan.exists() else "",
        "probe_kinds": session.document.get("probe_kinds", ""),
        "probe_ordered": int(session.document.get("probe_ordered", 0)),
        "probe_values": int(session.document.get("probe_values", 0)),
        **{key: value for each in config.sections() for key, value in each.for_shim().items()},
        **_window_settings(config),
        **_probe_settings(session),
        **_backend_settings(session),
        **_framework_settings(session),
    }


def _max_image_bytes(session: Session) -> int:
    """Maximum bytes of module images that a process keeps."""
    if session.config.modules:
        return 2**64 - 1
    return int(session.document.get("code_memory", 0))


def _window_settings(config: Config) -> dict[str, object]:
    """The recording window, and the ranges that are steps."""
    if not config.window:
        return {}
    from pasta.runtime.probe_plan import step_settings

    steps = step_settings(config) if config.window.startswith("steps") else {}
    return {"window": native_window(config.window), **steps}


def _probe_settings(session: Session) -> dict[str, object]:
    config = session.config
    selects = any(each.selects_launches(config) for each in config.backends())
    if not session.probes.exists() and not selects:
        return {}
    from pasta.runtime.probe_plan import probe_settings

    document = session.document
    settings = probe_settings(
        config,
        traces=bool(document.get("probe_traces")),
        slowdown=float(document.get("probe_slowdown", 10)),
    )
    # call paths show how long launch calls take
    returns = bool(config.call_paths) or document.get("launch_returns", True)
    return {**settings, "probe_returns": int("probe_enough" not in settings or returns)}


def _backend_settings(session: Session) -> dict[str, object]:
    """Settings of backends, and the libraries that libpasta loads for them."""
    config, prepared = session.config, session.document["backends"]
    chosen = config.backends()
    found: dict[str, object] = {
        "libraries": ":".join(str(path) for each in chosen for path in each.libraries)
    }
    for backend in chosen:
        found |= backend.shim_settings(prepared.get(backend.name, {}), config)
    return found


def _framework_settings(session: Session) -> dict[str, object]:
    """Settings of framework hooks; empty unless a tool requires frameworks."""
    wanted, config = Wanted(**session.document["wanted"]), session.config
    followed = [
        each
        for each in FRAMEWORKS.known()
        if (wanted and each.is_followed(config)) or each.is_needed(config)
    ]
    found: dict[str, object] = {"frameworks": ",".join(each.name for each in followed)}
    if session.document.get("operators_pause") and any(each.pauses(config) for each in followed):
        found["probe_pause"] = 1
        found["tensors_put_off"] = int(bool(session.document.get("tensors_put_off")))
    for each in followed:
        settings = each.hook_settings(config, wanted)
        settings["quiet"] = session.document["verbosity"] < 0
        found |= {
            f"framework.{each.name}.import": each.module,
            f"framework.{each.name}.hooks": each.hooks,
            f"framework.{each.name}.settings": json.dumps(settings),
        }
    return found
