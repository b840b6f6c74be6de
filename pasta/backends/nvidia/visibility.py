"""Access kinds that probes see on NVIDIA GPUs, and the code of kernels."""

from __future__ import annotations

from collections.abc import Collection
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
    functions: dict[str, Function] = {}
    wanted = None if kernels is None else set(kernels)
    try:
        while wanted is None or wanted:
            found = sass.disassemble(cubin, wanted, cache=cache, timeout=timeout)
            functions |= {function.name: function for function in found}
            if wanted is None:
                break
            wanted = {name for function in found for name in function.calls} - functions.keys()
    except (PastaError, OSError) as error:
        return Code(None, str(error))
    return Code(functions)
