"""Rules for names of tools and their results, and names from classes."""

from __future__ import annotations

import re

_PLAIN_NAME = re.compile(r"\w[\w .+-]{0,99}")


def check_name(name: object, what: str) -> None:
    """Raises ValueError for a name that cannot name files and directories."""
    if not isinstance(name, str) or not _PLAIN_NAME.fullmatch(name):
        raise ValueError(
            f"the {what} name {name!r:.100} must have at most 100 letters, digits, spaces and "
            "._+-, and begin with a letter or digit"
        )


def title_of(name: str) -> str:
    """`memory_timeline` → `Memory timeline`."""
    words = name.replace("_", " ").strip()
    return words[:1].upper() + words[1:]


def snake_case(name: str) -> str:
    """`KernelFreq` → `kernel_freq`, `UVMAdvisor` → `uvm_advisor`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()
