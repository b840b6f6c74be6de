"""How libpasta gets into the target: the environment it is started with."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from pasta import paths
from pasta.errors import MissingDependency
from pasta.run.naming import RANK_VARIABLES, variables_of
from pasta.runtime.session import Session

#: Vendors' own ways to load a tool when their runtime starts; all of them find libpasta, which
#: LD_PRELOAD has loaded already.
_INJECTIONS = ("CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH", "REFACC_INJECTION_PATH")
_SCHEMA = 1


def target_environment(
    session: Session, environment: Mapping[str, str], root: int
) -> dict[str, str]:
    """The environment of the target, whose first process has pid `root`.

    PASTA_INJECT=preload or =vendor restricts the ways in (for tests and odd systems).
    """
    if not paths.LIBPASTA.exists():
        raise MissingDependency(
            f"{paths.LIBPASTA} was not built", remedy="pip install --force-reinstall pasta-profiler"
        )
    library = str(paths.LIBPASTA)
    ways = environment.get("PASTA_INJECT", "both")
    target = dict(environment)
    if ways != "vendor":
        others = environment.get("LD_PRELOAD", "")
        target["LD_PRELOAD"] = f"{library}:{others}" if others else library
    if ways != "preload":
        for name in _INJECTIONS:
            target.setdefault(name, library)
    target["PASTA_SHIM"] = "\n".join(
        f"{key}={value}" for key, value in _shim_configuration(session, root).items()
    )
    return target


def _shim_configuration(session: Session, root: int) -> dict[str, object]:
    config = session.config
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    names = (*RANK_VARIABLES, *variables_of(config.out))
    return {
        "schema": _SCHEMA,
        "session": session.directory,
        "root": root,
        "children": int(config.children),
        "start": int(config.start),
        "modules": _room_for_modules(session),
        "ring_max": config.ring_max,
        "collector": int(config.collector),
        "quiet": int(session.document["verbosity"] < 0),
        "embed_delay_ms": config.embed_delay,
        "exit_timeout_ms": config.exit_timeout,
        "environment": ",".join(names),
        "python": sys.executable,
        "python_version": version,
        "python_path": ":".join(paths.module_path()),
        "libpython": paths.libpython() or "",
        "embed": paths.embedding_module() or "",
        "origin": paths.PACKAGE / "__init__.py",
        "sanitizer_lib": find_sanitizer() or "",
        "nvidia.empty": int(config.nvidia_empty),
        "probes": session.probes if session.probes.exists() else "",
        "probe_kinds": session.document.get("probe_kinds", ""),
        **_probe_settings(session),
        **_torch_settings(session),
    }


def _room_for_modules(session: Session) -> int:
    """Bytes of modules' images that a process may keep."""
    if session.config.modules:
        return 2**64 - 1
    return int(session.document.get("code_memory", 0))


def _probe_settings(session: Session) -> dict[str, object]:
    if not session.probes.exists():
        return {}
    from pasta.probes.windows import shim_settings

    return shim_settings(session.config)


def _torch_settings(session: Session) -> dict[str, object]:
    """What pasta/frameworks/torch/hooks.py is to follow; nothing where no tool asks."""
    wanted, config = session.document.get("torch", {}), session.config
    if not any(wanted.values()) or not config.torch_follow:
        return {}
    settings = {
        **wanted,
        "stacks": config.torch_stacks,
        "frames": config.torch_frames,
        "modules": config.torch_modules and wanted["operators"],
        "kineto": config.torch_kineto,
        "include": str(paths.NATIVE / "include"),
        "cache": str(paths.cache("torch")),
        "quiet": session.document["verbosity"] < 0,
    }
    hooks = paths.PACKAGE / "frameworks" / "torch" / "hooks.py"
    return {"torch_hooks": hooks, "torch_settings": json.dumps(settings)}


def own_python(module: str) -> list[str]:
    """Command that runs `main()` of a module in this Python and installation, whatever the
    environment and the current directory are; its arguments follow."""
    code = (
        "import json, sys; sys.path[:] = json.loads(sys.argv.pop(1)); "
        f"from {module} import main; sys.exit(main())"
    )
    return [sys.executable, "-I", "-u", "-c", code, json.dumps(paths.module_path())]


def find_sanitizer() -> Path | None:
    """libsanitizer-public.so: PASTA_SANITIZER_LIB, the wheel, or a CUDA toolkit, in that order."""
    named = os.environ.get("PASTA_SANITIZER_LIB")
    if named:
        return Path(named)
    library = "libsanitizer-public.so"
    # wheels of CUDA 13.4 and newer, of 13.0 to 13.3, and of 12
    wheels = ("cu[0-9]*/compute-sanitizer", "cu[0-9]*/lib", "cuda_sanitizer_api/lib")
    return paths.of_nvidia([f"{each}/{library}" for each in wheels], f"compute-sanitizer/{library}")
