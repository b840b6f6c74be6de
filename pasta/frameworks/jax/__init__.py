"""JAX.  `hooks.py` runs in the profiled program and imports nothing of PASTA."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from pasta.capabilities import Source, names
from pasta.extensions import NOTE, Check
from pasta.frameworks.base import Framework, Wanted
from pasta.settings import Section, Sections, parse_bool, setting

if TYPE_CHECKING:
    from pasta.processors.conventions import Conventions


#: Allocators of XLA: memory of its own for each buffer, or from a pool of XLA or of the driver.
ALLOCATORS = ("platform", "bfc", "cuda_async")


def parse_allocator(value: object) -> str:
    """One of ALLOCATORS, or nothing. Raises ValueError."""
    if value not in (*ALLOCATORS, ""):
        raise ValueError(f"one of {', '.join(ALLOCATORS)}")
    return str(value)


class JaxSettings(Section):
    """Settings for the data recorded from JAX."""

    follow = setting(
        "jax.follow", parse_bool, True, "follow JAX if a tool requires it", per_block=True
    )
    arrays = setting(
        "jax.arrays",
        parse_bool,
        False,
        "record JAX arrays as tensors: lists the live arrays after each execution",
    )
    allocator = setting(
        "jax.allocator",
        parse_allocator,
        "",
        "XLA's allocator of device memory: platform allocates each buffer separately, as an "
        "object of its own, and is slower; default: the program's choice",
    )


class Jax(Framework):
    """JAX, followed by the ranges that XLA pushes around its work."""

    name = "jax"
    title = "JAX"
    module = "jax"
    install = "pip install 'jax[cuda13]'"
    hooks = Path(__file__).with_name("hooks.py")
    settings = JaxSettings
    usual_tools = ("operators",)
    sources = (
        Source(
            "jax",
            "JAX",
            names(
                "operator_begin operator_end graph_node python_frame"
                " tensor_alloc tensor_free tensor_create"
            ),
            is_accelerator=False,
        ),
    )

    def is_followed(self, config: Sections) -> bool:
        """The setting `jax.follow`."""
        return config.of(JaxSettings).follow

    def is_needed(self, config: Sections) -> bool:
        """The setting `jax.allocator`."""
        return bool(config.of(JaxSettings).allocator)

    def hook_settings(self, config: Sections, wanted: Wanted) -> dict[str, object]:
        """The events that tools require, whether arrays are listed, and the allocator."""
        given = config.of(JaxSettings)
        return {
            **wanted.document(),
            "arrays": given.arrays,
            "allocator": given.allocator,
        }

    def checks(self) -> Iterator[Check]:
        """Another tool that gets XLA's ranges."""
        reader = os.environ.get("NVTX_INJECTION64_PATH")
        if reader:
            what = f"not followed: NVTX_INJECTION64_PATH is set to {reader}"
            yield Check(self.title, NOTE, what, "unset NVTX_INJECTION64_PATH")

    @property
    def conventions(self) -> Conventions:
        """Names of JAX's own files."""
        from pasta.frameworks.jax.conventions import CONVENTIONS

        return CONVENTIONS


FRAMEWORK = Jax()
