"""Access records, which a warp writes to page-locked memory."""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from pasta.backends.nvidia import trace_records as trace
from pasta.backends.nvidia.intrinsics.define import (
    Generate,
    Intrinsic,
    Values,
    narrow,
)
from pasta.backends.nvidia.structs import constants


def _trace(single: bool) -> Generate:
    operands = (*trace.OPERANDS, *(trace.MORE_OPERANDS if single else ()))

    def generate(builder: Any, arguments: Values) -> Any:
        text = trace.assembly(constants(), single=single)
        given = [
            argument if letter == "l" else narrow(builder, argument)
            for argument, letter in zip(arguments, operands, strict=True)
        ]
        kind = ir.FunctionType(ir.VoidType(), [argument.type for argument in given])
        constraints = ",".join((*operands, "~{memory}"))
        assembly = ir.InlineAsm(kind, text, constraints, side_effect=True)
        builder.call(assembly, given, attrs=("convergent",))

    return generate


#: Writes a record of lanes that call this together: a launch's descriptor, the instruction's
#: address, each lane's address, the lanes, bytes of a lane, kind | flags << 8.
trace_lanes = Intrinsic("trace_lanes", 6, _trace(False))
#: Writes a record from one lane for all lanes in a mask: bytes are of all rows; also rows, and the
#: bytes between them.
trace_single = Intrinsic("trace_single", 8, _trace(True))
