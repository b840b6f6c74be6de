"""The Python part of a framework such as PyTorch, as one object.

A framework is a subclass of `Framework` in a folder of its own, exported there as `FRAMEWORK`.
libpasta waits for the import of `module` in the program's Python, whatever its version and
environment are, and runs the file `hooks` there with two globals: `settings`, the JSON of
`hook_settings`, and `__file__`. The hooks import nothing of PASTA; what they call is in
shim/include/pasta_framework.h.

`pasta.profile` and `pasta attach` run the file too, with "block" in the settings: it then does
nothing before a call of its function `prepare_block(module, library)`. This returns a function that
begins the block, which returns one that ends it, and a text about parts that are not followed.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from pasta.errors import MissingDependency, RunError
from pasta.extensions import Extension
from pasta.settings import Sections

if TYPE_CHECKING:
    from pasta.processors.conventions import Conventions
    from pasta.tool import Tool

#: Begins a block; returns a function that ends it, and a text about parts that are not followed.
BeginBlock = Callable[[], tuple[Callable[[], None], str]]


#: Needs of tools for which operators are followed, or could be missed.
_FOLLOWED = {"allocations", "operators", "recording", "stacks", "tensors"}


class Wanted(NamedTuple):
    """Events of frameworks that tools require."""

    operators: bool = False
    tensors: bool = False
    allocations: bool = False

    @classmethod
    def by(cls, tools: Iterable[Tool]) -> Wanted:
        """The events that any of the tools requires."""
        tools = list(tools)
        tensors = any(tool.asks_for_tensors for tool in tools)
        operators = tensors or any(
            "operators" in tool.needed() or "on_operators" in tool.handlers() for tool in tools
        )
        allocations = any(
            "allocations" in tool.needed() or "on_tensors" in tool.handlers() for tool in tools
        )
        return cls(operators, tensors, allocations)

    @staticmethod
    def at_probes(tools: Iterable[Tool]) -> bool:
        """Whether operators are required at probed launches only: results for all launches are
        estimates, and no tool looks at operators, stacks or allocations for other reasons."""
        for tool in tools:
            needed = set(tool.needed())
            estimates = "probes" in needed and tool.estimates
            if needed & ({"launches", "allocations"} if estimates else _FOLLOWED):
                return False
            handlers = set(tool.handlers())
            if handlers & {"on_operators", "on_frames", "on_tensors", "on_batch"}:
                return False
            if handlers and "operators" in tool.needs:  # for any launch, or other event
                return False
        return True

    def __bool__(self) -> bool:
        return self.operators or self.tensors or self.allocations

    def document(self) -> dict[str, bool]:
        """Its form in session.json and in the settings of hooks."""
        return self._asdict()


class Framework(Extension):
    """One framework; all but its names, module and hooks is optional."""

    #: The package whose import libpasta waits for, and the command that installs it.
    module: str
    install: str
    hooks: Path
    #: Default tools of `pasta.profile` if the framework is installed.
    usual_tools: tuple[str, ...] = ()

    def is_followed(self, config: Sections) -> bool:
        """Whether the settings enable it."""
        return True

    def is_needed(self, config: Sections) -> bool:
        """Whether the settings require the hooks, also if no tool does."""
        return False

    def setting_against(self, config: Sections, *, modules: bool) -> str:
        """The setting, as `torch.follow=no`, by which operators, or with `modules` their modules,
        are not recorded; empty if there is none."""
        return ""

    def pauses(self, config: Sections) -> bool:
        """Whether the hooks stop recording operators while libpasta needs none."""
        return False

    def hook_settings(self, config: Sections, wanted: Wanted) -> dict[str, object]:
        """Settings of the hooks, in JSON's types."""
        return dict(wanted.document())

    @property
    def conventions(self) -> Conventions:
        """Names by which processors recognize its own code."""
        from pasta.processors.conventions import Conventions

        return Conventions()

    def is_installed(self) -> bool:
        """Whether this Python could import it."""
        return importlib.util.find_spec(self.module) is not None

    def uses_accelerator(self, module: ModuleType) -> bool:
        """Whether this process uses an accelerator through it; starts no driver."""
        return False

    def imported(self, tool: str) -> ModuleType:
        """Its module, for a tool that needs it. Raises MissingDependency."""
        try:
            return importlib.import_module(self.module)
        except ImportError as error:
            raise MissingDependency(
                f"tool {tool} needs {self.title}, which cannot be imported ({error})",
                remedy=self.install,
            ) from None

    def block_settings(self, config: Sections, wanted: Wanted) -> str:
        """Settings of the hooks for a block, as JSON."""
        return json.dumps({**self.hook_settings(config, wanted), "block": True, "quiet": False})

    def prepare_block(
        self, module: ModuleType, config: Sections, wanted: Wanted, library: int
    ) -> BeginBlock:
        """Prepare the hooks to follow the module in this process.

        `library`: address of libpasta's function `pasta_framework_api`; 0 if the program was
        started with libpasta. Raises RunError.
        """
        spec = importlib.util.spec_from_file_location("_pasta_hooks", self.hooks)
        assert spec is not None and spec.loader is not None
        hooks: Any = importlib.util.module_from_spec(spec)
        hooks.settings = self.block_settings(config, wanted)
        spec.loader.exec_module(hooks)
        hooks._say = lambda text: print(f"pasta: {text}", file=sys.stderr)
        try:
            return cast("BeginBlock", hooks.prepare_block(module, library))
        except (RuntimeError, ImportError, OSError) as error:
            raise RunError(f"{self.name} cannot be followed: {error}") from None
