"""`pasta doctor`: checks this machine and installation, with a remedy for each problem."""

from __future__ import annotations

import argparse
import ctypes
import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from pasta import paths
from pasta.backends import BACKENDS
from pasta.config import extensions
from pasta.errors import MissingDependency, PastaError
from pasta.extensions import BAD, GOOD, NOTE, Check, built_check
from pasta.processors.architecture import is_bandwidth
from pasta.progress import display_progress
from pasta.version import VERSION

#: Version of the JSON document; it increases when a key changes its meaning or is removed.
_SCHEMA = 1
_STYLES = {GOOD: "green", NOTE: "yellow", BAD: "red"}


def prepare(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's arguments to its parser."""
    parser.add_argument("--no-run", action="store_true", help="do not profile the demonstration")
    output = parser.add_mutually_exclusive_group()
    output.add_argument(
        "--counters", action="store_true", help="only list the hardware counters of devices"
    )
    output.add_argument(
        "--roofs",
        action="store_true",
        help="measure the roofs of devices again, print them and exit",
    )
    output.add_argument("--json", action="store_true", help="print the checks as JSON")
    parser.add_argument(
        "--chip",
        metavar="NAME",
        default="",
        help="with --counters: counters of this chip, such as GH100",
    )


def run(options: argparse.Namespace) -> int:
    """Prints the checks, hardware counters or roofs; exit status 1 if a check fails."""
    if options.counters or options.chip:
        return _list_counters(options.chip)
    if options.roofs:
        return _print_roofs()
    checks = list(_checks(options))
    failed = any(check.state == BAD for check in checks)
    if options.json:
        print(json.dumps(_document(checks, failed), indent=1))
    else:
        _print(checks)
    return int(failed)


def _document(checks: list[Check], failed: bool) -> dict[str, object]:
    return {
        "schema": _SCHEMA,
        "version": VERSION,
        "ok": not failed,
        "checks": [
            {"check": each.name, "state": each.state, "found": each.found, "remedy": each.remedy}
            for each in checks
        ],
    }


def _print(checks: list[Check]) -> None:
    table = Table()
    for heading in ("check", "state", "found", "remedy"):
        table.add_column(heading, overflow="fold")
    for check in checks:
        table.add_row(
            check.name,
            Text(check.state, style=_STYLES[check.state]),
            Text(check.found),
            Text(check.remedy),
        )
    Console(emoji=False).print(table)


def _checks(options: argparse.Namespace) -> Iterator[Check]:
    checks: list[Callable[[], Iterator[Check]]] = [
        _python, _native, _google_pasta, _shared_memory, _cache, _prepared, _compiler, _call_paths,
        _perf, _extensions, _abandoned,
    ]  # fmt: skip
    if not options.no_run:
        checks.append(_demonstration)
    for check in checks:
        yield from check()


def _python() -> Iterator[Check]:
    yield Check("python", GOOD, f"{platform.python_version()} at {sys.executable}")
    library = paths.libpython()
    if library:
        yield Check("libpython", GOOD, str(library))
    else:
        yield Check(
            "libpython",
            NOTE,
            "no shared libpython: C programs are analysed by a collector process",
            "optional: a Python built with --enable-shared (Debian: apt install libpython3-dev)",
        )
    for name in ("cffi", "jinja2", "numpy", "numba", "pyarrow", "rich"):
        try:
            yield Check(name, GOOD, importlib.metadata.version(name))
        except importlib.metadata.PackageNotFoundError:
            yield Check(name, BAD, "not installed", f"pip install {name}")


def _native() -> Iterator[Check]:
    yield built_check("libpasta", paths.LIBPASTA)
    yield built_check("embedding module", paths.embedding_module())


#: Libraries that `--call-paths` loads: name, without it, packages that have it.
_CALL_PATHS = (
    (
        "libunwind-x86_64.so.8",
        "call paths follow frame pointers only",
        ("libunwind8", "libunwind"),
    ),
    ("libdw.so.1", "call paths have no source lines", ("libdw1", "elfutils-libs")),
)


def _call_paths() -> Iterator[Check]:
    for library, without, (debian, fedora) in _CALL_PATHS:
        name = library.partition(".")[0].partition("-")[0]
        if name == "libunwind" and platform.machine() != "x86_64":
            continue  # code for other processors keeps frame pointers
        try:
            ctypes.CDLL(library)
            yield Check(name, GOOD, library)
        except OSError:
            remedy = f"optional (Debian: apt install {debian}; Fedora: dnf install {fedora})"
            yield Check(name, NOTE, f"not installed: {without}", remedy)


def _perf() -> Iterator[Check]:
    from pasta.runtime.host_sampling import obstacle

    why = obstacle()
    yield Check("perf events", NOTE if why else GOOD, why or "--perf can sample the host")


def _google_pasta() -> Iterator[Check]:
    found = paths.google_pasta()
    if found:
        yield Check(
            "google-pasta",
            BAD,
            f"{found.name} is in this environment and also has a package `pasta`",
            "install PASTA in a separate environment: pipx install . in its checkout",
        )


def _shared_memory() -> Iterator[Check]:
    place = Path("/dev/shm")
    if not os.access(place, os.W_OK):
        yield Check(
            "shared memory",
            NOTE,
            f"{place} is not writable",
            "event rings go to TMPDIR or /tmp",
        )
        return
    free = shutil.disk_usage(place).free
    state = GOOD if free >= 512 << 20 else NOTE
    remedy = "" if state == GOOD else "in a container: --shm-size=1g; else --set ring.directory=DIR"
    yield Check("shared memory", state, f"{free >> 20:,} MiB free in {place}", remedy)


def _cache() -> Iterator[Check]:
    cache = paths.cache().parent
    writable = os.access(cache if cache.exists() else cache.parent, os.W_OK)
    yield Check(
        "cache",
        GOOD if writable else NOTE,
        f"{cache} is {'writable' if writable else 'not writable: compiled code is not kept'}",
        "" if writable else "set XDG_CACHE_HOME",
    )


def _prepared() -> Iterator[Check]:
    """Compiles what the probes of built-in tools need if there is a device: jobs then do not."""
    from pasta.compiled.building import build_missing
    from pasta.runtime.preparation import built_in, compile_probes, functions_of

    configs = list(built_in())
    functions = functions_of(configs)
    with display_progress("compiling for the devices of this machine, once"):
        try:
            if compile_probes(configs, ()):
                build_missing(functions)
        except PastaError as error:
            yield Check("probes for devices", NOTE, error.message, error.remedy or "")
    stored = sum(each.is_stored() for each in functions)
    whole = stored == len(functions)
    yield Check(
        "compiled code",
        GOOD if whole else NOTE,
        f"{stored} of {len(functions)} functions of built-in tools"
        + ("" if whole else ": the first run of some takes seconds longer"),
        "" if whole else "pasta prepare",
    )


def _compiler() -> Iterator[Check]:
    found = next((found for name in ("cc", "gcc", "clang") if (found := shutil.which(name))), None)
    if found:
        yield Check("C compiler", GOOD, found)
    else:
        yield Check(
            "C compiler", NOTE, "none; needed only to build PASTA", "apt install gcc libc6-dev"
        )


def _extensions() -> Iterator[Check]:
    """Checks of backends and frameworks, including those from other packages."""
    BACKENDS.installed()
    for each in extensions():
        yield from each.checks()
    for name, why in BACKENDS.failures.items():
        yield Check(f"backend {name}", BAD, why, "repair the package, or uninstall it")


def _list_counters(chip: str = "") -> int:
    """Prints the counters of every device, or of a chip; exit status 1 if there are none."""
    found = False
    for backend in BACKENDS.installed():
        try:
            devices = backend.counters(chip)
        except MissingDependency as error:
            print(f"pasta: {error}", file=sys.stderr)
            return 1
        for device, counters in devices:
            for counter in counters:
                print(f"{device} {counter.name}  {counter.text}".rstrip())
            found = found or bool(counters)
    if not found:
        print("pasta: no device offers counters: see pasta doctor", file=sys.stderr)
    return int(not found)


def _say(text: str) -> None:
    print(f"pasta: {text}", file=sys.stderr)


def _print_roofs() -> int:
    """Measures the roofs of every device and prints them; exit status 1 without any."""
    every = []
    for backend in BACKENDS.installed():
        every += backend.roofs(os.environ, _say, again=True)
    for device in every:
        for roof, rate in device.rates.items():
            unit = "GB/s" if is_bandwidth(roof) else "GFLOP/s"
            print(f"{device.name}  {roof}: {rate / 1e9:,.0f} {unit}")
        if device.why:
            _say(f"{device.name}: not measured: {device.why}")
    if not every:
        _say("no device with measurable roofs: see pasta doctor")
    return int(not any(device.rates for device in every))


def _abandoned() -> Iterator[Check]:
    from pasta.cli.recover import abandoned

    left = [str(path) for path in abandoned()]
    if left:
        yield Check("unfinished sessions", NOTE, ", ".join(left), "pasta recover")


def _demonstration() -> Iterator[Check]:
    import tempfile

    from pasta.cli.preload import OPTIONS
    from pasta.own_python import own_python

    program = paths.DEMOS / "vadd"
    with tempfile.TemporaryDirectory() as directory:
        command = [*own_python("pasta.cli.preload"), "-q", "-o", f"{directory}/run", str(program)]
        environment = {name: each for name, each in os.environ.items() if name != OPTIONS}
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
        good = done.returncode == 0 and Path(directory, "run", "run.json").exists()
    yield Check(
        "profile the demo",
        GOOD if good else BAD,
        "a run was written" if good else (done.stderr.strip() or f"status {done.returncode}"),
        "" if good else "run: pasta-preload -v pasta demo vadd",
    )
