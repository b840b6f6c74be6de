"""Names of run directories."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from pasta.errors import ConfigError
from pasta.run.naming import (
    Rank,
    check_root,
    check_template,
    expand,
    is_shared,
    joined,
    name_in_root,
    place_in_job,
    rank_of,
    variables_of,
)


def name(template: str, **environment: str) -> str:
    path = expand(template, program="/opt/bin/app", pid=42, started=0, environment=environment)
    return str(path)


def test_placeholders() -> None:
    assert name("out/%n-%p") == "out/app-42"
    assert name("%h") == socket.gethostname()
    assert name("r%r", OMPI_COMM_WORLD_RANK="3") == "r3"
    assert name("r%r") == "r0"
    assert name("j%q{JOB}-%q{NONE}", JOB="7") == "j7-"
    assert name("100%%") == "100%"
    assert name("%t").startswith("1970") or name("%t").startswith("1969")


@pytest.mark.parametrize("template", ["%z", "a%", "%q", "%q{open"])
def test_unknown_placeholder_is_rejected(template: str) -> None:
    with pytest.raises(ConfigError, match="unknown placeholder"):
        check_template(template)


def test_rank_prefers_the_active_job_launcher() -> None:
    assert rank_of({"RANK": "2", "SLURM_PROCID": "9"}) == 2
    assert rank_of({"SLURM_PROCID": "9"}) == 9
    assert rank_of({"RANK": "none"}) is None
    assert rank_of({}) is None


def test_variables_of_a_template() -> None:
    assert variables_of("a/%q{JOB}/%p-%q{STEP}") == ["JOB", "STEP"]


@pytest.mark.parametrize(
    ("environment", "place"),
    [
        ({"RANK": "5", "LOCAL_RANK": "1", "WORLD_SIZE": "8", "SLURM_PROCID": "1"}, Rank(5, 1, 8)),
        (
            {
                "OMPI_COMM_WORLD_RANK": "3",
                "OMPI_COMM_WORLD_LOCAL_RANK": "0",
                "OMPI_COMM_WORLD_SIZE": "4",
            },
            Rank(3, 0, 4),
        ),
        ({"PMI_RANK": "2", "PMI_SIZE": "4", "MPI_LOCALRANKID": "2"}, Rank(2, 2, 4)),
        (
            {"PMIX_RANK": "1", "SLURM_PROCID": "1", "SLURM_LOCALID": "0", "SLURM_NTASKS": "2"},
            Rank(1, 0, 2),
        ),
        ({"PMIX_RANK": "1", "SLURM_PROCID": "0", "SLURM_NTASKS": "2"}, Rank(1)),
        (
            {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_NTASKS": "4"},
            Rank(0, None, 2),
        ),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_JOB_ID": "7"}, None),
        (
            {
                "SLURM_PROCID": "3",
                "SLURM_NTASKS": "4",
                "SLURM_JOB_ID": "7",
                "SLURM_STEP_ID": "0",
            },
            Rank(3, None, 4),
        ),
        ({"PBS_VNODENUM": "1", "PBS_TASKNUM": "9"}, Rank(1)),
        ({"RANK": "-1", "WORLD_SIZE": "4"}, None),
        ({"RANK": "\u0663"}, None),
    ],
    ids=[
        "torchrun", "open-mpi", "mpich", "pmix-of-srun", "pmix-alone", "srun", "batch-script",
        "step", "pbsdsh", "negative", "not-ascii",
    ],
)  # fmt: skip
def test_place_in_a_job(environment: dict[str, str], place: Rank | None) -> None:
    assert place_in_job(environment) == place


def test_rank_variables_are_not_mixed() -> None:
    """The process's own variables, otherwise its pasta-preload's; never a mixture."""
    launcher = {"SLURM_PROCID": "1", "SLURM_NTASKS": "2", "JOB": "a"}
    own = {"RANK": "6", "JOB": "b"}
    assert joined(own, launcher) == {"RANK": "6", "JOB": "b"}
    assert place_in_job(joined({}, launcher)) == Rank(1, None, 2)


def test_names_in_a_root() -> None:
    host = socket.gethostname().partition(".")[0]
    assert name_in_root("/opt/bin/app", 42, None) == f"app-{host}-42"
    assert name_in_root("/opt/bin/app", 42, 3) == f"rank-0003-{host}-42"
    assert name_in_root("/opt/.hidden" + "x" * 99, 1, None) == f"hidden{'x' * 34}-{host}-1"


def test_templates_shared_by_ranks() -> None:
    many, alone = Rank(0, 0, 4), Rank(0, 0, 1)
    shared = [
        template
        for template in ("out", "%n", "%h/%t", "%q{JOB}", "%p", "out/%r", "%q{SLURM_PROCID}")
        if is_shared(template, many)
    ]
    assert shared == ["out", "%n", "%h/%t", "%q{JOB}"]
    assert not is_shared("out", alone) and not is_shared("out", None)


def test_invalid_roots(tmp_path: Path) -> None:
    check_root(f"{tmp_path}/new/%q{{JOB}}", "--root")
    (tmp_path / "file").write_text("")
    (tmp_path / "run.json").write_text("{}")
    for template, text in {
        "out/%r": "%r differs between processes",
        "%z": "unknown placeholder",
        f"{tmp_path}/file": "is not a directory",
        f"{tmp_path}/file/out": "is not a directory",
        str(tmp_path): "is a run directory: use another directory with --root DIR",
    }.items():
        with pytest.raises(ConfigError, match=text):
            check_root(template, "--root")
