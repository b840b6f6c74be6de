"""A backend in another package, unknown to PASTA's own code, works with all of PASTA."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.support.packages import install_metadata
from tests.support.places import PROGRAMS, ROOT
from tests.support.preload import INSTALLED, Done, Preload, base_environment
from tests.support.session import compile_c

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(INSTALLED, reason="the package is put on the path of the checkout"),
]
PACKAGE = PROGRAMS / "made_up_backend"
PROBING = """
from pasta.probes import Counter, probe
from pasta.tool import Result, Tool


class Counts(Tool):
    accesses = Counter(by="kernel")

    @probe.global_memory
    def count(access, maps):
        maps.accesses.add(1)

    def result(self):
        return Result("counted")
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A directory with the package as pip installs it."""
    package = tmp_path / "site" / "made_up_backend"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text((PACKAGE / "__init__.py").read_text())
    compile_c(package / "libmade_up_source.so", [PACKAGE / "source.c"], "-shared", "-fPIC")
    entry_points = "[pasta.backends]\nmade_up = made_up_backend:BACKEND\n"
    install_metadata(package.parent, "made-up-backend", entry_points)
    return package.parent


@pytest.fixture
def program(tmp_path: Path) -> Path:
    return compile_c(tmp_path / "program", [PACKAGE / "program.c"], "-rdynamic")


def entry(name: str, site: Path, *arguments: str) -> list[str]:
    code = f"import sys; sys.path[:0] = [{str(ROOT)!r}, {str(site)!r}]; import pasta_entry; "
    return [sys.executable, "-I", "-c", f"{code}pasta_entry.{name}()", *arguments]


def profiled(preload: Preload, site: Path, program: Path, *options: str) -> Done:
    done = subprocess.run(
        [*entry("pasta_preload", site), *options, "--", program],
        capture_output=True, text=True, cwd=preload.directory, env=base_environment(), timeout=45,
    )  # fmt: skip
    return Done(done.returncode, done.stdout, done.stderr, preload.directory, 0)


def test_events_and_settings(pasta_preload: Preload, site: Path, program: Path) -> None:
    done = profiled(
        pasta_preload, site, program, "--set", "made_up.prefix=my_", "--backend", "made_up",
        "-t", "kernel_freq,copies",
    )  # fmt: skip
    assert (done.exit_status, done.target_stderr) == (7, "")
    run = done.run
    assert run.launches == 3
    assert run.manifest["sources"] == {"made_up": "1.0"}
    assert run.manifest["devices"] == {"0": "Made Up 3000"}
    assert run.manifest["config"]["made_up_prefix"] == "my_"
    kernels = pq.read_table(run.path / "results" / "kernel_freq" / "kernels.parquet")
    counts = zip(kernels["kernel"].to_pylist(), kernels["launches"].to_pylist(), strict=True)
    assert dict(counts) == {"my_scale": 2, "my_sum": 1}
    assert "4,096 bytes" in run.report or "4 KiB" in run.report
    assert "not given by made_up: device times of kernels" in " ".join(run.report.split())


def test_tools_with_probes_are_not_available_without_accesses(
    pasta_preload: Preload, site: Path, program: Path, tmp_path: Path
) -> None:
    (tmp_path / "counts.py").write_text(PROBING)
    done = profiled(
        pasta_preload, site, program, "--backend", "made_up", "-t", str(tmp_path / "counts.py")
    )
    assert done.run.launches == 3
    assert "not available on this backend: made_up does not provide memory accesses" in " ".join(
        done.run.report.split()
    )


def test_coverage_is_unknown_without_probes(
    pasta_preload: Preload, site: Path, program: Path
) -> None:
    """It claims accesses, but has no `probes` that report their coverage."""
    package = site / "made_up_backend" / "__init__.py"
    package.write_text(package.read_text().replace('names("context', 'names("accesses context'))
    done = profiled(pasta_preload, site, program, "--backend", "made_up", "-t", "access_count")
    coverage = pq.read_table(done.run.path / "results" / "access_count" / "coverage.parquet")
    assert set(coverage["coverage"].to_pylist()) == {"unknown"}
    assert "coverage unknown" in " ".join(done.run.report.split())


def test_backend_runs_only_if_named(pasta_preload: Preload, site: Path, program: Path) -> None:
    for options in ((), ("--backend", "none"), ("--backend", "nvidia")):
        done = profiled(pasta_preload, site, program, *options)
        assert (done.exit_status, done.runs) == (3, []), options
    done = profiled(pasta_preload, site, Path("/bin/true"), "--backend", "made_up")
    assert "nothing was recorded: --backend made_up, but no program of made-up" in done.stderr


def test_doctor_and_capabilities(site: Path, tmp_path: Path) -> None:
    environment = base_environment()
    doctor = subprocess.run(
        entry("pasta", site, "doctor", "--no-run"), capture_output=True, text=True,
        env={**environment, "COLUMNS": "300"},
    )  # fmt: skip
    assert "Made Up driver" in doctor.stdout and "version 1 at" in doctor.stdout
    code = (
        "from pasta.sources import Capabilities; made_up = Capabilities(('made_up',)); "
        "print(made_up.accelerators, 'kernel_launch' in made_up, 'registers' in made_up)"
    )
    environment["PYTHONPATH"] = f"{site}:{environment['PYTHONPATH']}"
    shown = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True
    )
    assert shown.stdout == "('made_up',) True False\n"


def test_unloadable_package(site: Path) -> None:
    (site / "made_up_backend" / "__init__.py").write_text("raise ValueError('no such device')")
    doctor = subprocess.run(
        entry("pasta", site, "doctor", "--no-run"), capture_output=True, text=True,
        env={**base_environment(), "COLUMNS": "300"},
    )  # fmt: skip
    assert "backend made_up" in doctor.stdout and "no such device" in doctor.stdout
    chosen = subprocess.run(
        [*entry("pasta_preload", site), "--backend", "made_up", "true"],
        capture_output=True, text=True, env=base_environment(),
    )  # fmt: skip
    assert chosen.returncode == 2
    assert "made_up: made_up_backend:BACKEND cannot be loaded: ValueError" in chosen.stderr
