"""Names of kernels in tables, and the kernel at an instruction address."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pasta.lazy import np
from pasta.processors.demangle import distinct_names
from pasta.processors.operator_names import kernel_operators
from pasta.table import Column, Unit, absent_where

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pasta.processors.context import Context


def kernel_names(context: Context, ids: NDArray[Any]) -> list[str]:
    """Short names of kernels by name id, with an excerpt where short names are equal."""
    distinct, inverse = np.unique(ids, return_inverse=True)
    names = distinct_names(context.demangled(distinct))
    return [names[at] for at in inverse.reshape(-1).tolist()]


class Launched:
    """Launches of a run: ordinal, name id of the kernel, and fields that a tool adds."""

    def __init__(self, **fields: str) -> None:
        """`fields`: NumPy types of the additional fields, by name."""
        self._dtype = [("launch", "u8"), ("kernel", "u4"), *fields.items()]
        self._parts: list[NDArray[Any]] = []

    def add(self, launches: NDArray[Any], **columns: NDArray[Any]) -> None:
        """Stores launch records, with a column for each field."""
        rows = np.empty(len(launches), self._dtype)
        rows["launch"], rows["kernel"] = launches["ordinal"], launches["name"]
        for name, column in columns.items():
            rows[name] = column
        self._parts.append(rows)

    def rows(self) -> NDArray[Any]:
        """A structured array of all launches, by ordinal."""
        if len(self._parts) != 1:
            rows = np.concatenate([np.empty(0, self._dtype), *self._parts])
            self._parts = [rows[np.argsort(rows["launch"], kind="stable")]]
        return self._parts[0]

    def of(self, launches: NDArray[Any], field: str = "kernel") -> NDArray[Any]:
        """A field of stored launches, by their ordinals."""
        rows = self.rows()
        return np.asarray(rows[field][np.searchsorted(rows["launch"], launches)])


#: Units of `instruction_columns`.
INSTRUCTION_UNITS: dict[str, Unit] = {"offset": "address", "pc": "address"}


def instruction_hidden(columns: Mapping[str, Column]) -> frozenset[str]:
    """Columns of `instruction_columns` that text reports hide: lines if all are unknown."""
    known = any(line is not None for line in columns["line"])
    return frozenset({"pc"} if known else {"pc", "line"})


def instruction_keys(columns: Mapping[str, Column]) -> tuple[str, str]:
    """Columns of `instruction_columns` that identify rows across runs: lines if some are known."""
    return ("kernel", "line" if "line" not in instruction_hidden(columns) else "offset")


def instruction_place(row: Mapping[str, Any]) -> str:
    """Location of the instruction of a table row: `gemm at gemm.cu:12 (+0x20)`."""
    kernel = row["kernel"] or "unknown kernel"
    if row["offset"] is None:
        return f"{kernel} at pc {row['pc']:#x}"
    line = f"{row['line']} (+{row['offset']:#x})" if row["line"] else f"{row['offset']:#x}"
    return f"{kernel} at {line}"


def at_line(row: Mapping[str, Any], change: str) -> str:
    """A remedy at the source line of a row's instruction; if unknown, with how to get the line."""
    if row["line"]:
        return f"{row['line']}: {change}"
    return f"{change}; compile the kernel with -lineinfo to see the source line"


def instruction_columns(context: Context, pcs: NDArray[Any]) -> dict[str, Column]:
    """Columns `kernel`, `line` of the source, `offset` in the kernel and `pc`, for addresses, and
    in a run with operators of a framework `operators`, which launch the kernel.

    The kernel is the probed one with the highest entry point at or below the address; shared code
    counts for the kernel before it. Kernel and offset are absent if there is none. Kernels of
    successively loaded modules with the same entry point are all named.
    """
    probes = context.probes if context.has("probes") else None
    begins = probes.kernels.begins() if probes else {}
    entries = np.asarray(sorted(begins), np.uint64)
    every = sorted({name for names in begins.values() for name in names})
    text = dict(zip(every, kernel_names(context, np.asarray(every, np.uint32)), strict=True))
    at = np.searchsorted(entries, pcs, "right") - 1
    kernels = [
        " or ".join(sorted(text[name] for name in begins[int(entries[each])]))
        if each >= 0
        else None
        for each in at.tolist()
    ]
    of_kernel = [begins[int(entries[each])] if each >= 0 else () for each in at.tolist()]
    starts = entries[at] if len(entries) else np.zeros(len(pcs), np.uint64)
    return {
        "kernel": kernels,
        "line": probes.kernels.lines(context.strings, pcs) if probes else [None] * len(pcs),
        "offset": absent_where(pcs - starts, at < 0),
        "pc": pcs,
        **kernel_operators(context, of_kernel),
    }
