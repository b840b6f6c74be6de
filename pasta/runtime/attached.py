"""The program's side of `pasta attach`: runs on a thread of its own in a program that was started
without PASTA, whatever its Python and environment.

It uses the standard library only, and the syntax of Python 3.8. Nothing here may raise into the
program, print to its output, or change what it does. It must not import `threading`, which takes
the first thread that imports it for the main thread.

Requests are lines of JSON on a Unix socket, each answered by a line:

    {"open": {…}}       {"preloaded", "modules", "program", "ring"}: opens libpasta, if the program
                        has not; without a configuration for it there is no "ring" then
    {"prepare": [{…}]}  {}: prepares the hooks of frameworks that the program has imported
    {"begin": {}}       {"number", "position", "time", "missed"}: begins the block
    {"end": {}}         {"position": …}: ends it

or by {"problem": TEXT}. Lines {"say": TEXT} may come before an answer, and {"exit": POSITION} at
any time: the program ends. The thread ends when the socket is closed, and ends the block then.
"""

from __future__ import annotations

import _thread
import atexit
import ctypes
import importlib.util
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

#: Longest wait for the main thread to end the hooks of frameworks; it may be in a call of C.
_END_SECONDS = 2.0
_FULL_SECONDS = 0.01


class Refused(Exception):
    """A request cannot be fulfilled; the message is one line for the user."""


# ---- calls on the main thread ----------------------------------------------------------------


class _Call:
    """A function that the main thread calls between two instructions of its Python code.

    CPython calls `PyObject_IsTrue(this)` there. An exception of a signal handler of the program,
    such as KeyboardInterrupt, is thereby raised in the program, as without PASTA.
    """

    def __init__(self, function: Callable[[], Any]) -> None:
        self.function = function
        self.result: Any = None
        self.error: Exception | None = None
        self.done = _thread.allocate_lock()
        self.done.acquire()

    def __bool__(self) -> bool:
        try:
            self.result = self.function()
        except Exception as error:
            self.error = error
            if _is_of_handler(error):
                raise
        except BaseException as error:
            self.error = Refused(f"it was interrupted ({type(error).__name__})")
            raise
        finally:
            self.done.release()
            _calls.discard(self)
        return False


#: Pending calls of the main thread: CPython keeps no reference to them.
_calls: set[_Call] = set()


def _is_of_handler(error: Exception) -> bool:
    """Whether an exception was raised by one of the program's signal handlers."""
    handlers = [signal.getsignal(number) for number in signal.valid_signals()]
    codes = {getattr(getattr(each, "__func__", each), "__code__", None) for each in handlers}
    frames, left = set(), error.__traceback__
    while left is not None:
        frames.add(left.tb_frame.f_code)
        left = left.tb_next
    return bool(frames & codes)


def _on_main_thread(function: Callable[[], Any], seconds: float = -1) -> Any:
    """Result of a function called by the main thread; TimeoutError if that takes longer."""
    call = _Call(function)
    _calls.add(call)
    schedule = ctypes.pythonapi.Py_AddPendingCall
    schedule.argtypes, schedule.restype = [ctypes.c_void_p, ctypes.py_object], ctypes.c_int
    while schedule(ctypes.cast(ctypes.pythonapi.PyObject_IsTrue, ctypes.c_void_p), call):
        time.sleep(_FULL_SECONDS)
    if not call.done.acquire(True, seconds):
        raise TimeoutError
    if call.error is not None:
        raise call.error
    return call.result


# ---- libpasta --------------------------------------------------------------------------------


def _loaded_library() -> str:
    """Path of the libpasta that this process has loaded; "" if none."""
    with open("/proc/self/maps", "rb") as maps:
        for line in maps:
            path = os.fsdecode(line.rstrip(b"\n").partition(b"/")[2])
            if os.path.basename(path) == "libpasta.so":
                return "/" + path
    return ""


class Library:
    """The functions of libpasta for blocks."""

    def __init__(self, process: ctypes.PyDLL) -> None:
        def function(name: str, result: Any, *arguments: Any) -> Any:
            found = getattr(process, "pasta_block_" + name)
            found.restype, found.argtypes = result, arguments
            return found

        self.process = process
        self.ring = function("ring", ctypes.c_char_p)
        self.is_read = function("is_read", ctypes.c_int)
        self.begin = function(
            "begin",
            ctypes.c_uint64, ctypes.POINTER(ctypes.c_int), ctypes.POINTER(ctypes.c_uint32),
        )  # fmt: skip
        self.end = function("end", ctypes.c_uint64, ctypes.c_int)
        self.forget = function("forget", None)

    @property
    def framework(self) -> int:
        """Address of the function that returns the function table of framework hooks."""
        return ctypes.cast(self.process.pasta_framework_api, ctypes.c_void_p).value or 0


def opened(path: str, configuration: str) -> Library:
    """Opens libpasta with local symbols, so that it interposes no function of the program. Raises
    OSError."""
    before = os.environ.get("PASTA_SHIM")
    os.environ["PASTA_SHIM"] = configuration
    try:
        return Library(ctypes.PyDLL(path))
    finally:  # the library has read it
        if before is None:
            del os.environ["PASTA_SHIM"]
        else:
            os.environ["PASTA_SHIM"] = before


# ---- the block -------------------------------------------------------------------------------


class _Attached:
    """One `pasta attach`, from its connection to its end."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.process = os.getpid()
        self.preloaded = False
        self.begins: list[Callable[[], Any]] = []
        self.undo: list[Callable[[], Any]] = []
        self.position = 0

    def open(self, request: dict[str, Any]) -> dict[str, Any]:
        """Finds libpasta, or opens it if the request has a configuration for it."""
        loaded = _loaded_library()
        self.preloaded = hasattr(ctypes.PyDLL(None), "pasta_block_ring")
        modules = [name for name in request["modules"] if name in sys.modules]
        for name in modules:
            if getattr(getattr(sys.modules[name], "__spec__", None), "_initializing", False):
                raise Refused(f"it is importing {name}: attach again when it has")
        program = (getattr(sys, "argv", None) or [""])[0] or "python"
        about = {"preloaded": self.preloaded, "modules": modules, "program": program}
        if not loaded and not request["configuration"]:
            return about
        try:
            if loaded:
                self.library = Library(ctypes.PyDLL(loaded))
            else:
                self.library = opened(request["library"], request["configuration"])
        except OSError as error:
            raise Refused(f"its C library cannot load libpasta ({error})") from None
        except AttributeError:
            raise Refused(f"it has loaded another version of PASTA ({loaded})") from None
        if self.library.is_read():
            raise Refused("it is profiling a block itself, or another pasta attach is profiling it")
        ring = self.library.ring()
        if ring is None:
            raise Refused(
                "it is not profiled: pasta-preload does not follow it, or has printed why"
            )
        return dict(about, ring=os.fsdecode(ring))

    def prepare(self, request: list[dict[str, Any]]) -> dict[str, Any]:
        """Prepares the hooks of frameworks, which may compile them."""
        library = 0 if self.preloaded else self.library.framework
        for each in request:
            spec = importlib.util.spec_from_file_location("_pasta_hooks", each["hooks"])
            assert spec is not None and spec.loader is not None
            hooks: Any = importlib.util.module_from_spec(spec)
            hooks.settings = each["settings"]
            written, sys.dont_write_bytecode = sys.dont_write_bytecode, True
            try:
                spec.loader.exec_module(hooks)
            finally:
                sys.dont_write_bytecode = written
            hooks._say = lambda text: self.send({"say": text})
            try:
                self.begins.append(hooks.prepare_block(sys.modules[each["module"]], library))
            except (RuntimeError, ImportError, OSError) as error:
                raise Refused(f"{each['name']} cannot be followed: {error}") from None
        return {}

    def begin(self, _request: dict[str, Any]) -> dict[str, Any]:
        """Begins the block on the main thread, to which some hooks are restricted."""
        return dict(_on_main_thread(self._begin))

    def _begin(self) -> dict[str, Any]:
        if self.library.is_read():
            raise Refused("it has just begun to profile a block itself")
        was_on, number = ctypes.c_int(), ctypes.c_uint32()
        position = self.library.begin(ctypes.byref(was_on), ctypes.byref(number))
        begun = time.monotonic_ns()
        self.was_on = was_on.value
        self.undo.append(self._stop)
        missed = []
        try:
            if not self.preloaded and "pasta" in sys.modules:
                from pasta import annotate

                annotate.follow(self.library.process)
                self.undo.append(lambda: annotate.follow(None))
            for begin in self.begins:
                end, text = begin()
                self.undo.append(end)
                missed.append(text)
        except BaseException:
            self._end()
            self.library.forget()
            raise
        atexit.register(self._at_exit)
        return {
            "number": number.value, "position": position, "time": begun,
            "missed": [text for text in missed if text],
        }  # fmt: skip

    def _stop(self) -> None:
        self.position = self.library.end(self.was_on)

    def _end(self) -> None:
        while self.undo:
            self.undo.pop()()

    def end(self, _request: dict[str, Any]) -> dict[str, Any]:
        """Ends the block; position of its end."""
        try:
            _on_main_thread(self._end, _END_SECONDS)
        except TimeoutError:  # the hooks end when the main thread runs Python code again
            try:
                self.undo.remove(self._stop)
            except ValueError:  # the main thread has just called it
                pass
            else:
                self._stop()
        atexit.unregister(self._at_exit)
        return {"position": self.position}

    def _at_exit(self) -> None:
        if os.getpid() == self.process:  # forked children have this function too
            self._end()
            self.send({"exit": self.position})

    # ---- requests

    def send(self, document: dict[str, Any]) -> None:
        """Sends a line; ignored if `pasta attach` has ended."""
        try:
            self.connection.sendall(json.dumps(document).encode() + b"\n")
        except OSError:
            pass

    def serve(self) -> None:
        """Answers requests until `pasta attach` closes the connection."""
        answers = {name: getattr(self, name) for name in ("open", "prepare", "begin", "end")}
        try:
            with self.connection, self.connection.makefile("rb") as requests:
                for line in requests:
                    ((name, request),) = json.loads(line).items()
                    try:
                        self.send(answers[name](request))
                    except Exception as error:
                        is_expected = isinstance(error, Refused)
                        self.send({"problem": str(error) if is_expected else repr(error)})
        finally:
            if self.undo:  # pasta attach was killed
                self.end({})
                self.library.forget()


def main(directory: str) -> None:
    """Connects to the socket in a directory; returns at once if `pasta attach` has given up."""
    connection = socket.socket(socket.AF_UNIX)
    folder = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:  # a socket's path must be short
        connection.connect(f"/proc/self/fd/{folder}/socket")
    except OSError:
        connection.close()
        raise
    finally:
        os.close(folder)
    _Attached(connection).serve()
