"""Runs within namespaces: the program's view is as without PASTA, and the run is complete.

What a container is to us: other pids, users, mounts, a small /dev/shm, a root that is read-only.
"""

from __future__ import annotations

import argparse
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.campaigns.programs import LIMIT, compile_program, place
from tests.campaigns.result import Row
from tests.support.preload import base_environment, cli

NAME = "namespaces"
_PROGRAM = 'int main(void) { launch(5000); puts("output"); return 7; }'
_SMALL = "mount -t tmpfs -o size=8m tmpfs /dev/shm"
#: `unshare` options, and the commands run in the namespaces before pasta-preload starts.
WAYS = {
    "pid": ("--pid --fork --mount-proc", ":"),
    "pid, the old /proc": ("--pid --fork", ":"),
    "user": ("--user --map-root-user", ":"),
    "user, unmapped": ("--user", ":"),
    "mount": ("--mount", ":"),
    "net": ("--net", ":"),
    "ipc": ("--ipc", ":"),
    "uts": ("--uts", "hostname a-host-of-ours"),
    "cgroup": ("--cgroup", ":"),
    "time": ("--time --fork", ":"),
    "all": ("--pid --fork --mount-proc --ipc --uts --net --mount --cgroup", _SMALL),
    "small /dev/shm": ("--mount", _SMALL),
    "full /dev/shm": ("--mount", f"{_SMALL} && dd if=/dev/zero of=/dev/shm/x 2>/dev/null; :"),
    "no /dev/shm": ("--mount", "mount -t tmpfs -o size=0,mode=0 tmpfs /dev/shm; chmod 0 /dev/shm"),
    "read-only root": (
        "--mount",
        'mount --bind "$0" "$0"; mount -o remount,bind,ro / 2>/dev/null; :',
    ),
    "no /proc": ("--mount", "umount -l /proc 2>/dev/null; :"),
    "no home": ("--mount", "export HOME=/nonexistent XDG_CACHE_HOME=/nonexistent"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=3, help="times (default: %(default)s)")


def run(arguments: argparse.Namespace) -> list[Row]:
    rows = []
    with TemporaryDirectory() as directory:
        program = compile_program(_PROGRAM, Path(directory), "launches")
        for name, (options, before) in WAYS.items():
            row = Row(name)
            for _ in range(arguments.rounds):
                row.add(_one(program, options, before))
            rows.append(row)
    return rows


def _one(program: Path, options: str, before: str) -> str | None:
    with place("/var/tmp") as here:
        script = f'{before}; cd "$0" && exec "$@"'
        command = ["unshare", *options.split(), "sh", "-c", script, str(here.directory)]
        alone = _see([*command, str(program)])
        seen = _see([*command, *cli("pasta-preload"), str(program)])
        if alone.returncode != 7:
            return None  # this machine does not support that namespace
        errors = [line for line in seen.stderr.splitlines() if not line.startswith("pasta:")]
        if (seen.returncode, seen.stdout, errors) != (7, alone.stdout, alone.stderr.splitlines()):
            return f"status {seen.returncode}, {seen.stdout!r}, {errors}"
        if "Traceback" in seen.stderr:
            return "a traceback"
        return _incomplete(here.manifests(), seen.stderr)


def _see(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, env=base_environment(), stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=LIMIT,
    )  # fmt: skip


def _incomplete(manifests: list[dict[str, object]], stderr: str) -> str | None:
    if not manifests:  # allowed where a line says why
        return None if "pasta: " in stderr else "neither a run nor a line"
    seen = manifests[0]["events"].get("kernel_launch", 0)  # type: ignore[attr-defined]
    dropped = manifests[0]["dropped"].get("kernel_launch", 0)  # type: ignore[attr-defined]
    if seen + dropped != 5000:
        return f"{seen} launches seen and {dropped} dropped of 5000"
    if dropped and "lost" not in stderr:
        return "events were lost without a word"
    return None
