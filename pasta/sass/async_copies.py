"""Asynchronous copies behind waits: cp.async in groups, and copies that an mbarrier counts."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from pasta.lazy import np

if TYPE_CHECKING:
    from pasta.sass.control_flow import ControlFlow
    from pasta.sass.disassembler import Code

_COPY, _COMMIT, _WAIT = "LDGSTS", "LDGDEPBAR", "DEPBAR"
_ARRIVE: Final = "ARRIVES"
#: Copies whose bytes an mbarrier counts.
_COUNTED: Final = ("UTMALDG", "UBLKCP")
#: Maximum number of open groups, for the search.
_MAX_GROUPS: Final = 16


class AsyncCopies:
    """The copies of a function, and which of them a wait is for."""

    def __init__(self, code: Code, flow: ControlFlow) -> None:
        self._code = code
        self._flow = flow
        roots = [name.partition(".")[0] for name in code.forms.opcode_names]
        wanted = {_COPY, _COMMIT, _WAIT, _ARRIVE, *_COUNTED}
        marked = np.array([root in wanted for root in roots])
        opcodes = code.forms.opcodes[code.form]
        self._roots = {
            index: roots[opcodes[index]] for index in np.flatnonzero(marked[opcodes]).tolist()
        }

    def waited(self, index: int) -> list[int]:
        """Copies (cp.async) that a DEPBAR waits for, ascending; empty for other instructions.

        With at most n groups left open it waits for the copies before the last n + 1 commits, on
        any path, up to an earlier wait for them.
        """
        if self._roots.get(index) != _WAIT:
            return []
        limit = self._limit(index)
        start = (self._flow.block_of(index), index, 0, _MAX_GROUPS)
        found: set[int] = set()
        seen: set[tuple[int, int, int]] = set()
        open_ = deque([start])
        while open_:
            block, at, commits, left = open_.popleft()
            stopped = False
            while at > self._flow.starts[block] and not stopped:
                at -= 1
                root = self._roots.get(at)
                if root == _COMMIT:
                    commits = min(commits + 1, _MAX_GROUPS)
                    left -= 1
                    stopped = left < 0
                elif root == _WAIT:
                    left = min(left, self._limit(at))
                    stopped = at == index
                elif root == _COPY and commits > limit:
                    found.add(at)
            if stopped:
                continue
            for each in self._flow.predecessors[block]:
                if (each, commits, left) not in seen:
                    seen.add((each, commits, left))
                    open_.append((each, self._flow.starts[each + 1], commits, left))
        return sorted(found)

    def of_mbarrier(self, index: int) -> list[int]:
        """Copies that an mbarrier of the function may count, ascending: those that may be executed
        before the wait `index`, else all, as other warps may run them.

        The mbarriers of copies and waits are not compared.
        """
        copies = [at for at, root in self._roots.items() if root in _COUNTED]
        if any(root == _ARRIVE for root in self._roots.values()):
            copies += [at for at, root in self._roots.items() if root == _COPY]
        if not copies:
            return []
        before = self._blocks_before(index)
        block = self._flow.block_of(index)
        reaching = [
            at for at in copies
            if (at_block := self._flow.block_of(at)) in before or (at_block == block and at < index)
        ]  # fmt: skip
        return sorted(reaching or copies)

    def _limit(self, index: int) -> int:
        waits = self._code.forms.waits.get(int(self._code.form[index]), ())
        return max((limit for _, limit in waits), default=0)

    def _blocks_before(self, index: int) -> set[int]:
        open_ = list(self._flow.predecessors[self._flow.block_of(index)])
        seen = set(open_)
        while open_:
            for each in self._flow.predecessors[open_.pop()]:
                if each not in seen:
                    seen.add(each)
                    open_.append(each)
        return seen
