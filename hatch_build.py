"""Hatchling build hooks: the native parts, compiled into the wheel or the editable tree, and the
project's links."""

from __future__ import annotations

import os
import sys
import sysconfig
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface


def _shim(root: str) -> Any:
    """The module shim.build of the checkout, which is left without its bytecode."""
    sys.path.insert(0, root)
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        from shim import build
    finally:
        sys.dont_write_bytecode = before
    return build


class ShimBuildHook(BuildHookInterface[Any]):
    """Builds the native parts and adds them to a wheel, or to the checkout of an editable
    install."""

    PLUGIN_NAME = "custom"

    def dependencies(self) -> list[str]:
        """Zig, if the wheel is for other machines than this one."""
        shim = _shim(self.root)
        return [shim.ZIG] if self.target_name == "wheel" and shim.Platform.given() else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build, and complete `build_data`: scripts, included files and the tag of the wheel.

        Raises SystemExit if the native parts cannot be built.
        """
        if self.target_name != "wheel":
            return
        shim = _shim(self.root)
        editable = version == "editable"
        # An editable install imports from the checkout, so its binaries must be there.
        self.scratch = TemporaryDirectory(prefix="pasta-build-")
        directory = Path(self.root, "pasta", "_native") if editable else Path(self.scratch.name)
        try:
            files = shim.build(directory)
            target = shim.Platform.given()
        except shim.BuildError as error:
            raise SystemExit(f"pasta: {error}") from None
        scripts = directory / shim.SCRIPTS
        build_data["shared_scripts"].update({str(scripts / name): name for name in shim.COMMANDS})
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
        platform = target.tag if target else sysconfig.get_platform()
        build_data["tag"] = f"{python}-{python}-{platform.replace('-', '_').replace('.', '_')}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what was built outside of the checkout."""
        if self.target_name == "wheel":
            self.scratch.cleanup()


class LinksHook(MetadataHookInterface):
    """Links to the project's pages below PASTA_HOME, the address of its repository."""

    PLUGIN_NAME = "custom"

    def update(self, metadata: dict[str, Any]) -> None:
        home = os.environ.get("PASTA_HOME", "").removesuffix("/").removesuffix(".git")
        metadata["urls"] = (
            {
                "Homepage": home,
                "Documentation": f"{home}/blob/main/README.md#documentation",
                "Changes": f"{home}/blob/main/CHANGELOG.md",
                "Issues": f"{home}/issues",
            }
            if home
            else {}
        )
