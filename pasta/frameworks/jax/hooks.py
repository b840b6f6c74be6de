"""Hooks in JAX. libpasta runs this file in the profiled program's Python, whatever its version and
environment, just before the program imports jax.

XLA itself tells libpasta what it runs (shim/frameworks/jax), so nothing of JAX is replaced here. It
uses the standard library, jaxlib, and JAX's table of clients, and the syntax of Python 3.8. Nothing
here may raise into the program, print to its output, or change what it computes.

pasta.profile runs the file too, in programs that have imported jax already: with "block" in the
settings nothing happens before `prepare_block` is called.
"""

import atexit
import ctypes
import functools
import json
import os
import sys
import weakref


def _follow(on):
    """Follows operators, or not; returns the earlier state."""
    from jaxlib.version import __version__  # imports nothing else

    return ctypes.CDLL(None).pasta_jax_follow(on, __version__.encode())


def _set_allocator(name):
    """Selects XLA's allocator of device memory, which it reads when JAX first uses a device."""
    from jaxlib.version import __version_info__  # imports nothing else

    # XLA since April 2026: its platform allocator is a pool; since June that without one has a name
    if name == "platform" and __version_info__ >= (0, 11):
        name = "address"
    os.environ["XLA_PYTHON_CLIENT_ALLOCATOR"] = name


class _Buffer:
    """Stands for recorded memory; it dies with the last array that has it."""

    __slots__ = ("__weakref__",)


class _Arrays:
    """Live arrays, which libpasta records as tensors.

    libpasta calls `update` after executions, between any two instructions of the main thread. No
    function of JAX that takes a Python lock is called then: the interrupted code may hold it. What
    happens when an array dies runs no Python code, in which an exception of a signal would be lost.
    """

    def __init__(self):
        library = ctypes.PyDLL(None)  # keeps the interpreter's lock
        self._publish = library.pasta_jax_array
        self._publish.argtypes = [
            ctypes.c_uint64, ctypes.c_uint64, ctypes.c_int, ctypes.c_uint32,
            ctypes.c_char_p, ctypes.c_char_p,
        ]  # fmt: skip
        self._freed = library.pasta_jax_array_freed
        self._freed.argtypes = [ctypes.c_uint64, ctypes.c_uint64, ctypes.c_int, ctypes.py_object]
        self._freed.restype = None
        self._new_stack = library.pasta_jax_stack
        self._new_stack.restype = ctypes.c_uint32
        self._frame = library.pasta_jax_frame
        self._frame.argtypes = [
            ctypes.c_uint32, ctypes.c_uint32, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_uint32,
        ]  # fmt: skip
        self._call = library.pasta_jax_list_arrays
        self._call.argtypes = [ctypes.c_void_p]
        self._called = self.update  # libpasta has no reference
        self._live = {}  # by id of a known array: a weak reference that removes it, its buffers
        self._buffers = {}  # by address: a weak reference that records the free, what is recorded
        self._stacks = {}

    def follow(self):
        """Follows arrays until the program ends."""
        if self._call(id(self._called)):
            atexit.register(self.stop)
        else:
            _say("JAX arrays are not recorded: this Python does not support it")

    def stop(self):
        """Follows no more arrays: the interpreter may be about to end."""
        self._call(None)
        self._buffers.clear()
        self._live.clear()

    def update(self):
        """Records arrays that are new."""
        try:
            bridge = sys.modules.get("jax._src.xla_bridge")
            for client in list(bridge._backends.values()) if bridge else ():
                if client.platform not in _HOSTS:
                    self._add(client.live_arrays())
        except Exception as error:
            if not _is_ours(error):
                raise
            self.stop()
            _say("JAX arrays are no longer recorded: %r" % (error,))

    def _add(self, arrays):
        live = self._live
        new = [each for each in arrays if id(each) not in live]
        for array in reversed(new):  # the newest is first
            try:
                # arrays on several devices have one array per device
                parts = array._arrays if len(array.sharding.device_set) > 1 else [array]
                buffers = [self._buffer(each) for each in parts]
            except _NotRecorded:
                return
            except RuntimeError as error:
                if not _is_ours(error):
                    raise
                buffers = []  # it was deleted meanwhile
            key = id(array)
            live[key] = weakref.ref(array, functools.partial(live.pop, key)), buffers
        if len(self._buffers) > 2 * len(live) + 10_000:
            known = self._buffers.items()
            self._buffers = {at: each for at, each in known if each[0]() is not None}

    def _buffer(self, array):
        """What an array of one device holds; None: no device memory."""
        (device,) = array.sharding.device_set
        bytes = array.on_device_size_in_bytes()
        if not bytes or device.platform in _HOSTS or "host" in (array.sharding.memory_kind or ""):
            return None
        address, ordinal = array.unsafe_buffer_pointer(), device.local_hardware_id
        shape, dtype = ",".join(map(str, array.shape)).encode(), str(array.dtype).encode()
        reference, known = self._buffers.get(address, (None, None))
        buffer = reference and reference()
        if buffer:
            if known == (bytes, shape, dtype):
                return buffer  # an array was donated to this one, or shares its memory
            self._freed(address, known[0], ordinal, None)
        stack = self._stack(array.traceback)
        if not self._publish(address, bytes, ordinal, stack, shape, dtype):
            raise _NotRecorded
        buffer = _Buffer()
        freed = functools.partial(self._freed, address, bytes, ordinal)
        self._buffers[address] = weakref.ref(buffer, freed), (bytes, shape, dtype)
        return buffer

    def _stack(self, traceback):
        """Id of a stack, whose frames are recorded; 0: none."""
        if traceback is None:
            return 0
        known = self._stacks.get(traceback)
        if known is None:
            known = self._stacks[traceback] = self._new_stack()
            for depth, frame in enumerate(traceback.frames):
                file, function = frame.file_name.encode(), frame.function_name.encode()
                self._frame(known, depth, file, function, frame.line_num)
        return known


class _NotRecorded(Exception):
    """Profiling is stopped: the array is recorded later."""


#: Platforms whose memory is the host's.
_HOSTS = ("cpu",)


def _is_ours(error):
    """Whether an exception is from this file or JAX, not from a signal handler."""
    where = error.__traceback__
    while where.tb_next:
        where = where.tb_next
    file = where.tb_frame.f_code.co_filename
    return file == _FILE or "/jax/_src/" in file


_FILE = __file__


def _say(text):
    if not _settings["quiet"]:
        os.write(2, ("pasta: %s\n" % text).encode("utf-8", "replace"))


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
        if _settings["arrays"]:
            _Arrays().follow()
