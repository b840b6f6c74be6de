"""Ring and events as NumPy sees them, read from shim/include/pasta_abi.h through cffi."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from pasta._native import ffi, lib

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

SCHEMA: int = lib.PASTA_SCHEMA
SLOT: int = lib.PASTA_SLOT
FLAG_GRAPH: int = lib.PASTA_FLAG_GRAPH
FLAG_ASYNC: int = lib.PASTA_FLAG_ASYNC
FLAG_INTERNAL: int = lib.PASTA_FLAG_INTERNAL
FLAG_PROBED: int = lib.PASTA_FLAG_PROBED
FLAG_PAUSED: int = lib.PASTA_FLAG_PAUSED
#: Reasons of migrations of managed memory.
REASON_COHERENCE: int = lib.PASTA_REASON_coherence
REASON_EVICTION: int = lib.PASTA_REASON_eviction
REASON_PREFETCH: int = lib.PASTA_REASON_prefetch
LIMIT_SANDBOX: int = lib.PASTA_LIMIT_sandbox
#: Types in which a number may have several names; they stay numbers in tables.
_BITS = frozenset({"pasta_flags", "pasta_throttle"})


class Kind(NamedTuple):
    """An event kind: a row of PASTA_EVENTS, where the columns are described."""

    number: int
    name: str
    payload: str
    handler: str | None
    category: str
    retain: bool
    own: bool
    label: str


def _text(pointer: Any) -> str:
    return str(ffi.string(pointer).decode())


def _values(type: Any) -> dict[int, str]:
    """Values of an integer type that have a name PASTA_GROUP_name, with that name."""
    return {} if type.kind != "enum" else {n: v.split("_", 2)[2] for n, v in type.elements.items()}


def _names(type: Any) -> dict[int, str]:
    if type.cname in _BITS:
        return {}
    return {number: name for number, name in _values(type).items() if name != "absent"}


def _declared() -> list[Kind]:
    categories = _names(ffi.typeof("pasta_category"))
    return [
        Kind(
            number=row.number,
            name=_text(row.name),
            payload=_text(row.payload),
            handler=handler if (handler := _text(row.handler)) != "none" else None,
            category=categories[row.category],
            retain=bool(row.retain),
            own=bool(row.own),
            label=_text(row.label),
        )
        for row in (lib.pasta_kinds[at] for at in range(lib.PASTA_EVENT_count))
    ]


def _handlers() -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for kind in _DECLARED:
        if kind.handler is not None:
            found[kind.handler] = (*found.get(kind.handler, ()), kind.name)
    return found


#: Bits of `throttle` in a device_sample, by their names in lower case.
THROTTLE: dict[str, int] = {
    name.lower(): bit for bit, name in _values(ffi.typeof("pasta_throttle")).items()
}
_DECLARED = _declared()
_BY_NAME = {kind.name: kind for kind in sorted(_DECLARED, key=lambda kind: kind.number)}
#: Number of every event kind by name, in order of the numbers.
KINDS: dict[str, int] = {name: kind.number for name, kind in _BY_NAME.items()}
#: Name of every event kind by number.
NAMES: dict[int, str] = {number: name for name, number in KINDS.items()}
#: Event kinds of each handler of a tool, in the order in which a batch's handlers are called.
HANDLERS: dict[str, tuple[str, ...]] = _handlers()
#: Kinds that later events refer to: their recorded parts are never dropped for newer ones.
RETAINED = frozenset(name for name, kind in _BY_NAME.items() if kind.retain)
#: Kinds that PASTA itself records, whatever the source.
OWN = frozenset(name for name, kind in _BY_NAME.items() if kind.own)


def kinds_of(*categories: str) -> tuple[str, ...]:
    """Event kinds of some categories (PASTA_CATEGORY_*), in order of their numbers."""
    return tuple(name for name, kind in _BY_NAME.items() if kind.category in categories)


#: Kinds that the ring uses for itself; they are never decoded.
UNRECORDED = frozenset(kinds_of("ring"))


def payload_of(kind: str) -> str:
    """Name of the payload struct of an event kind, without its prefix."""
    return _BY_NAME[kind].payload


def label(kind: str) -> str:
    """Noun for an event kind in messages, in the plural: "kernel launches"."""
    return _BY_NAME[kind].label


def _fields(struct: str) -> list[tuple[str, Any]]:
    """Name, and type and offset, of each field of a struct but padding."""
    fields = ffi.typeof(f"pasta_{struct}").fields
    return [(name, field) for name, field in fields if not name.startswith("unused")]


@cache
def string_fields(kind: str) -> tuple[str, ...]:
    """Fields of a kind that hold string ids."""
    string = ffi.typeof("pasta_string_id")
    return tuple(name for name, field in _fields(payload_of(kind)) if field.type is string)


@cache
def enum_fields(kind: str) -> dict[str, dict[int, str]]:
    """Fields of a kind whose numbers have names, with the names."""
    fields = ((name, _names(field.type)) for name, field in _fields(payload_of(kind)))
    return {name: names for name, names in fields if names}


@cache
def enums() -> dict[str, dict[int, str]]:
    """Names of the numbers in fields such as `memory`, `direction`, `what`, `origin`, by the GROUP
    of their enumerators PASTA_GROUP_name, in lower case."""
    types = {field.type for kind in KINDS for _, field in _fields(payload_of(kind))}
    named = sorted((type for type in types if _names(type)), key=lambda type: type.cname)
    return {type.elements[min(type.elements)].split("_")[1].lower(): _names(type) for type in named}


@cache
def _sentinels(kind: str) -> dict[str, int]:
    """Sentinels of a kind's fields whose types declare one; others are all ones."""
    return {
        name: number
        for name, field in (*_fields("header"), *_fields(payload_of(kind)))
        for number, meaning in _values(field.type).items()
        if meaning == "absent"
    }


@cache
def _sentinels_by_field() -> dict[str, int]:
    """Sentinels of the fields that are not ids, in which 0 is absent."""
    return {name: number for kind in KINDS for name, number in _sentinels(kind).items() if number}


def absent(field: str, dtype: np.dtype[Any]) -> int:
    """Sentinel for an absent value in a field of integers that are not ids."""
    all_ones = -1 if dtype.kind == "i" else 2 ** (8 * dtype.itemsize) - 1
    return _sentinels_by_field().get(field, all_ones)


def absent_records(count: int, of: np.dtype[Any], *kinds: str) -> NDArray[Any]:
    """`count` records of a type made of fields of these kinds, with the sentinel in each field."""
    import numpy as np

    records: NDArray[Any] = np.full(count * of.itemsize, 0xFF, np.uint8).view(of)
    for kind in kinds:
        for name, sentinel in _sentinels(kind).items():
            if name in (of.names or ()):
                records[name] = sentinel
    return records


@cache
def dtype(kind: str) -> np.dtype[Any]:
    """NumPy type of a decoded record: header and payload fields in one structure.

    The header's `commit` is called `index` there: the record's slot position relative to its
    batch.  Arrays such as `grid` are sub-arrays of shape (3,).  Raises KeyError for an unknown
    kind.
    """
    import numpy as np

    payload, header = payload_of(kind), ffi.sizeof("pasta_header")
    fields = [("index" if n == "commit" else n, field, 0) for n, field in _fields("header")]
    fields += [(name, field, header) for name, field in _fields(payload)]
    return np.dtype(
        {
            "names": [name for name, _, _ in fields],
            "formats": [_format(field.type) for _, field, _ in fields],
            "offsets": [base + field.offset for _, field, base in fields],
            "itemsize": header + ffi.sizeof(f"pasta_{payload}"),
        }
    )


def _format(type: Any) -> Any:
    """NumPy format of a C type: an integer, double, or an array of one."""
    if type.kind == "array":
        return (_format(type.item), (type.length,))
    if type.cname == "double":
        return "f8"
    return f"{'i' if int(ffi.cast(type, -1)) < 0 else 'u'}{ffi.sizeof(type)}"
