"""Shared code of GPU tests: the example programs, natively and under pasta-preload.

An example prints lines KEY=COUNT with --expect; `counts` computes the same keys from a run.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest

from tests.support.places import PROGRAMS, ROOT

EXAMPLES = ROOT / "examples" / "cuda"
HIP_EXAMPLES = EXAMPLES.with_name("hip")
ROCM = Path(os.environ.get("ROCM_PATH") or "/opt/rocm")
#: Test files for AMD devices; all others require NVIDIA's.
AMD = ("test_hip.py",)
KERNELS = PROGRAMS / "nvidia" / "accesses.cu"
CUDA = Path(os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH") or "/usr/local/cuda")
GRAPH, INTERNAL = 1, 4  # flags of a record
TIMEOUT = 300


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    mine = [item for item in items if here in item.path.parents]
    reasons = {"amd": no_amd_gpu(), "gpu": no_gpu()} if mine else {}
    for item in mine:
        marker = "amd" if item.path.name in AMD else "gpu"
        reason = reasons[marker]
        item.add_marker(getattr(pytest.mark, marker))
        if item.config.pluginmanager.hasplugin("timeout"):
            item.add_marker(pytest.mark.timeout(TIMEOUT))
        if reason:
            item.add_marker(pytest.mark.skip(reason=reason))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Append failures to the file PASTA_TEST_FAILURES: a pytest that is killed prints none."""
    file = os.environ.get("PASTA_TEST_FAILURES")
    if file and report.failed and not os.environ.get("PYTEST_XDIST_WORKER"):
        with open(file, "a") as failures:
            failures.write(f"{report.nodeid} ({report.when})\n{report.longreprtext}\n\n")


def no_gpu() -> str:
    """Why the tests cannot run here; empty if they can."""
    if not shutil.which("nvidia-smi"):
        return "no NVIDIA GPU: nvidia-smi was not found"
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True)
    if "GPU 0" not in listed.stdout:
        return f"no NVIDIA GPU: nvidia-smi -L says {(listed.stdout + listed.stderr).strip()!r}"
    return ""


def no_amd_gpu() -> str:
    """Why the tests of AMD cannot run here; empty if they can."""
    if not os.access("/dev/kfd", os.R_OK | os.W_OK):
        return "no AMD GPU: /dev/kfd does not exist or cannot be opened by this user"
    if not hipcc():
        return "no ROCm: hipcc was not found; set ROCM_PATH"
    return ""


def hipcc() -> str | None:
    return shutil.which(ROCM / "bin" / "hipcc") or shutil.which("hipcc")


@dataclass(frozen=True)
class Ran:
    """A finished program; `directory` is its run directory (none for a native run)."""

    status: int
    stdout: str
    stderr: str
    directory: Path

    def table(self, kind: str, columns: list[str] | None = None) -> Any:
        """All records of a kind as a pyarrow table; None if there are none."""
        parts = sorted((self.directory / "events").glob(f"{kind}-[0-9]*.parquet"))
        return ds.dataset([str(part) for part in parts]).to_table(columns) if parts else None

    def rows(self, kind: str, *columns: str) -> list[dict[str, Any]]:
        """All records of a kind, with the given columns or all."""
        table = self.table(kind, list(columns) or None)
        return [] if table is None else table.to_pylist()  # type: ignore[no-any-return]

    @cached_property
    def counts(self) -> Counts:
        return Counts(self)

    @property
    def expected(self) -> dict[str, int]:
        """The lines KEY=COUNT that the program printed."""
        lines = re.findall(r"^([a-z_.]+(?::\w+)?(?:@\d+)?)=(\d+)$", self.stdout, re.MULTILINE)
        return {key: int(count) for key, count in lines}


class Counts:
    """Records of a run by key: KIND[.graph | .blocks | .DETAIL[.bytes] | :NAME][@DEVICE], and
    then perhaps .at_least."""

    #: The column that DETAIL is a value of.
    DETAIL = {
        "memory_alloc": "memory",
        "memory_free": "memory",
        "memory_copy": "direction",
        "sync": "what",
    }

    def __init__(self, run: Ran) -> None:
        self.run = run

    def __getitem__(self, key: str) -> int:
        key, _, device = key.removesuffix(".at_least").partition("@")
        kind, _, rest = key.partition(".")
        kind, _, name = kind.partition(":")
        table = self.run.table(kind)
        if table is None:
            return 0
        flags = table["flags"].to_numpy()
        table = table.filter((flags & INTERNAL) == 0)
        if device:
            table = table.filter(pc.equal(table["device"], int(device)))
        if name:
            names = [text or "" for text in table["name"].to_pylist()]
            return sum(name in text for text in names)
        if rest == "graph":
            return int((table["flags"].to_numpy() & GRAPH != 0).sum())
        if rest == "blocks":
            axes = [table[f"grid_{axis}"].to_numpy().astype("u8") for axis in "xyz"]
            return int((axes[0] * axes[1] * axes[2]).sum())
        detail, _, column = rest.partition(".")
        if detail == "bytes":
            detail, column = "", "bytes"
        if detail:
            values = table[self.DETAIL[kind]].to_pylist()
            table = table.filter(pa.array([value == detail for value in values], pa.bool_()))
        return int(pc.sum(table[column]).as_py() or 0) if column else table.num_rows

    def check(self, expected: dict[str, int]) -> None:
        """Fails if a count differs from the expected one; shows all differences."""
        assert expected, "the program printed no expectation"
        found = {key: self[key] for key in expected}
        wrong = {
            key: f"{found[key]}, not {wanted}"
            for key, wanted in expected.items()
            if (found[key] < wanted if key.endswith(".at_least") else found[key] != wanted)
        }
        assert not wrong


Build = Callable[..., str]
Run = Callable[..., Ran]


@pytest.fixture(scope="session")
def example(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """Path of an example program, built with nvcc for this GPU."""
    directory = tmp_path_factory.mktemp("examples")

    def build(name: str, cudart: str = "shared") -> str:
        if name.endswith(".py"):
            return str(EXAMPLES / name)
        if not (CUDA / "bin" / "nvcc").exists() and not shutil.which("nvcc"):
            pytest.skip("nvcc was not found: install a CUDA toolkit, or set CUDA_HOME")
        out = directory / cudart
        nvcc = CUDA / "bin" / "nvcc"
        command = ["make", "-C", str(EXAMPLES), f"OUT={out}", f"CUDART={cudart}", f"CUDA={CUDA}"]
        command += [f"PYTHON={sys.executable}", name]
        command += [] if nvcc.exists() else [f"NVCC={shutil.which('nvcc')}"]
        done = subprocess.run(command, capture_output=True, text=True)
        if "cuDNN 9 was not found" in done.stderr:
            pytest.skip("cuDNN 9 was not found: pip install nvidia-cudnn-cu13")
        assert done.returncode == 0, done.stdout + done.stderr
        return str(out / name)

    return build


@pytest.fixture(scope="session")
def hip_example(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """Path of an example program, built with hipcc for this GPU."""
    out = tmp_path_factory.mktemp("hip")

    def build(name: str) -> str:
        command = ["make", "-C", str(HIP_EXAMPLES), f"OUT={out}", f"HIPCC={hipcc()}", name]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return str(out / name)

    return build


def built_with_nvcc(source: Path, directory: Path) -> str:
    """Path of the program, built for this GPU."""
    nvcc = CUDA / "bin" / "nvcc"
    compiler = str(nvcc) if nvcc.exists() else shutil.which("nvcc")
    if not compiler:
        pytest.skip("nvcc was not found: install a CUDA toolkit, or set CUDA_HOME")
    output = directory / source.stem
    command = [compiler, "-std=c++17", "-O2", "-lineinfo", "-arch=native", f"-I{EXAMPLES}"]
    done = subprocess.run(
        [*command, str(source), "-o", str(output)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return str(output)


@pytest.fixture(scope="session")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Path of programs/nvidia/accesses.cu, built with nvcc for this GPU."""
    return built_with_nvcc(KERNELS, tmp_path_factory.mktemp("accesses"))


def environment(extra: dict[str, str]) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.endswith("_INJECTION64_PATH")}
    return {**kept, **extra}


@pytest.fixture
def native(tmp_path: Path) -> Run:
    """Runs a program without PASTA."""

    def run(*command: str, **extra: str) -> Ran:
        done = subprocess.run(
            command, env=environment(extra), capture_output=True, text=True, timeout=TIMEOUT
        )
        return Ran(done.returncode, done.stdout, done.stderr, tmp_path / "native")

    return run


def script(name: str) -> str:
    """Path of a command of the installed PASTA."""
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    assert found, f"{name} was not found: install PASTA from the checkout"
    return found


@pytest.fixture
def profiled(tmp_path: Path) -> Run:
    """Runs a program under pasta-preload with `options`."""
    preload = script("pasta-preload")

    def run(*command: str, options: tuple[str, ...] = ("-t", "kernel_freq"), **extra: str) -> Ran:
        directory = tmp_path / "run"
        done = subprocess.run(
            [preload, *options, "-f", "-o", str(directory), "--", *command],
            env=environment(extra),
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
        )
        return Ran(done.returncode, done.stdout, done.stderr, directory)

    return run


@pytest.fixture(scope="session")
def python() -> str:
    """The interpreter for Python examples: the one that runs the tests."""
    return sys.executable
