"""Takes JAX's place: names work as XLA does (xla.c)."""

import ctypes
import os

_xla = ctypes.CDLL(os.environ["FAKE_XLA"])
_xla.xla_annotation.restype = ctypes.c_void_p
_xla.xla_push.argtypes = [ctypes.c_void_p]


class Range:
    """A range of XLA around its work, with the source locations of its payload."""

    def __init__(self, title: str, places: str = "", hlo: str = "") -> None:
        texts = (each.encode() or None for each in (title, places, hlo))
        self._annotation = _xla.xla_annotation(*texts)

    def __enter__(self) -> int:
        """Opens the range; its level on this thread."""
        return int(_xla.xla_push(self._annotation))

    def __exit__(self, *_: object) -> None:
        """Closes it."""
        _xla.xla_pop()


class Text(Range):
    """A range whose name is not registered, as in compilation."""

    def __init__(self, title: str) -> None:
        self._title = title.encode()

    def __enter__(self) -> int:
        """Opens the range; its level on this thread."""
        return int(_xla.xla_push_text(self._title))
