"""Samples and accesses of a run, or of two passes, to the stalls of its tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pasta.lazy import np
from pasta.processors.rows import combined
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
    functions, samples = _in_sections(functions, samples, images)
    sampled = np.unique(samples["function"]).tolist()
    code = read_code(functions, sampled, images)
    blamed = blame_all(samples, reasons, code.code)
    charges = charge(blamed.rows, accesses)
    return Stalls(functions, reasons, samples, code, blamed, charges, objects, top)


def _in_sections(
    functions: Sequence[Function], samples: NDArray[Any], images: Images
) -> tuple[Sequence[Function], NDArray[Any]]:
    """Functions and samples, with those of device functions that lie behind their kernel as
    samples of the kernel: so addresses of accesses and blame count."""
    from pasta.sass.places import open_cubins, sections_of

    found, samples = list(functions), samples.copy()
    numbers = {each: number for number, each in reversed([*enumerate(found)])}
    sampled = np.unique(samples["function"]).tolist()
    cubins = open_cubins({each for at in sampled if (each := found[at].module) is not None}, images)
    sections = {module: sections_of(cubin) for module, cubin in cubins.items()}
    moved = np.zeros(len(samples), bool)
    for number in sampled:
        name, module = functions[number]
        if module is None or name not in sections.get(module, {}):
            continue
        section, start = sections[module][name]
        if section == name:
            continue
        kernel = found[number]._replace(name=section)
        if kernel not in numbers:  # its launches may not report their module
            launched = numbers.get(kernel._replace(module=None))
            if launched is None:
                found.append(kernel)
            else:
                found[launched] = kernel
            numbers[kernel] = len(found) - 1 if launched is None else launched
        mine = (samples["function"] == number) & ~moved
        samples["function"][mine] = numbers[kernel]
        samples["pc"][mine] += np.uint64(start)
        moved |= mine
    return found, combined(samples, ("launch", "function", "pc", "reason"))
