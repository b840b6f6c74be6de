"""Access kinds that probes see on NVIDIA GPUs, and the code of kernels."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from pathlib import Path

from pasta.backends.nvidia.signatures import ApiError, signatures
from pasta.errors import PastaError
from pasta.probes.coverage import Code, Visibility
from pasta.sass import disassembly as sass
from pasta.sass.disassembly import Function


def sanitizer(version: str) -> Visibility:
    """The kinds that NVIDIA's Sanitizer library reports in this version; none in an unknown one,
    with which no probe runs."""
    try:
        kinds = frozenset(kind for kind in sass.SPACES if signatures(kind, version))
    except ApiError:
        kinds = frozenset()
    return Visibility(f"the Sanitizer library {version}", kinds, has_code=True)


#: A module's image, and the kernels in it whose code is wanted; None: all.
Module = tuple[bytes | Path, Collection[str] | None]


def read_code(
    cubin: bytes | Path,
    kernels: Collection[str] | None = None,
    *,
    cache: Path | None = None,
    timeout: float = 600,
) -> Code:
    """The code of a module, or of `kernels` in it and their callees; otherwise the reason.

    `cache` and `timeout` as for sass.disassemble.
    """
    (code,) = read_together([(cubin, kernels)], cache=cache, timeout=timeout)
    return code


def read_together(
    modules: Sequence[Module], *, cache: Path | None = None, timeout: float = 600
) -> list[Code]:
    """The code of several modules, as `read_code`, in a fraction of the time; a module that cannot
    be read does not affect the others."""
    end = time.monotonic() + timeout
    functions: list[dict[str, Function]] = [{} for _ in modules]
    wanted = {
        at: kernels if kernels is None else set(kernels) for at, (_, kernels) in enumerate(modules)
    }
    try:
        while wanted:
            asked = [(modules[at][0], names) for at, names in wanted.items()]
            left = max(end - time.monotonic(), 0)
            found = sass.disassemble_together(asked, cache=cache, timeout=left)
            called: dict[int, set[str] | None] = {}
            for (at, names), new in zip(wanted.items(), found, strict=True):
                functions[at] |= {each.name: each for each in new}
                callees = {name for each in new for name in each.calls} - functions[at].keys()
                if callees and names is not None:
                    called[at] = callees
            wanted = called
    except (PastaError, OSError) as error:
        if len(modules) == 1:
            return [Code(None, str(error))]
        return [
            code
            for module in modules
            for code in read_together([module], cache=cache, timeout=max(end - time.monotonic(), 0))
        ]
    return [Code(each) for each in functions]
