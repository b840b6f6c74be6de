"""The recipes of examples/batch in a plain root directory: no root, no terminal, a read-only root
file system, configuration by environment and TOML alone; SIGTERM keeps everything within 5 s.

The root is an overlay of this machine's. The steps of Containerfile install into it; the jobs run
in it with a scheduler that is a shell script. Needs root and a wheel: ci/wheels.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import yaml

from pasta import paths
from tests.campaigns.programs import LIMIT, compile_program
from tests.campaigns.result import Row
from tests.support.places import ROOT

NAME = "batch"
_BATCH = ROOT / "examples" / "batch"
_USER = "10001:10001"
_GRACE = 5  # s
_RANKS = 2
_PROGRAM = """
int main(int n, char **a) {
    if (a[1] && a[1][0] == 'w') signal(SIGTERM, SIG_IGN);
    launch(500);
    puts("output");
    fflush(stdout);
    if (a[1]) for (;;) { launch(1); usleep(1000); }
    return 7;
}"""
#: Starts one process for each rank, as srun and mpirun do.
_STARTER = f"""#!/bin/sh
all=
for rank in $(seq 0 {_RANKS - 1}); do
    env %s "$@" &
    all="$all $!"
done
status=0
for each in $all; do wait "$each" || status=$?; done
exit $status
"""
_STARTERS = {
    "srun": f"SLURM_STEP_ID=0 SLURM_PROCID=$rank SLURM_LOCALID=$rank SLURM_NTASKS={_RANKS}",
    "mpirun": f"OMPI_COMM_WORLD_RANK=$rank OMPI_COMM_WORLD_SIZE={_RANKS}",
}
_MOUNTS = """
set -e
mount -t tmpfs tmpfs "$0"
mkdir "$0/upper" "$0/work" "$0/root"
mount -t overlay overlay -o lowerdir=/,upperdir="$0/upper",workdir="$0/work" "$0/root"
mount --rbind /dev "$0/root/dev"
mount -t proc proc "$0/root/proc"
mkdir -p "$0/root/runs"
echo ready
read -r _
"""
#: The program as pid 1 of a container: $0: root, $1: volume, $2: user, $3: directory in it.
_CONTAINER = """
set -e
mount --bind "$1" "$0/runs"
mount -t tmpfs tmpfs "$0/tmp"
mount -t tmpfs tmpfs "$0/dev/shm"
chmod 1777 "$0/tmp" "$0/dev/shm"
mount -o remount,bind,ro "$0"
mount -t proc proc "$0/proc"
root=$0 user=$2 directory=$3
shift 3
exec chroot --userspec="$user" "$root" env -C "$directory" "$@"
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--wheels", type=Path, default=ROOT / "dist", help="default: dist")


def run(arguments: argparse.Namespace) -> list[Row]:
    rows = []
    with TemporaryDirectory() as scratch, _root(Path(scratch)) as root:
        program = compile_program(_PROGRAM, Path(scratch), "app")
        environment = _build(root, arguments.wheels.resolve())
        shutil.copy(program, root.path / "usr/local/bin/app")
        shutil.copy(paths.NATIVE / "librefacc.so", root.path / "usr/lib")
        volume = Path(scratch) / "volume"
        volume.mkdir()
        volume.chmod(0o1777)
        for name, trial in _TRIALS.items():
            runs = volume / name.replace(", ", "-")
            runs.mkdir()
            runs.chmod(0o1777)
            row = Row(name)
            begin = time.monotonic()
            problem = trial(root, environment, runs)
            if problem:
                print(f"{name}: {problem}", flush=True)
            row.count(time.monotonic() - begin, ["failed"] if problem else [])
            rows.append(row)
    return rows


# ---- the root directory


@dataclass
class Root:
    """A root directory in a mount namespace, which the process `holder` keeps."""

    path: Path  # seen through /proc, so from outside of the namespace
    inside: str  # its path in the namespace
    holder: int

    def command(self, runs: Path, environment: dict[str, str], command: Sequence[str]) -> list[str]:
        """The command that runs another one as process 1 of a container, in a directory of the
        volume that is mounted at /runs."""
        variables = [f"{name}={value}" for name, value in environment.items()]
        enter = ["nsenter", "--mount", f"--target={self.holder}", "unshare", "--mount", "--pid"]
        return [
            *enter, "--fork", "sh", "-c", _CONTAINER, self.inside, str(runs.parent), _USER,
            f"/runs/{runs.name}", "-i", *variables, *command,
        ]  # fmt: skip


@contextmanager
def _root(scratch: Path) -> Iterator[Root]:
    place = scratch / "container"
    place.mkdir()
    holder = subprocess.Popen(
        ["unshare", "--mount", "sh", "-c", _MOUNTS, str(place)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert holder.stdin and holder.stdout
    if holder.stdout.readline() != "ready\n":
        raise SystemExit("no root directory can be made here: this needs root")
    inside = f"{place}/root"
    try:
        yield Root(Path(f"/proc/{holder.pid}/root{inside}"), inside, holder.pid)
    finally:
        holder.stdin.close()
        holder.wait()


def _build(root: Root, wheels: Path) -> dict[str, str]:
    """Runs the steps of Containerfile, without extras; the environment that it sets."""
    environment = {"PATH": "/usr/local/bin:/usr/bin:/bin"}
    variables = {**os.environ, "EXTRAS": "", "PATH": f"{environment['PATH']}:/usr/sbin:/sbin"}
    text = (_BATCH / "Containerfile").read_text()
    for line in re.sub(r"\\\n", " ", text).splitlines():
        instruction, _, rest = line.partition(" ")
        if instruction == "COPY":
            *sources, target = rest.split()
            (root.path / target[1:]).mkdir(parents=True, exist_ok=True)
            for source in sources:
                found = wheels.glob("*.whl") if source == "dist/*.whl" else [ROOT / source]
                for each in found:
                    shutil.copy(each, root.path / target[1:])
        elif instruction == "RUN":
            enter = ["nsenter", "--mount", f"--target={root.holder}", "chroot", root.inside]
            subprocess.run([*enter, "sh", "-c", rest], check=True, env=variables)
        elif instruction == "ENV":
            environment.update(re.findall(r'(\w+)="?([^"]*?)"?(?= \w+=|$)', rest))
    return environment


# ---- the recipes


def _manifests(runs: Path) -> list[dict[str, object]]:
    return [json.loads(each.read_text()) for each in sorted(runs.rglob("run.json"))]


def _done(root: Root, runs: Path, environment: dict[str, str], command: Sequence[str]) -> str:
    """Runs a command in the root until it ends; why it is wrong, or ""."""
    done = subprocess.run(
        root.command(runs, environment, command), stdin=subprocess.DEVNULL, capture_output=True,
        text=True, timeout=LIMIT, start_new_session=True,
    )  # fmt: skip
    if done.returncode != 7 or "output" not in done.stdout or "Traceback" in done.stderr:
        return f"status {done.returncode}, {done.stdout!r}, {done.stderr!r}"
    return ""


def _incomplete(runs: Path, count: int) -> str:
    launches = [each["events"].get("kernel_launch") for each in _manifests(runs)]  # type: ignore[attr-defined]
    return "" if launches == [500] * count else f"launches of the runs: {launches}"


def _container(root: Root, environment: dict[str, str], runs: Path) -> str:
    given = {**environment, "JOB": f"{runs.name}/first"}
    problem = _done(root, runs, given, ["pasta-preload", "app"]) or _incomplete(runs / "first", 1)
    return problem or _done(
        root, runs, given, ["sh", "-c", "pasta report first >report.txt && echo output; exit 7"]
    )


def _script(name: str, arguments: Sequence[str], **variables: str) -> Callable[..., str]:
    def trial(root: Root, environment: dict[str, str], runs: Path) -> str:
        for starter, rank in _STARTERS.items():
            path = root.path / "usr/local/bin" / starter
            path.write_text(_STARTER % rank)
            path.chmod(0o755)
        shutil.copytree(_BATCH, runs / "examples/batch")
        given = {name: environment[name] for name in ("PATH", "HOME", "XDG_CACHE_HOME")}
        given.update(variables, PBS_O_WORKDIR=f"/runs/{runs.name}")
        problem = _done(root, runs, given, ["sh", f"examples/batch/{name}", *arguments])
        made = runs / "runs"
        if problem or not (made / "4711.html").exists():
            return problem or "no report"
        return _incomplete(made / "4711", _RANKS)

    return trial


def _job(name: str) -> Callable[..., str]:
    """All pods of a Job of Kubernetes, with what its ConfigMap and the cluster give them."""

    def trial(root: Root, environment: dict[str, str], runs: Path) -> str:
        job = yaml.safe_load((_BATCH / name).read_text())
        files = yaml.safe_load((_BATCH / "config.yaml").read_text())["data"]
        for file, text in files.items():
            (root.path / "etc/pasta" / file).write_text(text)
        (container,) = job["spec"]["template"]["spec"]["containers"]
        pods = job["spec"].get("completions", 1)
        for index in range(pods):
            cluster = {
                "metadata.labels['batch.kubernetes.io/job-name']": job["metadata"]["name"],
                "metadata.annotations['batch.kubernetes.io/job-completion-index']": str(index),
            }
            given = {
                each["name"]: each.get("value")
                or cluster[each["valueFrom"]["fieldRef"]["fieldPath"]]
                for each in container["env"]
            }
            command = [*container["command"][: container["command"].index("--") + 1], "app"]
            problem = _done(root, runs, {**environment, **given}, command)
            if problem:
                return problem
        made = runs.parent / job["metadata"]["name"]
        names = sorted(each.parent.name for each in made.rglob("run.json"))
        if pods > 1 and [each[:9] for each in names] != [f"rank-{n:04}" for n in range(pods)]:
            return f"names of the runs: {names}"
        return _incomplete(made, pods)

    return trial


def _terminated(*argument: str, kept: bool) -> Callable[..., str]:
    """SIGTERM to process 1 of the container, and after 5 s SIGKILL to all; `kept`: a program that
    ignores SIGTERM, whose session is beside the runs, so that it outlives the container."""

    def trial(root: Root, environment: dict[str, str], runs: Path) -> str:
        options = f"--set ring.directory=/runs/{runs.name}" if kept else ""
        given = {
            **environment,
            "JOB": f"{runs.name}/job",
            "PASTA_OPTIONS": f"{environment['PASTA_OPTIONS']} {options}",
        }
        process = subprocess.Popen(
            root.command(runs, given, ["pasta-preload", "app", *argument]),
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            start_new_session=True,
        )  # fmt: skip
        assert process.stdout
        process.stdout.readline()
        time.sleep(1)
        (container,) = _children(process.pid)
        try:
            os.kill(container, signal.SIGTERM)
            process.wait(_GRACE)
        except subprocess.TimeoutExpired:
            if not kept:
                return f"runs on {_GRACE} s after SIGTERM"
        finally:
            if process.returncode is None:
                os.kill(container, signal.SIGKILL)  # and so all its processes
            process.communicate()
        if kept:
            command = ["sh", "-c", "pasta recover pasta-* && echo output; exit 7"]
            problem = _done(root, runs, environment, command)
            if problem:
                return problem
        launches = [each["events"].get("kernel_launch", 0) for each in _manifests(runs)]  # type: ignore[attr-defined]
        return "" if len(launches) == 1 and launches[0] > 500 else f"launches: {launches}"

    return trial


def _children(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


_TRIALS: dict[str, Callable[[Root, dict[str, str], Path], str]] = {
    "Containerfile": _container,
    "job.slurm": _script("job.slurm", ["app"], SLURM_JOB_ID="4711"),
    "job.pbs": _script("job.pbs", [], PBS_JOBID="4711", APP="app"),
    "job.yaml": _job("job.yaml"),
    "indexed-job.yaml": _job("indexed-job.yaml"),
    "SIGTERM": _terminated("x", kept=False),
    "SIGTERM, ignored": _terminated("w", kept=True),
}
