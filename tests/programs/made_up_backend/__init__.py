"""A backend outside of PASTA, of accelerators that do not exist; see docs/new-backend.md."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pasta.backends.base import Backend, Launch, Prepared
from pasta.capabilities import Source, names
from pasta.extensions import GOOD, Check
from pasta.settings import Section, parse_names, setting

LIBRARY = Path(__file__).with_name("libmade_up_source.so")


class MadeUpSettings(Section):
    """Settings of the backend."""

    prefix = setting(
        "made_up.prefix", parse_names, "", "begins the names of kernels", shim="made_up.prefix"
    )


class MadeUp(Backend):
    """Made-up accelerators."""

    name = "made_up"
    title = "Made Up"
    settings = MadeUpSettings
    libraries = (LIBRARY,)
    unused = "no program of made-up accelerators ran"
    sources = (
        Source(
            "made_up",
            "Made Up (callbacks)",
            names("context_create kernel_launch kernel_launch_end memory_copy device_name"),
        ),
    )

    def prepare(self, launch: Launch) -> Prepared:
        launch.log(f"made-up accelerators: {LIBRARY}")
        return {"library": str(LIBRARY)}

    def checks(self) -> Iterator[Check]:
        yield Check("Made Up driver", GOOD, f"version 1 at {LIBRARY}")


BACKEND = MadeUp()
