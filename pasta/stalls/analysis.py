"""Samples and accesses of a run, or of two passes, to the stalls of its tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pasta.lazy import np
from pasta.stalls.blamed import blame_all, read_code
from pasta.stalls.charge import charge
from pasta.stalls.result import Stalls

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pasta.sass.places import Images
    from pasta.stalls.samples import Function
    from pasta.table import Table


def stalls_of(
    functions: Sequence[Function],
    samples: NDArray[Any],
    reasons: Mapping[int, str],
    accesses: NDArray[Any],
    objects: Table,
    images: Images,
    top: int = 10,
) -> Stalls:
    """The stalls of a run: samples (`sample_type`) charged to the objects of accesses
    (`access_type`).

    `objects`: see `Stalls`; `images`: modules by the hash of their content.
    """
    sampled = np.unique(samples["function"]).tolist()
    code = read_code(functions, sampled, images)
    blamed = blame_all(samples, reasons, code.code)
    charges = charge(blamed.rows, accesses)
    return Stalls(functions, reasons, samples, code, blamed, charges, objects, top)
