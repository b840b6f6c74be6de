"""PyTorch.  `hooks.py` and `hooks.cpp` run in the profiled program and import nothing of PASTA."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from pasta import paths
from pasta.capabilities import Source, names
from pasta.frameworks.base import Framework, Wanted
from pasta.settings import Section, Sections, parse_bool, parse_count, setting

if TYPE_CHECKING:
    from pasta.processors.conventions import Conventions


class TorchSettings(Section):
    """Settings that restrict the PyTorch data recorded for tools."""

    follow = setting(
        "torch.follow", parse_bool, True, "follow PyTorch if a tool requires it", per_block=True
    )
    stacks = setting(
        "torch.stacks",
        parse_bool,
        True,
        "record the Python stack of every operator",
        per_block=True,
    )
    frames = setting(
        "torch.frames",
        parse_count,
        64,
        "innermost frames kept of each stack",
        maximum=10_000,
        per_block=True,
    )
    modules = setting(
        "torch.modules", parse_bool, True, "record the nn.Module of every operator", per_block=True
    )
    managed = setting(
        "torch.managed",
        parse_bool,
        False,
        "allocate tensors of CUDA devices in managed memory",
    )
    pause = setting(
        "torch.pause",
        parse_bool,
        True,
        "with --sample or a budget, do not record operators while no launch has to be probed",
    )
    kineto = setting(
        "torch.kineto", parse_bool, True, "show PASTA's records in torch.profiler", per_block=True
    )


class Torch(Framework):
    """PyTorch, followed by hooks that are built against the program's version."""

    name = "torch"
    title = "PyTorch"
    module = "torch"
    install = "pip install torch"
    hooks = Path(__file__).with_name("hooks.py")
    settings = TorchSettings
    usual_tools = ("operators", "tensors")
    sources = (
        Source(
            "torch",
            "PyTorch",
            names(
                """graph_instantiate graph_node operator_begin operator_end operator_tensors
                tensor_alloc tensor_free tensor_create allocator_state python_frame python_sample"""
            ),
            is_accelerator=False,
        ),
    )

    def is_followed(self, config: Sections) -> bool:
        """The setting `torch.follow`."""
        return config.of(TorchSettings).follow

    def is_needed(self, config: Sections) -> bool:
        """The setting `torch.managed`."""
        return config.of(TorchSettings).managed

    def setting_against(self, config: Sections, *, modules: bool) -> str:
        """Modules are found in stacks."""
        given = config.of(TorchSettings)
        needed = ("follow", "stacks", "frames", "modules") if modules else ("follow",)
        off = next((name for name in needed if not getattr(given, name)), "")
        return f"torch.{off}={'0' if off == 'frames' else 'no'}" if off else ""

    def pauses(self, config: Sections) -> bool:
        """The setting `torch.pause`."""
        return config.of(TorchSettings).pause

    def hook_settings(self, config: Sections, wanted: Wanted) -> dict[str, object]:
        """The events that tools require, the settings, and folders of headers and hooks."""
        given = config.of(TorchSettings)
        return {
            **wanted.document(),
            "stacks": given.stacks,
            "frames": given.frames,
            "modules": given.modules and wanted.operators,
            "kineto": given.kineto,
            "managed": str(paths.built(paths.LIBPASTA_MANAGED)) if given.managed else "",
            "include": str(paths.NATIVE / "include"),
            "cache": str(paths.cache("torch", make=True)),
        }

    @property
    def conventions(self) -> Conventions:
        """Names of PyTorch's own files, functions and operators."""
        from pasta.frameworks.torch.conventions import CONVENTIONS

        return CONVENTIONS

    def uses_accelerator(self, module: ModuleType) -> bool:
        """Whether torch.cuda is initialized, which HIP's build of PyTorch has too."""
        return bool(module.cuda.is_initialized())


FRAMEWORK = Torch()
