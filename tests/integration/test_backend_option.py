"""`--backend` selects the accelerators that are profiled."""

from __future__ import annotations

import pytest

VENDORS = {"nvidia": "CUDA_INJECTION64_PATH", "refacc": "REFACC_INJECTION_PATH"}


@pytest.mark.main
def test_backend_used_by_the_program(pasta_preload, demo) -> None:
    done = pasta_preload(demo("vadd"), options=("--backend", "refacc"))
    assert done.run.launches == 1
    assert done.run.manifest["config"]["backend"] == "refacc"


@pytest.mark.parametrize("backend", ["nvidia", "none"])
def test_backend_not_used_by_the_program(pasta_preload, demo, backend: str) -> None:
    done = pasta_preload(demo("vadd"), options=("--backend", backend))
    assert (done.exit_status, done.target_stderr, done.runs) == (0, "", [])
    assert "correct" in done.stdout
    expected = ["nothing was recorded: --backend nvidia"] if backend == "nvidia" else []
    assert [line.partition(",")[0] for line in done.lines] == expected


@pytest.mark.parametrize("backend", ["auto", "nvidia", "refacc", "none"])
def test_only_environment_variables_of_the_backend(pasta_preload, backend: str) -> None:
    printed = pasta_preload("env", options=("--backend", backend)).stdout
    for vendor, variable in VENDORS.items():
        assert (f"{variable}=" in printed) == (backend in ("auto", vendor)), variable
    assert "NVTX_INJECTION64_PATH=" in printed


def test_nested_preload_with_another_backend(pasta_preload, demo) -> None:
    """A nested pasta-preload removes the outer one's library from variables of unselected
    backends."""
    from tests.support.preload import cli

    inner = (*cli("pasta-preload"), "--backend", "nvidia", "--", "env")
    printed = pasta_preload(*inner).stdout
    assert "CUDA_INJECTION64_PATH=" in printed
    assert "REFACC_INJECTION_PATH=" not in printed


def test_backend_from_a_toml_file(pasta_preload, demo, tmp_path) -> None:
    (tmp_path / "none.toml").write_text('backend = "none"\n')
    assert pasta_preload(demo("vadd"), options=("-c", str(tmp_path / "none.toml"))).runs == []


def test_unknown_backend(pasta_preload) -> None:
    done = pasta_preload("true", options=("--backend", "intel"))
    assert done.exit_status == 2
    assert done.lines == [
        "--backend: backend = 'intel' is not one of auto, nvidia, amd, refacc, none"
    ]
