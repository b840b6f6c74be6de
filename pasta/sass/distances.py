"""Distances between instructions along the control flow, in cycles of issue."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Sequence

from pasta.sass.control_flow import ControlFlow

#: Cycles beyond which nothing is looked for.
MAX_DISTANCE = 1 << 16


def distances_back(
    flow: ControlFlow,
    stall: Sequence[int],
    index: int,
    *,
    ends: Callable[[int], bool] | None = None,
    wanted: Collection[int] | None = None,
) -> dict[int, int]:
    """Instructions that may be executed before `index`, with the length of the shortest path.

    `stall`: cycles from each instruction to the next. The length is the sum of these from the
    earlier instruction to `index`. `ends`: instructions behind which a path is not followed.
    `wanted`: nothing is looked for when these are found.
    """
    missing = None if wanted is None else set(wanted)
    found: dict[int, int] = {}
    block = flow.block_of(index)
    queue = [(0, block, index)]  # cycles from the begin of the rest of the block to `index`
    seen: set[int] = set()
    while queue:
        length, block, at = heapq.heappop(queue)
        is_whole = at == flow.starts[block + 1]
        if is_whole:
            if block in seen:
                continue
            seen.add(block)
        stopped = False
        while at > flow.starts[block]:
            at -= 1
            length += stall[at]
            if at not in found and length < MAX_DISTANCE:
                found[at] = length
                if missing is not None:
                    missing.discard(at)
                    if not missing:
                        return found
            if length >= MAX_DISTANCE or (ends is not None and ends(at)):
                stopped = True
                break
        if not stopped:
            for each in flow.predecessors[block]:
                if each not in seen:
                    heapq.heappush(queue, (length, each, flow.starts[each + 1]))
    return found
