"""Measured roofs of devices: the process that measures with a fake driver, and the launcher."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as pq
import pytest

from pasta.backends.nvidia.roof_kernels import COPY, READ, kernels
from pasta.backends.nvidia.roofs import stored
from pasta.own_python import own_python
from tests.support import fake_gpu, fake_nvml
from tests.support.places import PROGRAMS

MULTIPROCESSORS = 4
ITERATION_S = 1e-6
NAME = "A GPU"
SAID = f"pasta: measuring the roofs of {NAME}, once per driver\n"


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with fake libraries of the driver and NVML, and a program for the launcher."""
    directory = tmp_path_factory.mktemp("fake-roofs")
    fake_nvml.build(directory)
    compiler = shlex.split(os.environ.get("CC", "cc"))
    compiler += ["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    source = PROGRAMS / "nvidia" / "fake_roofs_driver.c"
    subprocess.run([*compiler, source, "-o", directory / "libcuda.so.1"], check=True)
    (directory / "gpu").mkdir()
    fake_gpu.build(directory / "gpu")
    return directory


@pytest.fixture(autouse=True)
def nothing_measured(built: Path) -> None:
    """Compiled code stays in the cache: it takes long."""
    shutil.rmtree(built / "gpu" / "cache" / "pasta" / "roofs", ignore_errors=True)


def environment(built: Path, tmp_path: Path, **fake: str) -> dict[str, str]:
    """Variables by which both are found; `fake` without FAKE_ROOFS_."""
    return {
        **fake_nvml.environment(built, UTILIZATION="0"),
        "XDG_CACHE_HOME": str(built / "gpu" / "cache"),
        "FAKE_ROOFS_LOG": str(tmp_path / "measured"),
        **{f"FAKE_ROOFS_{name}": value for name, value in fake.items()},
    }


@pytest.fixture
def measure(built: Path, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    def run(**fake: str) -> dict[str, Any]:
        done = subprocess.run(
            own_python("pasta.backends.nvidia.roofs"), capture_output=True, text=True,
            env={**os.environ, **environment(built, tmp_path, **fake)}, timeout=60,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    return run


@pytest.mark.parametrize("capability", [75, 80, pytest.param(90, marks=pytest.mark.main), 100])
def test_rates_are_work_by_time(measure: Callable[..., Any], capability: int) -> None:
    found = measure(CAPABILITY=str(capability))
    assert found["missing"] == {}
    assert found["rates"] == pytest.approx(
        {
            each.roof: each.work * each.blocks * MULTIPROCESSORS / ITERATION_S
            for each in kernels(capability)
        },
        rel=1e-5,
    )


def test_what_cannot_be_measured_is_missing(measure: Callable[..., Any]) -> None:
    """A kernel that the driver does not compile, such as one for a newer driver."""
    found = measure(REFUSE="wgmma")
    assert found["missing"].keys() == {
        f"{type} matrix" for type in ("tf32", "float16", "bfloat16", "float8")
    }
    assert "cuModuleLoadData failed with 218" in found["missing"]["float8 matrix"]
    assert {READ, COPY, "float32", "float64 matrix"} <= found["rates"].keys()


@pytest.mark.parametrize(
    ("fake", "why"),
    [
        ({"FAIL": "cuInit"}, "cuInit failed with 2 (CUDA_ERROR_OUT_OF_MEMORY)"),
        ({"FREE": str(1 << 30)}, "1,024 MiB of device memory are free, 2,048 are needed"),
        ({"FAIL": "cuMemAlloc_v2"}, "cuMemAlloc_v2 failed with 2 (CUDA_ERROR_OUT_OF_MEMORY)"),
        ({"CAPABILITY": "70"}, "its compute capability is below 7.5"),
    ],
)
def test_obstacles(measure: Callable[..., Any], fake: dict[str, str], why: str) -> None:
    assert measure(**fake) == {"obstacle": why}


# ---- under pasta-preload ----


@pytest.fixture
def profile(built: Path, tmp_path: Path, pasta_preload: Any) -> Callable[..., Any]:
    def run(*options: str, nvml: dict[str, str] | None = None, **fake: str) -> Any:
        (tmp_path / "commands").write_text("launch 51\n")
        return pasta_preload(
            built / "gpu" / "program",
            options=("-t", "roofline", "--set", "probes.sm=90", "-f", "-o", "run", *options),
            environment={
                **fake_gpu.environment(built / "gpu"), **environment(built, tmp_path, **fake),
                **{f"FAKE_NVML_{name}": value for name, value in (nvml or {}).items()},
            },
            stdin=(tmp_path / "commands").open(),
        )  # fmt: skip

    return run


def roofs(done: Any) -> dict[str, tuple[float, str]]:
    table = pq.read_table(done.directory / "run" / "results" / "roofline" / "roofs.parquet")
    return {row["roof"]: (row["rate"], row["how"]) for row in table.to_pylist()}


@pytest.mark.slow
def test_roofs_are_measured_once(profile: Callable[..., Any], tmp_path: Path) -> None:
    """By the first run of a tool that asks for them; the program does not notice."""
    rates = {
        each.roof: each.work * each.blocks * MULTIPROCESSORS / ITERATION_S for each in kernels(90)
    }
    for said in (SAID, ""):
        done = profile()
        assert (done.exit_status, done.stdout) == (7, "done\n")
        assert done.stderr.startswith(said) and ("measuring" in done.stderr) == bool(said)
        assert roofs(done) == {
            "memory": (pytest.approx(rates[COPY], rel=1e-5), "measured"),
            "L2": (pytest.approx(rates["L2"], rel=1e-5), "measured"),
        }
        manifest = json.loads((done.directory / "run" / "run.json").read_text())
        assert manifest["roofs"][fake_nvml.uuid(0)]["float32"] == pytest.approx(
            rates["float32"], rel=1e-5
        )
    assert (tmp_path / "measured").read_text() == f"{fake_nvml.uuid(0)}\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "nvml", "fake", "said"),
    [
        (["--set", "run.measure-roofs=false"], {}, {}, ""),
        (
            ["--set", "tool.roofline.memory_roof=4TB", "--set", "tool.roofline.compute_roof=1"],
            {}, {}, "",
        ),
        ([], {"UTILIZATION": "75"}, {}, f"pasta: roofs of {NAME} were not measured: it is busy\n"),
        (
            [], {"MIG": "1"}, {},
            f"pasta: roofs of {NAME} were not measured: it is partitioned (MIG)\n",
        ),
        (
            [], {}, {"FAIL": "cuLaunchKernel"},
            f"{SAID}pasta: roofs of {NAME} were not measured: cuLaunchKernel failed with 1\n",
        ),
    ],
    ids=["setting", "options", "busy", "partitioned", "failing"],
)  # fmt: skip
def test_without_measured_roofs(
    profile: Callable[..., Any], options: list[str], nvml: Any, fake: Any, said: str
) -> None:
    """The program runs nevertheless, and one line says why."""
    done = profile(*options, nvml=nvml, **fake)
    assert (done.exit_status, done.stdout) == (7, "done\n")
    assert "".join(re.findall(r"^pasta: .*roofs of .*\n", done.stderr, re.MULTILINE)) == said
    assert "measured" not in {how for _, how in roofs(done).values()}


@pytest.mark.slow
def test_two_devices_are_measured_side_by_side(profile: Callable[..., Any], tmp_path: Path) -> None:
    done = profile(nvml={"DEVICES": "2"})
    assert done.stderr.startswith(SAID)
    measured = (tmp_path / "measured").read_text().splitlines()
    assert sorted(measured) == [fake_nvml.uuid(0), fake_nvml.uuid(1)]


@pytest.mark.slow
def test_verb(built: Path, tmp_path: Path) -> None:
    """It measures again, and keeps the rates."""
    command = [*own_python("pasta.cli.main"), "doctor", "--roofs"]
    variables = {**os.environ, **environment(built, tmp_path)}
    for _ in range(2):
        done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stderr) == (0, SAID)
        assert re.search(rf"^{NAME}  memory: [\d,]+ GB/s$", done.stdout, re.MULTILINE)
        assert re.search(rf"^{NAME}  bfloat16 matrix: [\d,]+ GFLOP/s$", done.stdout, re.MULTILINE)
    assert (tmp_path / "measured").read_text() == 2 * f"{fake_nvml.uuid(0)}\n"
    assert [*(built / "gpu" / "cache" / "pasta" / "roofs").glob("*.json")]


def test_damaged_caches_are_ignored(tmp_path: Path) -> None:
    device = SimpleNamespace(uuid="GPU-1", driver="580.1")
    path = tmp_path / "GPU-1.json"
    good = {"version": 1, "driver": "580.1", "rates": {"memory": 4e12}}
    for content in (
        "", "[]", "{}", json.dumps({**good, "rates": {}}), json.dumps({**good, "driver": "570"}),
        json.dumps({**good, "rates": {"memory": "fast"}}),
        json.dumps({**good, "rates": {"memory": -1}}), json.dumps({**good, "rates": [1]}),
    ):  # fmt: skip
        path.write_text(content)
        assert stored(tmp_path, device) is None
    path.write_text(json.dumps(good))
    assert stored(tmp_path, device) == {"memory": 4e12}
