"""Hatchling build hook: compiles the shim into the wheel or the editable tree."""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class ShimBuildHook(BuildHookInterface[Any]):
    """Builds the native parts and adds them to a wheel, or to the checkout of an editable
    install."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build, and complete `build_data`: scripts, included files and the tag of the wheel.

        Raises SystemExit if the native parts cannot be built.
        """
        root = Path(self.root)
        if self.target_name != "wheel":
            return
        sys.path.insert(0, str(root))
        from shim.build import COMMANDS, SCRIPTS, BuildError, build

        editable = version == "editable"
        # An editable install imports from the checkout, so its binaries must be there.
        directory = root / "pasta" / "_native" if editable else Path(self.directory) / "native"
        try:
            files = build(directory)
        except BuildError as error:
            raise SystemExit(f"pasta: {error}") from None
        scripts = directory / SCRIPTS
        build_data["shared_scripts"].update({str(scripts / name): name for name in COMMANDS})
        if not editable:
            for file in files:
                if file.parent == scripts:
                    continue
                if file.suffix != ".py" and "__pycache__" not in file.parts:
                    build_data["force_include"][str(file)] = (
                        f"pasta/_native/{file.relative_to(directory)}"
                    )
        build_data["pure_python"] = False
        python = f"cp{sys.version_info.major}{sys.version_info.minor}"
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["tag"] = f"{python}-{python}-{platform}"
