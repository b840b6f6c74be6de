"""Compiles in advance what runs of tools call: for CPUs, and probes for devices.

As a process: what the collector of a run will call if devices count accesses.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from pasta.compiled.building import build_missing, declared
from pasta.config import Config, preset_names
from pasta.plugins import built_in_names
from pasta.probes.cpu import CpuExecutor
from pasta.processors.needs import compiled_modules
from pasta.runtime.assembly import make_tools
from pasta.runtime.pipeline import EXPECTED
from pasta.runtime.probe_plan import given_by

if TYPE_CHECKING:
    from pasta.compiled import Compiled

#: Modules with compiled functions.
MODULES = (
    "pasta.probes.columns", "pasta.probes.sector_counts", "pasta.probes.warp",
    "pasta.processors.critical_path", "pasta.processors.growth", "pasta.processors.managed_pages",
    "pasta.processors.objects", "pasta.processors.operators", "pasta.processors.past",
    "pasta.processors.tensors",
)  # fmt: skip


def built_in() -> Iterator[Config]:
    """Configurations for each built-in tool and preset: devices count differently for samples."""
    for sample in (False, True):
        for name in built_in_names():
            config = Config()
            config.tools.append(name)
            config.probes_sample = sample
            yield config
        for name in preset_names():
            config = Config()
            config.load(name)
            config.probes_sample = sample
            yield config


def functions_of(configs: Iterable[Config]) -> list[Compiled]:
    """All functions of PASTA, and those generated for the tools of each configuration, that run
    on the CPU. Raises ToolError."""
    found = [each for module in MODULES for each in declared(module)]
    for config in configs:
        probing = [tool for tool in make_tools(config) if "probes" in tool.needed()]
        if probing:
            found.append(CpuExecutor(probing).loop)
    return list({each.key: each for each in found}.values())


def compile_probes(configs: Iterable[Config], architectures: Sequence[int]) -> int:
    """Compile the probes of each configuration for devices, in parallel; for the devices of this
    machine if `architectures` is empty.

    Returns the number of sets of probes for which there was a device. Raises PastaError.
    """
    work = []
    for config in configs:
        probing = [tool for tool in make_tools(config) if "probes" in tool.needed()]
        devices = [found for backend in config.backends() if (found := backend.probes)]
        for device in devices if probing else ():
            for architecture in architectures or (config.probes_sm,):
                given = replace(given_by(config), architecture=architecture)
                work.append(partial(device.compile, probing, given))
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads:
        return sum(map(bool, threads.map(lambda compile: compile(), work)))


def main() -> int:
    """Compile for the configuration on standard input (JSON)."""
    tools = make_tools(Config(**json.load(sys.stdin)))
    needs = {name for tool in tools for name in tool.needed()}
    modules = compiled_modules(needs, EXPECTED)
    build_missing(each for module in modules for each in declared(module))
    return 0


if __name__ == "__main__":
    sys.exit(main())
