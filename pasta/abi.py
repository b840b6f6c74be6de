"""Ring and events as NumPy sees them, read from shim/include/pasta_abi.h through cffi."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from pasta._native import ffi, lib

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

SCHEMA: int = lib.PASTA_SCHEMA
SLOT: int = lib.PASTA_SLOT

_SCALARS = {
    "uint8_t": "u1", "uint16_t": "u2", "uint32_t": "u4", "uint64_t": "u8",
    "int8_t": "i1", "int16_t": "i2", "int32_t": "i4", "int64_t": "i8", "double": "f8",
}  # fmt: skip


def _enum(prefix: str) -> dict[str, int]:
    names = (name for name in dir(lib) if name.startswith(prefix))
    return {name[len(prefix) :]: int(getattr(lib, name)) for name in names}


#: Number of every event kind by name, in order of the numbers.
KINDS: dict[str, int] = dict(
    sorted(
        ((name, number) for name, number in _enum("PASTA_EVENT_").items() if name != "count"),
        key=lambda item: item[1],
    )
)
#: Name of every event kind by number.
NAMES: dict[int, str] = {number: name for name, number in KINDS.items()}
#: Names of the numbers in fields such as `memory`, `direction`, `what`, `origin`.
ENUMS: dict[str, dict[int, str]] = {
    field: {number: name for name, number in _enum(prefix).items()}
    for field, prefix in {
        "memory": "PASTA_MEMORY_",
        "copy": "PASTA_COPY_",
        "sync": "PASTA_SYNC_",
        "origin": "PASTA_ORIGIN_",
        "role": "PASTA_ROLE_",
    }.items()
}
#: What is absent in fields in which all ones are a value.
_ABSENT: dict[str, int] = {"priority": -(2**31)}
FLAG_GRAPH: int = lib.PASTA_FLAG_GRAPH
FLAG_ASYNC: int = lib.PASTA_FLAG_ASYNC
FLAG_INTERNAL: int = lib.PASTA_FLAG_INTERNAL
FLAG_PROBED: int = lib.PASTA_FLAG_PROBED
LIMIT_SANDBOX: int = lib.PASTA_LIMIT_sandbox

#: Payload fields that hold ids of interned strings.
_STRING_FIELDS: dict[str, tuple[str, ...]] = {
    "process": ("executable", "command", "source", "version", "environment"),
    "context": ("name",),
    "counter": ("name", "instance"),
    "kernel_launch": ("name",),
    "graph_node": ("name",),
    "range": ("name", "domain"),
    "operator_begin": ("name", "module"),
    "tensor": ("shape", "strides", "dtype", "name"),
    "python_frame": ("file", "function"),
}
#: Fields whose numbers have names, by payload: field -> key of ENUMS.
_ENUM_FIELDS: dict[str, dict[str, str]] = {
    "memory": {"memory": "memory"},
    "tensor_memory": {"memory": "memory"},
    "tensor": {"role": "role"},
    "operator_tensors": {"role": "role"},
    "memory_copy": {"direction": "copy"},
    "sync": {"what": "sync"},
    "range": {"origin": "origin"},
    "profiling": {"origin": "origin"},
}

#: Kinds that the ring uses for itself; they are never decoded.
UNRECORDED = frozenset({"pad"})


def payload_of(kind: str) -> str:
    """Name of the payload struct of an event kind, without its prefix."""
    index = KINDS[kind]
    return str(ffi.string(lib.pasta_payload_name(index)).decode())


def string_fields(kind: str) -> tuple[str, ...]:
    """Fields of a kind that hold string ids."""
    return _STRING_FIELDS.get(payload_of(kind), ())


def enum_fields(kind: str) -> dict[str, dict[int, str]]:
    """Fields of a kind whose numbers have names, with the names."""
    return {field: ENUMS[enum] for field, enum in _ENUM_FIELDS.get(payload_of(kind), {}).items()}


def _fields(struct: str) -> list[tuple[str, Any]]:
    return list(ffi.typeof(struct).fields)


def absent(field: str, dtype: np.dtype[Any]) -> int:
    """The number that stands for nothing in a field of integers, unless 0 does."""
    all_ones = -1 if dtype.kind == "i" else 2 ** (8 * dtype.itemsize) - 1
    return _ABSENT.get(field, all_ones)


def absent_records(count: int, of: np.dtype[Any]) -> NDArray[Any]:
    """So many records of a type in which every field is absent."""
    import numpy as np

    records: NDArray[Any] = np.full(count * of.itemsize, 0xFF, np.uint8).view(of)
    for name in _ABSENT.keys() & set(of.names or ()):
        records[name] = _ABSENT[name]
    return records


@cache
def dtype(kind: str) -> np.dtype[Any]:
    """NumPy type of a decoded record: header and payload fields in one structure.

    The header's `commit` is called `index` there: the record's slot position relative to its
    batch.  Arrays such as `grid` are sub-arrays of shape (3,).  Raises KeyError for an unknown
    kind.
    """
    import numpy as np

    names: list[str] = []
    formats: list[Any] = []
    offsets: list[int] = []
    header = ffi.sizeof("pasta_header")
    payload = f"pasta_{payload_of(kind)}"
    for struct, base in (("pasta_header", 0), (payload, header)):
        for name, field in _fields(struct):
            if name.startswith("unused"):
                continue
            names.append("index" if (struct, name) == ("pasta_header", "commit") else name)
            formats.append(_format(field.type))
            offsets.append(base + field.offset)
    itemsize = header + ffi.sizeof(payload)
    return np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": itemsize})


def _format(kind: Any) -> Any:
    if kind.kind == "array":
        return (_SCALARS[kind.item.cname], (kind.length,))
    return _SCALARS[kind.cname]
