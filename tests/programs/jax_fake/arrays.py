"""Arrays in a pool: of a first module, read by three executions of another, donated and freed.

With the argument "broken" JAX lists no arrays.
"""

import signal
import sys
import threading

import jax
from accelerate import allocate, launch
from jax._src import xla_bridge
from jax._src.xla_bridge import Array, Traceback, client

INIT = jax.Range("XlaModule:#hlo_module=jit_init,program_id=1#")
STEP = jax.Range("XlaModule:#hlo_module=jit_step,program_id=2#")
DOT = jax.Range("Thunk:#name=dot_general,hlo_op=dot.1#")
MADE = Traceback(("/site-packages/jax/_src/pjit.py", "call", 1), ("/home/me/model.py", "init", 7))
POOL = allocate(1 << 20)


class Stopped(Exception):
    """Raised by a signal's handler."""


def interrupt(*_: object) -> None:
    raise Stopped


def in_other_thread() -> None:
    with STEP, DOT:
        launch(1, POOL + 8192)


if __name__ == "__main__":
    if "broken" in sys.argv:
        del xla_bridge._backends
    with INIT:
        w = Array(POOL, (16, 64), "float32", 4096, MADE)
        b = Array(POOL + 4096, (32,), "bfloat16", 64, None)
        empty = Array(0, (0,), "float32", 0, None)
    for _ in range(3):
        with STEP, DOT:
            launch(2, POOL)
            new = Array(POOL, (16, 64), "float32", 4096, MADE)  # w was donated
        w = new
    del b
    with STEP, DOT:
        c = Array(POOL + 4096, (16,), "float32", 64, MADE)
    thread = threading.Thread(target=in_other_thread)
    thread.start()
    thread.join()
    signal.signal(signal.SIGUSR1, interrupt)
    client.listed = lambda: signal.raise_signal(signal.SIGUSR1)
    try:
        with STEP:
            pass
        print("not interrupted")
    except Stopped:
        client.listed = lambda: None
    d = Array(POOL + 12288, (8, 8), "float32", 256, None)
    with STEP, DOT:
        launch(1, POOL + 12288)
    with STEP, DOT:
        launch(1, POOL + 12288)
    print("done", file=sys.stdout)
