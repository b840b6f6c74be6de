"""The consumer inside a target: a thread of libpasta runs `consume` in the embedded interpreter,
or in the target's own.

It feeds the tools while the program runs. When the program ends, it passes their state to a
collector process, which adds the last events and writes the results, so that nothing slow or
fallible delays the program's exit.
"""

from __future__ import annotations

import atexit
import os
import pickle
import sys
import traceback
from pathlib import Path

# NumPy and the tools are imported later, after registering with atexit: the host may end meanwhile.
from pasta import private
from pasta.runtime.ring import Ring
from pasta.runtime.session import Session, beside

#: Polling intervals of the ring. In a Python program each poll takes the interpreter lock.
_INTERVAL_MS = 50
_INTERVAL_IN_HOST_MS = 200


def consume(ring_path: str, owns_interpreter: bool) -> int:
    """Consumes a ring until its process ends; 1 if the state was saved, otherwise 0."""
    path = Path(ring_path)
    session = Session.open(path.parent.parent)
    try:
        session.check_tools()
        if owns_interpreter:
            # What tools print belongs in the log: stdout and stderr are the program's.
            log = private.create(session.directory / "log.txt", os.O_APPEND)
            sys.stdout = sys.stderr = open(log, "a", buffering=1)
        _consume(session, path, owns_interpreter)
        return 1
    # Also SystemExit: after any failure the program continues and a collector takes over.
    except BaseException:
        session.log("the embedded consumer stopped:\n" + traceback.format_exc())
        return 0


def _consume(session: Session, path: Path, owns_interpreter: bool) -> None:
    ring = Ring(path)
    ring.set_critical(True)
    if not owns_interpreter:
        # The host ends its interpreter before C exit handlers run.
        atexit.register(_finish_with_host, ring, session.config.exit_timeout)
    try:
        _consume_ring(session, ring, owns_interpreter)
    finally:
        ring.set_critical(False)
        ring.mark_finished()


def _consume_ring(session: Session, ring: Ring, owns_interpreter: bool) -> None:
    from pasta.processors.strings import Strings
    from pasta.runtime.assembly import make_context, make_pipeline
    from pasta.runtime.spill import Spill
    from pasta.runtime.staging import SPILL, staging_directory

    pipeline = make_pipeline(session.config, make_context(ring, Strings(ring.string)))
    ring.set_critical(False)
    if ring.finish:
        return  # the process ends already: the collector does all the work
    spill = Spill(ring, staging_directory(session, ring) / SPILL)
    interval = _INTERVAL_MS if owns_interpreter else _INTERVAL_IN_HOST_MS
    position, finishing = 0, False
    while not finishing:
        finishing = ring.wait_finish(interval)
        for batch, after in ring.batches(position):
            pipeline.feed(batch)
            position = after
            ring.set_processed(position)
            spill.make_room(position)
    failed_before = set(pipeline.failures)
    state = pipeline.state()
    lost = set(pipeline.failures) - failed_before
    if lost:  # a tool that cannot be pickled: the collector computes everything again
        session.log(f"state of {', '.join(sorted(lost))} cannot be handed over; replaying")
    else:
        content = pickle.dumps({"position": position, "pipeline": state})
        private.write_atomically(beside(ring.path, ".state"), content)


def _finish_with_host(ring: Ring, timeout_ms: int) -> None:
    ring.ask_finish()
    while not ring.wait_finished(timeout_ms) and ring.critical:
        pass
