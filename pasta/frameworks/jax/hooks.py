"""Hooks in JAX. libpasta runs this file in the profiled program's Python, whatever its version and
environment, just before the program imports jax.

XLA itself tells libpasta what it runs (shim/frameworks/jax), so nothing of JAX is replaced here. It
uses the standard library and jaxlib only, and the syntax of Python 3.8. Nothing here may raise into
the program, print to its output, or change what it computes.

pasta.profile runs the file too, in programs that have imported jax already: with "block" in the
settings nothing happens before `prepare_block` is called.
"""

import ctypes
import json
import os


def _follow(on):
    """Follows operators, or not; returns the earlier state."""
    from jaxlib.version import __version__  # imports nothing else

    return ctypes.CDLL(None).pasta_jax_follow(on, __version__.encode())


def _set_allocator(name):
    """Selects XLA's allocator of device memory, which it reads when JAX first uses a device."""
    os.environ["XLA_PYTHON_CLIENT_ALLOCATOR"] = name


def prepare_block(jax, library):
    """Returns a function that follows JAX, to be called when a block has begun in the ring.

    That function returns one that ends it, and a description of unrecorded data. `library`: address
    of the function that returns libpasta's table, 0 if it was preloaded.
    """

    def begin():
        if library:  # XLA looks for a reader of its ranges once, when it starts
            return (lambda: None), "JAX (start the program with pasta-preload)"
        before = _follow(1)
        return (lambda: _follow(before)), ""

    return begin


_settings = json.loads(settings)
if not _settings.get("block"):
    if _settings["allocator"]:
        _set_allocator(_settings["allocator"])
    if _settings["operators"]:
        _follow(1)
