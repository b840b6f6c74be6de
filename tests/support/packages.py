"""Installed packages that extend PASTA."""

from __future__ import annotations

from pathlib import Path


def install_metadata(site: Path, name: str, entry_points: str) -> None:
    """Write what pip leaves of a package beside its modules in a directory."""
    info = site / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(entry_points)
