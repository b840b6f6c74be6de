"""Names of run directories."""

from __future__ import annotations

import socket

import pytest

from pasta.errors import ConfigError
from pasta.run.naming import check_template, expand, rank_of, variables_of


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
def test_unknown_placeholder_is_refused(template: str) -> None:
    with pytest.raises(ConfigError, match="unknown placeholder"):
        check_template(template)


def test_rank_prefers_the_job_launcher_that_is_there() -> None:
    assert rank_of({"RANK": "2", "SLURM_PROCID": "9"}) == 2
    assert rank_of({"SLURM_PROCID": "9"}) == 9
    assert rank_of({"RANK": "none"}) is None
    assert rank_of({}) is None


def test_variables_of_a_template() -> None:
    assert variables_of("a/%q{JOB}/%p-%q{STEP}") == ["JOB", "STEP"]
