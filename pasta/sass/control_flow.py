"""Control-flow graphs of functions: basic blocks, calls within their section, exits.

If the code does not determine a target, all possible targets are taken: an indirect branch without
a table goes to every block that nothing else reaches. A call to another section, or through a
register, continues behind it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, NamedTuple

from pasta.lazy import np
from pasta.sass.cubin import INSTRUCTION_BYTES
from pasta.sass.forms import CONDITIONAL, FALLS
from pasta.sass.instructions import Flow

if TYPE_CHECKING:
    from pasta.sass.disassembler import Code


_FLOWS: Final = tuple(Flow)
_LEAVES: Final = (Flow.EXIT, Flow.RETURN)


class ControlFlow(NamedTuple):
    """Basic blocks: block i has the instructions `starts[i]` to `starts[i + 1]`, which ends with
    their number.

    `entries`: blocks where execution begins, or a function called from elsewhere may. `exits`:
    blocks that may end or leave the function. `indirect`: instructions whose targets are not known.
    """

    starts: list[int]
    successors: list[tuple[int, ...]]
    predecessors: list[tuple[int, ...]]
    entries: tuple[int, ...]
    exits: tuple[int, ...]
    indirect: tuple[int, ...]

    def block_of(self, index: int) -> int:
        """The block of an instruction."""
        return bisect_right(self.starts, index, 0, len(self.starts) - 1) - 1

    def block(self, index: int) -> range:
        """Instructions of a block."""
        return range(self.starts[index], self.starts[index + 1])


class _Transfer(NamedTuple):
    """An instruction that may not continue with the next one."""

    at: int
    flow: Flow
    falls: bool
    guarded: bool
    targets: tuple[int, ...]  # within the section
    is_known: bool


def build_control_flow(code: Code) -> ControlFlow:
    """The control-flow graph of a code section, with the device functions in it."""
    count = len(code.form)
    transfers = list(_transfers(code, count))
    begins = {at // INSTRUCTION_BYTES for at in code.symbols}
    leaders = {0, *begins}
    for each in transfers:
        leaders.add(each.at + 1)
        leaders.update(each.targets)
    starts = sorted(start for start in leaders if 0 <= start < count)
    block_at = {start: block for block, start in enumerate(starts)}
    last = {each.at: each for each in transfers}
    successors: list[list[int]] = []
    for block in range(len(starts)):
        end = starts[block + 1] if block + 1 < len(starts) else count
        successors.append(_successors(last.get(end - 1), end, block_at))
    called = {block_at[start] for start in begins if start in block_at}
    starts.append(count)
    inside = _link_calls(starts, successors, last, block_at)
    entries = {0, *(called - inside)} if count else set()
    indirect = [each.at for each in transfers if not each.is_known]
    if any(last[index].flow == Flow.INDIRECT for index in indirect):
        _link_indirect(starts, successors, last, indirect, entries)
    predecessors: list[list[int]] = [[] for _ in successors]
    for block, following in enumerate(successors):
        for target in dict.fromkeys(following):
            predecessors[target].append(block)
    exits = [
        block for block, following in enumerate(successors)
        if not following or _leaves(last.get(starts[block + 1] - 1))
    ]  # fmt: skip
    return ControlFlow(
        starts,
        [tuple(dict.fromkeys(each)) for each in successors],
        [tuple(each) for each in predecessors],
        tuple(sorted(entries)),
        tuple(exits),
        tuple(indirect),
    )


def _transfers(code: Code, count: int) -> Iterable[_Transfer]:
    flows = code.forms.flow(code.form)
    places = np.flatnonzero(flows)
    forms = code.form[places]
    for index, form, flow, flags in zip(
        places.tolist(),
        forms.tolist(),
        map(_FLOWS.__getitem__, flows[places].tolist()),
        code.forms.flags[forms].tolist(),
        strict=True,
    ):
        at = index * INSTRUCTION_BYTES
        targets: tuple[int, ...] = ()
        is_known = flow in _LEAVES
        delta = code.forms.deltas.get(form)
        if at in code.references:
            is_known = True  # another section
        elif delta is not None and flow in (Flow.BRANCH, Flow.CALL):
            targets, is_known = ((at + delta) // INSTRUCTION_BYTES,), True
        elif at in code.jumps:
            targets = tuple(each // INSTRUCTION_BYTES for each in code.jumps[at])
            is_known = True
        if targets and (min(targets) < 0 or max(targets) >= count):
            targets = tuple(each for each in targets if 0 <= each < count)
        yield _Transfer(
            index, flow, bool(flags & FALLS), bool(flags & CONDITIONAL), targets, is_known
        )


def _successors(end: _Transfer | None, following: int, block_at: dict[int, int]) -> list[int]:
    next_block = [block_at[following]] if following in block_at else []
    if end is None:
        return next_block
    if end.flow == Flow.CALL:
        return [] if end.targets else next_block  # linked with its returns later
    targets = [block_at[each] for each in end.targets]
    return targets + (next_block if end.falls else [])


def _leaves(end: _Transfer | None) -> bool:
    return end is not None and end.flow in _LEAVES


def _link_calls(
    starts: list[int],
    successors: list[list[int]],
    last: dict[int, _Transfer],
    block_at: dict[int, int],
) -> set[int]:
    """Edges from calls to functions of the section, and from their returns to behind the calls.

    Returns the called entries. A guarded call may also be passed over.
    """
    calls: dict[int, list[int]] = {}
    for block in range(len(successors)):
        end = last.get(starts[block + 1] - 1)
        if end is not None and end.flow == Flow.CALL and end.targets:
            calls.setdefault(block_at[end.targets[0]], []).append(block)
    behind = {
        block: block_at.get(starts[block + 1]) for blocks in calls.values() for block in blocks
    }
    links: list[tuple[int, int]] = []
    for entry, blocks in calls.items():
        returns = _returns(entry, starts, successors, last, behind)
        for block in blocks:
            links.append((block, entry))
            target = behind[block]
            if target is None:
                continue
            links += ((each, target) for each in returns)
            if not returns or last[starts[block + 1] - 1].guarded:
                links.append((block, target))
    for source, target in links:
        successors[source].append(target)
    return set(calls)


def _returns(
    entry: int,
    starts: list[int],
    successors: list[list[int]],
    last: dict[int, _Transfer],
    behind: dict[int, int | None],
) -> list[int]:
    """Blocks of a function that return; calls in it are passed over."""
    seen, open_, found = {entry}, [entry], []
    while open_:
        block = open_.pop()
        end = last.get(starts[block + 1] - 1)
        if end is not None and end.flow == Flow.RETURN:
            found.append(block)
        following = list(successors[block])
        if (over := behind.get(block)) is not None:
            following.append(over)
        for each in following:
            if each not in seen:
                seen.add(each)
                open_.append(each)
    return found


def _link_indirect(
    starts: list[int],
    successors: list[list[int]],
    last: dict[int, _Transfer],
    indirect: list[int],
    entries: set[int],
) -> None:
    """Edges from indirect branches without a table to all blocks that have no other predecessor."""
    reached = {each for following in successors for each in following} | entries
    targets = [block for block in range(len(successors)) if block not in reached]
    branches = {index for index in indirect if last[index].flow == Flow.INDIRECT}
    for block, following in enumerate(successors):
        if starts[block + 1] - 1 in branches:
            following += targets
