"""A run directory: the manifest, events, modules, results and log of one process.

    run.json           the manifest: what ran, where, how it ended, what was lost
    events/*.parquet   events, one table per kind
    modules/HASH.*     images of loaded modules, if run.modules is on
    results/TOOL/      tables, figures and files of each tool
    report.txt         the text report
    symbols.json       functions and lines of native code in call paths
    log.txt            PASTA's own log
    passes/            the runs of two passes, if this one joins them

It is written under a hidden name in the same parent and renamed when complete; readers accept an
unfinished one and report it as such. Only this user may access it (0700, files 0600).
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat
from collections.abc import Iterable, Iterator
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pasta import private
from pasta.errors import RunError
from pasta.run.schema import MANIFEST as MANIFEST_SCHEMA
from pasta.run.schema import check_document, read_document, record, whole
from pasta.table import plain

if TYPE_CHECKING:
    from pasta.processors.symbols import Code, Symbols

MANIFEST = "run.json"
#: Version of the layout and of the manifest's keys. 2: `passes`, and read_bytes, write_bytes and
#: atomic_bytes in access_count's `launches`. 3: names of stall reasons, functions and modules in
#: pc_sample; `samples`. 4: link_bandwidth in device_sample; `link_bandwidth`.
SCHEMA = 4
_VERSION = record({}, {"schema": whole()})
#: Settings that exclude launches.
_FILTERS = ("kernel", "exclude", "launch_skip", "launch_count", "range")


class RunDirectory(NamedTuple):
    """A run directory, being written or read."""

    path: Path

    @classmethod
    def create(cls, path: Path) -> RunDirectory:
        """Creates an empty one. Raises RunError if it cannot be written, or another user could
        have created it."""
        try:
            private.make_or_check_directory(path)
        except OSError as error:
            raise RunError(
                f"cannot create the run directory {path} ({error.strerror})",
                remedy="use another directory with -o DIR",
            ) from None
        return cls(path)

    @classmethod
    def open(cls, path: Path) -> RunDirectory:
        """Opens a run for reading. Raises RunError if `path` is not one."""
        if not path.is_dir():
            raise RunError(f"{path}: no such run directory")
        if not (path / MANIFEST).is_file() and not (path / "events").is_dir():
            raise RunError(f"{path}: not a run directory (no {MANIFEST})")
        return cls(path)

    @property
    def events(self) -> Path:
        """Directory of the event tables."""
        return self.path / "events"

    @property
    def modules(self) -> Path:
        """Directory of the module images."""
        return self.path / "modules"

    @property
    def results(self) -> Path:
        """Directory of the tools' results."""
        return self.path / "results"

    @property
    def _symbols(self) -> Path:
        return self.path / "symbols.json"

    def write_symbols(self, symbols: Symbols, codes: Iterable[Code]) -> None:
        """Stores functions and lines of native code; nothing without any. Raises OSError."""
        document = symbols.document(codes)
        if document:
            text = json.dumps(document, separators=(",", ":"))
            self._symbols.write_text(text + "\n", encoding="utf-8")

    def symbols(self) -> Symbols:
        """Functions and lines of native code, as recorded. Raises RunError for a broken file."""
        from pasta.processors.symbols import Symbols

        path = self._symbols
        if not os.path.lexists(path):
            return Symbols(reads_files=False)
        try:
            return Symbols.from_document(read_document(path, self.path))
        except ValueError as error:
            raise RunError(f"{plain(str(path))}: {error}") from None

    @property
    def report(self) -> Path:
        """The text report."""
        return self.path / "report.txt"

    def recorded(self) -> RunDirectory:
        """The run with the events: this one, or if that still exists, the source of an unfiltered
        replay, or the joined pass with times. Raises RunError as `manifest`."""
        if self.events.is_dir():
            return self
        manifest = self.manifest()
        of_pass = manifest.get("passes", {}).get("times", {}).get("directory", "\0")
        if "\0" not in of_pass:
            times = RunDirectory(self.path / of_pass)
            return times if times.events.is_dir() else self
        replay, config = manifest.get("replay"), manifest.get("config")
        if replay is None or config is None or "\0" in replay["of"]:
            return self
        of = RunDirectory(Path(replay["of"]))
        filtered = any(config.get(name) for name in _FILTERS)
        return of if of.events.is_dir() and not filtered else self

    def write_manifest(self, manifest: dict[str, Any]) -> None:
        """Writes run.json atomically. Raises OSError."""
        temporary = self.path / (MANIFEST + ".writing")
        temporary.write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
        temporary.replace(self.path / MANIFEST)

    def manifest(self) -> dict[str, Any]:
        """The manifest; `{}` for an unfinished run. Raises RunError for a newer or broken one."""
        path = self.path / MANIFEST
        if not os.path.lexists(path):
            return {}
        manifest = read_document(path, self.path)
        check_document(manifest, _VERSION, path)
        if manifest.get("schema", 0) > SCHEMA:
            raise RunError(
                f"{plain(str(path))}: written by a newer PASTA (schema {manifest['schema']}; "
                f"this PASTA supports {SCHEMA})",
                remedy="pip install --upgrade pasta-profiler",
            )
        return check_document(manifest, MANIFEST_SCHEMA, path)

    def move_to(self, wanted: Path, *, force: bool, suffix: str) -> RunDirectory:
        """Renames the complete directory to `wanted`, or to `wanted-SUFFIX` and so on if that
        exists. `force` replaces a run at `wanted`, but never anything other than a run. Safe when
        processes on several hosts do so concurrently."""
        private.tighten(self.path)
        if not wanted.parent.exists():
            private.make_or_check_directory(wanted.parent)
        for place in places(wanted, suffix):
            if self._rename(place) or (force and place == wanted and self._overwrite(wanted)):
                return RunDirectory(place)
        raise AssertionError("unreachable: names are unlimited")

    def _rename(self, place: Path) -> bool:
        """False if `place` exists and is not an empty directory."""
        try:
            os.rename(self.path, place)
        except OSError as error:
            if error.errno not in _TAKEN:
                raise
            return False
        return True

    def _overwrite(self, wanted: Path) -> bool:
        """Replaces the run at `wanted`; False if something other than a run is there.

        A process killed meanwhile leaves both runs. If several processes replace it, the last one
        wins.
        """
        replaced: list[Path] = []
        while not self._rename(wanted):
            try:
                found = os.lstat(wanted)
                if not (stat.S_ISDIR(found.st_mode) and is_run(wanted)):
                    if os.path.samestat(found, os.lstat(wanted)):
                        return False
                    continue
                aside = staging_beside(wanted)
                os.rename(wanted, aside)
            except FileNotFoundError:
                continue  # another process moved it aside
            replaced.append(aside)
        for each in replaced:
            shutil.rmtree(each, ignore_errors=True)
        return True


_TAKEN = (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR)


def places(wanted: Path, suffix: str) -> Iterator[Path]:
    """Paths that `move_to` tries, in order."""
    yield wanted
    yield wanted.with_name(f"{wanted.name}-{suffix}")
    for number in count(2):
        yield wanted.with_name(f"{wanted.name}-{suffix}-{number}")


def staging_beside(place: Path) -> Path:
    """A unique hidden path in the same directory."""
    return place.with_name(f".pasta-{os.getpid()}-{os.urandom(8).hex()}")


def is_run(path: Path) -> bool:
    """Whether a path is a complete run directory, and so may be replaced on request."""
    return (path / MANIFEST).is_file()
