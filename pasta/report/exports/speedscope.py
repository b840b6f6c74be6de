"""Stacks for speedscope.app."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO

from pasta.report.exports.base import FileExport, Request
from pasta.report.weights import WEIGHTS

if TYPE_CHECKING:
    from pasta.report.stacks import Call, CallTree
    from pasta.report.weights import Weight


_UNITS = {"ns": "nanoseconds", "bytes": "bytes", "count": "none"}


class Speedscope(FileExport):
    """Stacks for speedscope.app."""

    name = "speedscope"
    help = "write stacks for speedscope.app"
    weighted = True

    def writer(self, request: Request) -> Callable[[BinaryIO], object]:
        """Returns a function that writes the profile. Raises RunError."""
        from pasta.report.stacks import read_call_tree

        run, tree = request.run, read_call_tree(request.run)
        weight = tree.chosen(request.weight, run.path)
        return partial(write_speedscope, tree, weight, run.path.resolve().name)


def write_speedscope(tree: CallTree, weight: Weight, name: str, file: BinaryIO) -> None:
    """Writes a file for speedscope.app: a profile for each recorded weight, `weight` first.

    The format: https://github.com/jlfwong/speedscope/blob/main/src/lib/file-format-spec.ts
    """
    frames: dict[Call, int] = {}
    order = [weight, *(each for each in tree.present if each != weight)]
    profiles = []
    for each in order:
        own = tree.weights[each]
        nodes = [node for node in range(len(tree)) if own[node] > 0]
        samples = [
            [frames.setdefault(call, len(frames)) for call in tree.path(node)] for node in nodes
        ]
        what, unit = WEIGHTS[each]
        profiles.append(
            {
                "type": "sampled",
                "name": what,
                "unit": _UNITS[unit],
                "startValue": 0,
                "endValue": sum(own[node] for node in nodes),
                "samples": samples,
                "weights": [own[node] for node in nodes],
            }
        )
    document = {
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "exporter": "PASTA",
        "name": name,
        "activeProfileIndex": 0,
        "shared": {"frames": [_frame(call) for call in frames]},
        "profiles": profiles,
    }
    file.write(json.dumps(document, separators=(",", ":")).encode("utf-8"))


def _frame(call: Call) -> dict[str, Any]:
    place = {"file": call.file, "line": call.line} if call.file else {}
    return {"name": call.name or "(unnamed)", **place}


EXPORT = Speedscope()
