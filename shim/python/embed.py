"""The cffi embedding module: C's way into the interpreter that consumes the ring, PASTA's own or,
by plain calls of its C API, the program's."""

from __future__ import annotations

from pathlib import Path

import cffi

#: What C may call. 0 means "off": cffi returns it when the interpreter cannot be used.
API = """
int pasta_embed_consume(const char *ring_path);
"""

#: Runs once in the interpreter, before the first call. Nothing may be printed: the target's
#: stderr is the target's.
INITIALISATION = """
from pasta._native._embed import ffi

@ffi.def_extern(error=0)
def pasta_embed_consume(ring_path):
    from pasta.runtime.embedded import consume
    return consume(ffi.string(ring_path).decode(), owns_interpreter=True)
"""

#: C code of the module: how the interpreter is started.
SOURCE = Path(__file__).with_name("interpreter.inc.c").read_text(encoding="utf-8")


def builder() -> cffi.FFI:
    ffi = cffi.FFI()
    ffi.embedding_api(API)
    ffi.set_source("pasta._native._embed", SOURCE)
    ffi.embedding_init_code(INITIALISATION)
    return ffi
