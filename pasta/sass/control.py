"""Control bits: how the compiler schedules an instruction.

The fields of sm_70 to sm_120 agree with all compiled code examined (docs/sass.md); NVIDIA
does not document them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from pasta.lazy import np

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Their number; an instruction that sets none has a greater one.
SCOREBOARDS: Final = 6


class Control(NamedTuple):
    """Fields of control bits; arrays or numbers.

    `stall`: cycles until the next instruction may issue. `yields`: the scheduler prefers another
    warp. `write`: scoreboard that is released when the results are written. `read`: the one
    released when the sources were read. `wait`: mask of scoreboards that must be free before the
    instruction issues. `reuse`: mask of sources kept in the operand cache.
    """

    stall: NDArray[np.uint32]
    yields: NDArray[np.bool_]
    write: NDArray[np.uint32]
    read: NDArray[np.uint32]
    wait: NDArray[np.uint32]
    reuse: NDArray[np.uint32]


def decode_control(bits: NDArray[np.uint32]) -> Control:
    """Fields of `Code.control`."""
    return Control(
        _field(bits, 0, 15),
        (bits >> 4 & 1) == 0,
        _field(bits, 5, 7),
        _field(bits, 8, 7),
        _field(bits, 11, 63),
        _field(bits, 17, 15),
    )


def _field(bits: NDArray[np.uint32], shift: int, mask: int) -> NDArray[np.uint32]:
    found: NDArray[np.uint32] = (bits >> np.uint32(shift)) & np.uint32(mask)
    return found
