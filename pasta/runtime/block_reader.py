"""The process that reads the blocks that a program profiles with pasta.profile.

The program starts it at its first block. It serves all blocks, so that slow imports happen once and
outside of the program. Requests and answers are lines of JSON on a socket:

    {"begin": {…}}       a `Request`: follow the ring from a position
    {"end": POSITION}    write the results of the events before it, and answer
                         {"directory": …} or {"problem": …}

It ends when the program closes the socket or ends.
"""

from __future__ import annotations

import argparse
import json
import select
import shutil
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pasta import private
from pasta.config import Config
from pasta.errors import PastaError, RunError
from pasta.processors.stops import Stops
from pasta.run.inventory import Inventory
from pasta.runtime.block import Request
from pasta.runtime.collector import Collector
from pasta.runtime.processes import ProcessIdentity
from pasta.runtime.ring import Ring
from pasta.runtime.session import Ended, Session

if TYPE_CHECKING:
    from pasta.processors.batch import Batch

_INTERVAL_SECONDS = 0.02
_IDLE_SECONDS = 1.0
#: Time for threads to finish records that they began before the end of the block.
_UNFINISHED_SECONDS = 2.0
_ENDING_SECONDS = 10.0
_ENDED = Ended("block")


class BlockCollector(Collector):
    """Follows a ring from the beginning of a block to its end."""

    def __init__(self, request: Request, known: Inventory | None) -> None:
        path = Path(request.ring)
        ring = Ring(path)
        session = Session.open(path.parent.parent)
        super().__init__(session, ring, Config(**request.config), Path(request.staging))
        self.request = request
        self.dropped_before = ring.dropped()
        self.position = request.position
        self.context.process = self.context.process._replace(
            start_time=request.time,
            start_realtime=ring.start_realtime + request.time - ring.start_time,
        )
        if known is not None:
            self.inventory.process = known.process
            self.inventory.sources.update(known.sources)
            self.inventory.devices.update(known.devices)
            self.inventory.link_bandwidth.update(known.link_bandwidth)
        for batch, _ in ring.batches(ring.released, request.position, final=True):
            self.inventory.learn(batch)
        self.inventory.stops = Stops()  # a block begins with profiling on
        ring.torn = 0
        self.pipeline = self._pipeline()

    def follow(self) -> None:
        """Processes the events published so far, while the block is active."""
        tail = self.ring.tail
        if not self.ring.ends:  # read after the tail, which is then within the block
            self._take(tail)

    def _take(self, end: int, *, final: bool = False) -> None:
        for batch, after in self.ring.batches(self.position, end, final=final):
            self._feed(self.pipeline, batch)
            self.position = after
            self._release()

    def _release(self) -> None:
        if not self.ring.move_reader(self.request.number, self.position):
            raise RunError("the block was abandoned")
        if self.request.alone:
            self.ring.set_processed(self.position)
            self.ring.release(self.position)

    def _feed(self, pipeline: Any, batch: Batch) -> None:
        self._process(pipeline, batch)

    def finish(self, end: int, ended: Ended = _ENDED) -> Path:
        """Writes the run of a block that ended at position `end`; its directory."""
        until = time.monotonic() + _UNFINISHED_SECONDS
        self._take(end)
        while self.position < end and time.monotonic() < until:
            time.sleep(_INTERVAL_SECONDS / 10)
            self._take(end)
        self._take(end, final=True)
        self._flush()
        run = self.write(self.pipeline, ended)
        if self.request.place is not None:
            suffix = f"{self.ring.pid}-{self.request.position}"
            run = run.move_to(Path(self.request.place), force=self.config.force, suffix=suffix)
        return run.path

    def close(self) -> None:
        """Releases the block's part of the ring and unmaps it."""
        self.ring.move_reader(self.request.number, None)
        self.ring.close()


class _Server:
    """Serves one program."""

    def __init__(self, answer: Callable[[dict[str, str]], None]) -> None:
        self.answer = answer
        self.block: BlockCollector | None = None
        self.known: Inventory | None = None
        self.problem = ""
        #: Staging directories to delete when the program has ended.
        self.temporary: list[Path] = []

    def serve(self, request: dict[str, Any]) -> None:
        if "begin" in request:
            self._guarded(lambda: self._begin(Request(**request["begin"])))
        else:
            directory = self._guarded(lambda: self._finish(request["end"]))
            result = {"problem": self.problem} if directory is None else {"directory": directory}
            self._close()
            try:
                self.answer(result)
            except OSError:  # the program was interrupted and has abandoned the block
                shutil.rmtree(self.temporary[-1], ignore_errors=True)
                raise

    def follow(self) -> None:
        if self.block is not None and not self.problem:
            self._guarded(self.block.follow)

    def _guarded(self, work: Callable[[], Any]) -> Any:
        """Result of `work`; None if it or an earlier step failed, with the error in `problem`."""
        if self.problem:
            return None
        try:
            return work()
        except PastaError as error:
            self.problem = str(error)
        except Exception as error:
            traceback.print_exc()
            self.problem = f"{type(error).__name__}: {error}"
        return None

    def _begin(self, request: Request) -> None:
        self.temporary = [each for each in self.temporary if each.exists()]
        self.temporary.append(Path(request.staging))
        self.block = BlockCollector(request, self.known)

    def _finish(self, end: int) -> str:
        if self.block is None:
            raise PastaError("no block was begun")
        return str(self.block.finish(end))

    def _close(self) -> None:
        if self.block is not None:
            self.known = self.block.inventory
            self.block.close()
        self.block, self.problem = None, ""

    def discard(self) -> None:
        """Deletes staging directories after the program has ended."""
        for directory in self.temporary:
            shutil.rmtree(directory, ignore_errors=True)


def _requests(
    source: socket.socket, program: ProcessIdentity, busy: Callable[[], bool]
) -> Iterator[dict[str, Any] | None]:
    """Requests as they arrive, and None after each timeout, until the program ends."""
    waiting = b""
    while True:
        patience = _INTERVAL_SECONDS if busy() else _IDLE_SECONDS
        if select.select([source], [], [], patience)[0]:
            piece = source.recv(1 << 16)
            if not piece:
                return
            *lines, waiting = (waiting + piece).split(b"\n")
            for line in lines:
                yield json.loads(line)
        elif not program.lives():  # its forked children may keep the socket open
            return
        else:
            yield None


def main() -> int:
    """Entry point of the reader process; the exit status."""
    parser = argparse.ArgumentParser(prog="pasta block reader")
    parser.add_argument("program", type=int, help="pid")
    parser.add_argument("socket", type=int, help="file descriptor")
    parser.add_argument("--session", type=Path, help="to be removed when the program has ended")
    arguments = parser.parse_args()
    private.set_umask()
    owned = None if arguments.session is None else Session.take(arguments.session)
    # A blocked SIGALRM would be inherited from the program, and time limits would never expire.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})
    connection = socket.socket(fileno=arguments.socket)

    def answer(result: dict[str, str]) -> None:
        connection.sendall(json.dumps(result).encode() + b"\n")

    server = _Server(answer)
    program = ProcessIdentity.of(arguments.program)
    try:
        for request in _requests(connection, program, lambda: server.block is not None):
            if request is None:
                server.follow()
            else:
                server.serve(request)
    except OSError as error:  # the program ended while it waited for the answer
        print(f"reader of blocks: {error}", file=sys.stderr)
    connection.close()
    if _ended(program):
        server.discard()
        if arguments.session is not None:
            (owned or Session(arguments.session, {})).remove()
    return 0


def _ended(program: ProcessIdentity) -> bool:
    """Waits for the end of the program; False if it only dropped this reader."""
    until = time.monotonic() + _ENDING_SECONDS
    while program.lives() and time.monotonic() < until:
        time.sleep(_INTERVAL_SECONDS)
    return not program.lives()


if __name__ == "__main__":
    sys.exit(main())
