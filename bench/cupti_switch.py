"""The library that switches a client of CUPTI off and on inside a program: c/cupti_switch.c."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

SWITCH = Path(__file__).resolve().parent / "c" / "cupti_switch.c"
#: Functions of CUPTI that the switch has itself.
OWN = ("cuptiSubscribe", "cuptiEnableCallback", "cuptiActivityEnable")


def switch_library(directory: Path, real: Path) -> Path:
    """A library with the name and the functions of the CUPTI library `real`, and the switch."""
    listed = subprocess.run(
        ["nm", "-D", "--defined-only", real], check=True, capture_output=True, text=True
    ).stdout
    names = sorted(set(re.findall(r" T ([A-Za-z_]\w*)", listed)) - set(OWN))
    entries = "".join(f" X({number}, {name})" for number, name in enumerate(names))
    (directory / "cupti_entries.h").write_text(f"#define CUPTI_ENTRIES(X){entries}\n")
    made = directory / "libcupti.so.13"
    subprocess.run(
        [
            os.environ.get("CC", "cc"), "-O2", "-shared", "-fPIC", f"-I{directory}",
            "-Wall", "-Werror",
            f'-DCUPTI_REAL="{real.resolve()}"', "-Wl,-soname,libcupti.so.13",
            SWITCH, "-o", made, "-ldl",
        ],
        check=True,
    )  # fmt: skip
    return made
