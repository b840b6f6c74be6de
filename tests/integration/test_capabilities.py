"""Claimed capabilities of sources against their records."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import pasta
from pasta import abi
from pasta.capabilities import CAPABILITIES
from tests.integration.test_nvidia_source import Play, built, play
from tests.integration.test_refacc_source import NATIVE, Recorded, run
from tests.support.capabilities import Tables, disagreements

__all__ = ["built", "play"]  # fixtures

DEMOS = ("vadd", "gemm", "streams", "graph 2", "memory", "accesses cluster contexts",
         "managed 64 2")  # fmt: skip
SCRIPTS = ("context", "memory", "peer", "launches", "graph", "events", "managed")
#: Source of device names, which the API does not provide.
DRIVER = Path("/proc/driver/nvidia")


@pytest.fixture(scope="module")
def of_refacc(tmp_path_factory: pytest.TempPathFactory) -> list[Tables]:
    streams = []
    for demo in DEMOS:
        session = tmp_path_factory.mktemp("session")
        (session / "rings").mkdir()
        shim = f"session={session}\nschema={abi.SCHEMA}\ncollector=1\nring_max={1 << 28}\n"
        shim += "refacc.samples=16\n"
        run(*demo.split(), PASTA_SHIM=shim, LD_PRELOAD=str(NATIVE / "libpasta.so"))
        (ring,) = (session / "rings").iterdir()
        streams.append(Recorded(ring).tables)
    return streams


def test_refacc(of_refacc: list[Tables]) -> None:
    assert disagreements("refacc", of_refacc) == {}


def test_nvidia(play: Play) -> None:
    played = play(*SCRIPTS)
    assert played.status == 7
    unplayed = set() if DRIVER.exists() else {"device_name"}
    assert disagreements("nvidia_sanitizer", [played.tables], unplayed=unplayed) == {}


def test_false_claim_is_detected(of_refacc: list[Tables]) -> None:
    """In both directions: a missing field, an unclaimed kind."""
    without = [{kind: records.copy() for kind, records in tables.items()} for tables in of_refacc]
    for tables in without:
        if "kernel_launch" in tables:
            tables["kernel_launch"]["registers"] = np.iinfo(np.uint16).max
    without[0]["uvm_thrashing"] = np.zeros(1, abi.dtype("uvm_thrashing"))
    assert disagreements("refacc", without) == {
        "registers": "claimed, and in no record",
        "uvm_thrashing": "in some record, and not claimed",
    }
    assert disagreements("refacc", of_refacc, unplayed={"sync"}) == {"sync": "played after all"}


def test_names_match_the_header() -> None:
    assert set(CAPABILITIES) >= {"kernel_launch", "accesses", "registers"}
    for name, each in CAPABILITIES.items():
        assert each.kind in abi.KINDS, name
        if each.field is not None:
            assert each.field in (abi.dtype(each.kind).names or ()), name


@pytest.mark.main
def test_truncated_run_has_its_source(pasta_preload, demo) -> None:
    run = pasta_preload(demo("vadd")).run
    whole = pasta.load(run.path).capabilities
    assert whole.sources == ("refacc",)
    (run.path / "run.json").unlink()
    assert pasta.load(run.path).capabilities == whole
