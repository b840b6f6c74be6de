"""How libpasta gets into the target: the environment it is started with."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pasta import paths
from pasta.errors import MissingDependency
from pasta.run.naming import RANK_VARIABLES, variables_of
from pasta.runtime.rocm import REGISTERED, SAMPLING, with_tool
from pasta.runtime.session import Session

if TYPE_CHECKING:
    from pasta.config import Config
    from pasta.tool import Tool

#: Vendors' own ways to load a tool when their runtime starts, with the backend that each is for;
#: all of them find libpasta, which LD_PRELOAD has loaded already. AMD's is a list (rocm.TOOLS).
_INJECTIONS = {
    "CUDA_INJECTION64_PATH": "nvidia",
    "NVTX_INJECTION64_PATH": None,  # annotations: with any backend
    "REFACC_INJECTION_PATH": "refacc",
}
_SCHEMA = 1


def target_environment(
    session: Session, environment: Mapping[str, str], root: int, *, preload: bool = True
) -> dict[str, str]:
    """The environment of the target, whose first process has pid `root`.

    `preload`: the target starts with the library preloaded. PASTA_INJECT=preload or =vendor
    restricts the ways in (for tests and odd systems).
    """
    library = str(built(paths.LIBPASTA))
    ways = environment.get("PASTA_INJECT", "both")
    tool = session.document.get("amd_tool") if ways != "preload" else None
    target = with_tool(environment, tool and Path(tool))
    if tool:
        target.setdefault(REGISTERED, session.document["amd_sdk"])
    if tool and session.config.amd_pc_sampling:
        target.setdefault(SAMPLING, "1")
    if ways != "vendor" and preload:
        others = environment.get("LD_PRELOAD", "")
        target["LD_PRELOAD"] = f"{library}:{others}" if others else library
    for name, backend in _INJECTIONS.items():
        if backend is not None and not session.config.listens_to(backend):
            if target.get(name) == library:  # of a pasta-preload around this one
                del target[name]
        elif ways != "preload":
            target.setdefault(name, library)
    target["PASTA_SHIM"] = shim_configuration(session, root)
    return target


def built(library: Path) -> Path:
    """A library of PASTA's own. Raises MissingDependency where it is not there."""
    if not library.exists():
        raise MissingDependency(
            f"{library} was not built", remedy="pip install --force-reinstall pasta-profiler"
        )
    return library


def unprofiled_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment for a process of PASTA's own that a profiled one starts."""
    own = with_tool(environment, None)
    own = {name: value for name, value in own.items() if name not in _INJECTIONS}
    others = [each for each in own.pop("LD_PRELOAD", "").split(":") if each != str(paths.LIBPASTA)]
    if any(others):
        own["LD_PRELOAD"] = ":".join(others)
    own["PASTA_SHIM"] = ""
    return own


def shim_configuration(session: Session, root: int, *, late: bool = False) -> str:
    """What libpasta reads; `late`: the process opens it itself, once it runs."""
    settings = {**_shim_settings(session, root), "late": int(late)}
    return "\n".join(f"{key}={value}" for key, value in settings.items())


def _shim_settings(session: Session, root: int) -> dict[str, object]:
    config = session.config
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    names = (*RANK_VARIABLES, *variables_of(config.out), *variables_of(config.root))
    return {
        "schema": _SCHEMA,
        "session": session.directory,
        "root": root,
        "children": int(config.children),
        "backend": config.backend,
        "start": int(config.start),
        "duration_ms": config.duration,
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
        "amd.counters": config.amd_counters,
        "amd.pc_sampling": config.amd_pc_sampling,
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


#: What follows PyTorch in the program.
TORCH_HOOKS = paths.PACKAGE / "frameworks" / "torch" / "hooks.py"


def _torch_settings(session: Session) -> dict[str, object]:
    """What TORCH_HOOKS is to follow; nothing where no tool asks."""
    wanted, config = session.document.get("torch", {}), session.config
    if not any(wanted.values()) or not config.torch_follow:
        return {}
    settings = {**torch_settings(config, wanted), "quiet": session.document["verbosity"] < 0}
    return {"torch_hooks": TORCH_HOOKS, "torch_settings": json.dumps(settings)}


def torch_settings(config: Config, wanted: Mapping[str, bool]) -> dict[str, object]:
    """Settings of TORCH_HOOKS, for what `asked_of_torch` says is wanted."""
    return {
        **wanted,
        "stacks": config.torch_stacks,
        "frames": config.torch_frames,
        "modules": config.torch_modules and wanted["operators"],
        "kineto": config.torch_kineto,
        "include": str(paths.NATIVE / "include"),
        "cache": str(paths.cache("torch", make=True)),
    }


def asked_of_torch(tools: Iterable[Tool]) -> dict[str, bool]:
    """What of PyTorch some tool wants to be told."""
    tools = list(tools)
    tensors = any(tool.asks_for_tensors for tool in tools)
    operators = tensors or any(
        tool.needs_operators or "on_operators" in tool.handlers() for tool in tools
    )
    allocations = any(tool.needs_allocations or "on_tensors" in tool.handlers() for tool in tools)
    return {"operators": operators, "tensors": tensors, "allocations": allocations}


#: Takes PASTA from its own place and all else from where an isolated Python finds it, so that
#: nothing on the program's path shadows a module. An installation that is held together by
#: PYTHONPATH, as by environment modules on clusters, needs this process's path, in its order.
_ISOLATED = """
import json, sys
from importlib.util import find_spec
own, others = json.loads(sys.argv.pop(1))
sys.path.insert(0, own)
import pasta
del sys.path[0]
if not all(map(find_spec, ("numpy", "pyarrow", "cffi"))):
    sys.path[:] = others
sys.path += [path for path in (own, *others) if path not in sys.path]
"""


def own_python(module: str) -> list[str]:
    """Command that runs `main()` of a module in this Python and installation, whatever the
    environment and the current directory are; its arguments follow."""
    code = f"{_ISOLATED}from {module} import main; sys.exit(main())"
    path = json.dumps([str(paths.PACKAGE.parent), paths.module_path()])
    return [sys.executable, "-I", "-u", "-c", code, path]


def own_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """For Python processes of PASTA's own: without what is meant for the program's Python."""
    return {name: value for name, value in environment.items() if not name.startswith("PYTHON")}


def find_sanitizer() -> Path | None:
    """libsanitizer-public.so: PASTA_SANITIZER_LIB, the wheel, or a CUDA toolkit, in that order."""
    named = os.environ.get("PASTA_SANITIZER_LIB")
    if named:
        return Path(named)
    library = "libsanitizer-public.so"
    # wheels of CUDA 13.4 and newer, of 13.0 to 13.3, and of 12
    wheels = ("cu[0-9]*/compute-sanitizer", "cu[0-9]*/lib", "cuda_sanitizer_api/lib")
    return paths.of_nvidia([f"{each}/{library}" for each in wheels], f"compute-sanitizer/{library}")
