"""Built-in tools: one file each, in the folder `tools/` of a checkout or here in a wheel."""

from pathlib import Path

_root = Path(__file__).resolve().parents[2]
if (_root / "tools").is_dir() and (_root / "shim").is_dir():
    __path__.append(str(_root / "tools"))
