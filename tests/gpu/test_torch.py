"""PyTorch on a GPU: every launch has an operator, and the peak is torch's own."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from .conftest import Ran, Run

pytestmark = pytest.mark.skipif(not find_spec("torch"), reason="torch is not installed")

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
GPT = (str(EXAMPLES / "torch" / "gpt_train.py"), "--steps", "3", "--batch", "2", "--length", "128",
       "--layers", "3", "--peak")  # fmt: skip
RESNET = (str(EXAMPLES / "cuda" / "resnet18_train.py"), "--steps", "3", "--batch", "8",
          "--size", "64")  # fmt: skip


def rows(run: Ran, tool: str, table: str) -> list[dict[str, object]]:
    path = run.directory / "results" / tool / f"{table}.parquet"
    found: list[dict[str, object]] = pq.read_table(path).to_pylist()
    return found


def same(alone: Ran, run: Ran) -> None:
    assert (run.status, run.stdout) == (0, alone.stdout), run.stderr
    assert len(run.stdout.split()) == 3


@pytest.mark.parametrize(
    "command",
    [RESNET, GPT, (*GPT, "--amp"), (*GPT, "--checkpoint"), (*GPT, "--compile")],
    ids=["resnet18", "gpt", "amp", "checkpoint", "compile"],
)
def test_losses_do_not_change_and_launches_have_operators(
    native: Run, profiled: Run, python: str, command: tuple[str, ...]
) -> None:
    alone = native(python, *command)
    run = profiled(python, *command, options=("-c", "torch"))
    same(alone, run)
    table = rows(run, "operators", "operators")
    launches = sum(int(row["launches"]) for row in table)
    of_none = sum(int(row["launches"]) for row in table if row["operator"] == "(no operator)")
    recorded = run.table("kernel_launch", ["ordinal"])
    assert launches == recorded.num_rows > 100
    assert of_none <= 0.005 * launches
    backward = [row for row in table if row["phase"] == "backward"]
    assert sum(int(row["launches"]) for row in backward) > 0.2 * launches
    modules = rows(run, "operators", "modules")
    placed = sum(int(row["launches"]) for row in modules if row["module"] != "(no module)")
    assert placed > 0.3 * launches


def test_the_peak_is_torchs(native: Run, profiled: Run, python: str) -> None:
    run = profiled(python, *GPT, options=("-c", "torch"))
    (told,) = re.findall(r"peak_bytes=(\d+)", run.stderr)
    peak = [row for row in rows(run, "tensors", "peak") if row["device"] == 0]
    assert sum(int(row["bytes"]) for row in peak) == int(told)
    categories = {
        row["category"]: row for row in rows(run, "tensors", "categories") if row["device"] == 0
    }
    assert {"parameter", "gradient", "optimizer state", "activation"} <= set(categories)
    known = [row for row in peak if row["operator"]]
    assert sum(int(row["bytes"]) for row in known) >= 0.995 * int(told)
    # GPT-2's width and vocabulary, three layers: embeddings, blocks, norm and head, of four bytes
    width, vocabulary, length, layers = 768, 50_304, 128, 3
    block = 12 * width * width + 13 * width
    parameters = 2 * vocabulary * width + length * width + layers * block + 2 * width
    stored = sum(int(row["storage"]) for row in peak if row["category"] == "parameter")
    assert stored == 4 * parameters
    state = sum(int(row["storage"]) for row in peak if row["category"] == "optimizer state")
    assert state >= 8 * parameters
