"""LLVM IR around functions that Numba lowered. Imports neither Numba nor llvmlite."""

from __future__ import annotations

import re
from collections.abc import Sequence

#: Function that is called if a lowered one raises. There is none of this name: if LLVM cannot
#: prove that nothing raises, it is left in the code, and found there.
RAISED = "pasta_raised"


def checked_call(symbol: str, arguments: Sequence[str]) -> list[str]:
    """Lines that call a lowered function, and RAISED if it raises; code may follow."""
    return [
        f"%status = call i32 @{symbol}({', '.join(arguments)})",
        "%failed = icmp ne i32 %status, 0",
        "br i1 %failed, label %raised, label %returned",
        "raised:",
        f"call void @{RAISED}()",
        "br label %returned",
        "returned:",
    ]


def without_environments(text: str) -> str:
    """IR of modules without the variables of Numba's environments."""
    return re.sub(r"^@_ZN08NumbaEnv.*$", "", text, flags=re.M)
