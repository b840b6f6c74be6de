"""The contents of the modules that launches came from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pasta.lazy import np
from pasta.processors.batch import ABSENT_U64

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pasta.processors.batch import Batch


class ModuleHashes:
    """Hashes of modules by handle; a handle may denote different modules one after another."""

    def __init__(self) -> None:
        self._loads: dict[int, list[tuple[int, int]]] = {}  # handle: position, hash

    def feed(self, batch: Batch) -> None:
        """Follows a batch."""
        loads = batch["module_load"]
        for load, position in zip(loads, batch.positions(loads).tolist(), strict=True):
            history = self._loads.setdefault(int(load["handle"]), [])
            history.append((position, int(load["hash"])))

    def of(self, records: NDArray[Any], batch: Batch) -> NDArray[Any]:
        """Hashes (uint64) of the `module` of records of the batch at their time; absent (all ones)
        if its load was not seen."""
        found = np.full(len(records), ABSENT_U64, np.uint64)
        positions = batch.positions(records)
        for module in np.unique(records["module"]).tolist():
            history = self._loads.get(module)
            if history:
                mine = records["module"] == module
                loaded, hashes = np.array(history, np.uint64).T
                at = np.searchsorted(loaded, positions[mine])
                found[mine] = np.where(at > 0, hashes[at - 1], found[mine])
        return found
