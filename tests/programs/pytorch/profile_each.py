"""Runs programs one after the other, each a profiled block; prints their findings, as JSON lines.

pasta-preload -c torch --profile-from-start off -- python profile_each.py PROGRAM...
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import runpy
import sys
from dataclasses import asdict

import torch

import pasta
from pasta.run.results import ranked, read_results

sys.path.append(os.path.join(os.path.dirname(__file__), *[".."] * 3, "examples", "torch"))
import torch_refacc  # noqa: F401  the device "refacc" of the programs

#: Times per operator are means: on a machine that pauses for a second, 9 us became 50.
SETTINGS = {"operators.short": "250us"}


def main() -> None:
    out = os.environ.get("FAULTS_OUT")
    for path in sys.argv[1:]:
        name = os.path.splitext(os.path.basename(path))[0]
        torch.manual_seed(0)
        torch.set_num_threads(1)  # times are to depend on the program alone
        where = {"out": f"{out}/{name}"} if out else {}
        with (
            pasta.profile(config="torch", settings=SETTINGS, **where) as run,
            contextlib.redirect_stdout(io.StringIO()),
        ):
            runpy.run_path(path, run_name="__main__")
        found = [
            {"tool": tool, **asdict(each)}
            for tool, each in ranked(read_results(run.path / "results"))
        ]
        print(json.dumps({"program": path, "findings": found}), flush=True)


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    # PyTorch 2.13 can abort while Python finalizes, where its threads still drop graphs
    os._exit(0)
