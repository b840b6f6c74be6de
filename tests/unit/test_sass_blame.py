"""Blame of stalls: kernels that wait in one way each (tests/data/sass/stalls.cu).

What is expected was found by hand in the listings beside the source: the instruction that waits and
the one whose result it waits for.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pasta.sass.blame import Blamer, Edge, Unattributed, apportion, blame, kind_of
from pasta.sass.cubin import Cubin
from pasta.sass.disassembler import Code
from pasta.sass.lines import read_lines
from tests.support.examples import examples
from tests.support.sass import LISTINGS, bits, code_of, recorded_code

LONG, SHORT = "long_scoreboard", "short_scoreboard"
MODULES = ("stalls_sm80", "stalls_sm90", "stalls_sm120")


def find(code: Code, text: str, nth: int = 0) -> int:
    """Offset of the n-th instruction whose text begins so."""
    return [16 * at for at, each in enumerate(code.texts()) if each.startswith(text)][nth]


def charged(code: Code, stalled: int, reason: str = LONG) -> list[tuple[int, int, str]]:
    """Blamed offset, samples and dependency of 100 samples."""
    result = blame(code, {stalled: {reason: 100}})
    assert result.attributed + sum(each.samples for each in result.unattributed) == 100
    return [(edge.blamed, edge.samples, edge.dependency) for edge in result.edges]


# On every architecture, for each kernel: the beginning of the waiting instruction and of the load,
# each with its number among those, and what it waits for.
WAITS: list[tuple[str, str, int, str, int, str]] = [
    ("dependent_loads", "FADD", 0, "LDG", 1, "data"),
    ("load_to_address", "IMAD.WIDE R", 0, "LDG", 0, "data"),
    ("shared_then_global", "STS", 0, "LDG", 0, "data"),
    ("predicated", "FADD", 0, "LDG", 0, "data"),
    ("loop_carried", "FFMA", 0, "LDG", 0, "data"),
    ("atomics", "IMAD R", 0, "ATOMG", 0, "data"),
    ("divergent", "FMUL.RZ", 0, "LDG", 0, "data"),  # the branch of odd lanes: argument of sin
    ("divergent", "MUFU.RCP", 0, "LDG", 2, "data"),  # the branch of even lanes
    ("divergent", "FCHK", 0, "LDG", 3, "data"),
    ("copy_async", "DEPBAR.LE SB0, 0x0", 0, "LDGSTS", 0, "async"),
    ("copy_async_stages", "DEPBAR.LE SB0, 0x1", 0, "LDGSTS", 0, "async"),
    ("copy_async_stages", "DEPBAR.LE SB0, 0x0", 0, "LDGSTS", 1, "async"),
]


@pytest.mark.parametrize("module", MODULES)
@pytest.mark.parametrize("wait", WAITS, ids=lambda wait: f"{wait[0]}-{wait[1].split()[0]}")
def test_long_scoreboard_is_charged_to_the_load(
    module: str, wait: tuple[str, str, int, str, int, str]
) -> None:
    kernel, stalled, nth, load, which, dependency = wait
    code = recorded_code(module)[kernel]
    assert charged(code, find(code, stalled, nth)) == [(find(code, load, which), 100, dependency)]


@pytest.mark.parametrize("module", MODULES)
def test_two_loads_share_a_scoreboard(module: str) -> None:
    code = recorded_code(module)["two_loads_one_use"]
    first, second = find(code, "LDG", 0), find(code, "LDG", 1)
    shares = charged(code, find(code, "FMUL"))
    assert [(at, dependency) for at, _, dependency in shares] == [(first, "data"), (second, "data")]
    assert all(samples > 20 for _, samples, _ in shares)


def test_first_of_dependent_loads_is_charged_where_its_value_is_an_index() -> None:
    code = recorded_code("stalls_sm90")["dependent_loads"]
    index = find(code, "LDG", 0)
    assert charged(code, find(code, "IMAD.WIDE R4, R3")) == [(index, 100, "data")]


def test_software_pipeline_waits_for_the_load_of_the_iteration_before() -> None:
    code = recorded_code("stalls_sm90")["pipelined"]
    before, inside = find(code, "LDG", 0), find(code, "LDG", 1)
    # `now = next`: at first the load before the loop, then the one in it, on other scoreboards
    assert charged(code, 0xA0) == [(before, 100, "data")]
    assert charged(code, 0x1C0) == [(inside, 100, "data")]
    # behind the loop the first load is still open if the loop never ran
    assert charged(code, 0x1F0) == [(before, 100, "data")]


@pytest.mark.parametrize(
    ("module", "stalled", "load"),
    [("stalls_sm80", 0xA0, 0xE0), ("stalls_sm90", 0xE0, 0x110), ("stalls_sm120", 0xB0, 0xD0)],
)
def test_pointer_chase_waits_for_the_iteration_before(module: str, stalled: int, load: int) -> None:
    code = recorded_code(module)["pointer_chase"]
    # the address of the next element is computed from the one before
    assert charged(code, stalled) == [(load, 100, "data")]


@pytest.mark.parametrize(
    ("module", "branches", "copy"),
    [("stalls_sm90", (0x260, 0x300), 0x190), ("stalls_sm120", (0x390, 0x400), 0x2A0)],
)
def test_wait_for_an_mbarrier_is_charged_to_the_tensor_copy(
    module: str, branches: tuple[int, int], copy: int
) -> None:
    code = recorded_code(module)["tensor_copy"]
    for branch in branches:  # first try, and a loop
        for reason in (LONG, SHORT):
            assert charged(code, branch, reason) == [(copy, 100, "async")]


@pytest.mark.parametrize(
    ("kernel", "stalled", "producer"),
    [
        ("shared_then_global", "FMUL", "LDS"),
        ("special_function", "@!P0 FMUL R", "MUFU.EX2"),
        ("copy_async", "STG", "LDS"),
    ],
)  # fmt: skip
def test_short_scoreboard_is_charged_to_shared_memory_and_special_functions(
    kernel: str, stalled: str, producer: str
) -> None:
    code = recorded_code("stalls_sm90")[kernel]
    at = [at for at, each in enumerate(code.texts()) if each.startswith(stalled)]
    waiting = next(each for each in at if code.control[each] >> 11 & 63)
    assert charged(code, 16 * waiting, SHORT) == [(find(code, producer), 100, "data")]


def test_other_reasons() -> None:
    code = recorded_code("stalls_sm90")["shared_then_global"]
    barrier, store = find(code, "BAR.SYNC"), find(code, "STS")
    assert charged(code, barrier, "barrier") == [(barrier, 100, "self")]
    assert charged(code, barrier + 16, "barrier") == [(barrier, 100, "order")]
    assert charged(code, find(code, "EXIT"), "drain") == [(find(code, "STG"), 100, "order")]
    assert charged(code, store, "lg_throttle") == [(store, 100, "self")]
    # a fixed latency: the value of the instruction before
    shift = find(code, "STG")
    assert charged(code, shift, "wait") == [(shift - 16, 100, "data")]
    loop = recorded_code("stalls_sm90")["loop_carried"]
    branch = find(loop, "@!P0 BRA .-")
    # it is behind the loop, and where the loop is passed over
    assert {at for at, *_ in charged(loop, branch + 16, "branch_resolving")} == {0x80, branch}


# ---- by construction -----------------------------------------------------------------------


def loads(*lines: tuple[str, int]) -> Code:
    return code_of(*(text for text, _ in lines), control=[control for _, control in lines])


def test_value_address_and_order() -> None:
    code = loads(
        ("LDG.E R4, desc[UR4][R2.64]", bits(write=0)),
        ("LDG.E.64 R6, desc[UR4][R2.64+0x8]", bits(write=1)),
        ("LDG.E R9, desc[UR4][R2.64+0x10]", bits(write=2)),
        ("STG.E desc[UR4][R6.64], R4", bits(wait=[0, 1, 2])),
        ("EXIT", bits()),
    )
    found = {at: dependency for at, _, dependency in charged(code, 0x30)}
    # nothing of the third is used, but the scoreboard is waited for
    assert found == {0x00: "data", 0x10: "address", 0x20: "order"}


def test_guard() -> None:
    code = loads(
        ("LDG.E R4, desc[UR4][R2.64]", bits(write=0)),
        ("SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR4], R0", bits(write=1)),
        ("@P0 BRA .+0x10", bits(wait=[1])),
        ("EXIT", bits()),
    )
    assert charged(code, 0x20) == [(0x10, 100, "guard")]


def test_kind_of_the_scoreboard_selects_its_setters() -> None:
    code = loads(
        ("LDG.E R4, desc[UR4][R2.64]", bits(write=0)),
        ("LDS R5, [R8]", bits(write=0)),
        ("FADD R6, R4, R5", bits(wait=[0])),
    )
    assert charged(code, 0x20, LONG) == [(0x00, 100, "data")]
    assert charged(code, 0x20, SHORT) == [(0x10, 100, "data")]


def test_results_are_waited_for_rather_than_sources() -> None:
    lines = [
        ("LDG.E R4, desc[UR4][R2.64]", bits(write=0)),
        ("STG.E desc[UR4][R8.64], R6", bits(read=1)),
        ("FADD R6, R4, R4", bits(wait=[0, 1])),
    ]
    assert charged(loads(*lines), 0x20) == [(0x00, 100, "data")]
    # a store that has not read R6 yet: it is of the long scoreboard, a load of shared memory is not
    lines[0] = ("LDS R4, [R2]", bits(write=0))
    assert charged(loads(*lines), 0x20, LONG) == [(0x10, 100, "order")]
    assert charged(loads(*lines), 0x20, SHORT) == [(0x00, 100, "data")]
    lines[1] = ("STS [R8], R6", bits(read=1))
    assert charged(loads(*lines), 0x20, LONG) == [(0x00, 100, "data")]


def test_loads_that_were_waited_for_are_no_candidates() -> None:
    code = loads(
        ("LDG.E R4, desc[UR4][R2.64]", bits(write=0)),
        ("FADD R5, R4, R4", bits(wait=[0])),
        ("LDG.E R6, desc[UR4][R2.64]", bits(write=0)),
        ("FADD R7, R4, R6", bits(wait=[0])),
    )
    assert charged(code, 0x30) == [(0x20, 100, "data")]


def test_samples_issued_in_the_block_and_distance_weigh() -> None:
    code = loads(
        ("LDG.E R4, desc[UR4][R2.64]", bits(write=0, stall=4)),
        ("LDG.E R5, desc[UR4][R2.64+0x8]", bits(write=0, stall=4)),
        ("FADD R7, R4, R5", bits(wait=[0])),
    )
    near = blame(code, {0x20: {LONG: 90}})
    assert [edge.samples for edge in near.edges] == [30, 60]  # 8 and 4 cycles before
    # both are issued as often: of which one there are more samples is chance
    same = blame(code, {0x20: {LONG: 90}, 0x00: {"selected": 3}})
    assert [edge.samples for edge in same.edges if edge.reason == LONG] == [30, 60]
    branch = loads(
        ("LDG.E R4, desc[UR4][R2.64]", bits(write=0, stall=4)),
        ("@P0 BRA .+0x10", bits(stall=4)),
        ("LDG.E R4, desc[UR4][R2.64+0x8]", bits(write=0, stall=8)),
        ("FADD R7, R4, R4", bits(wait=[0])),
    )
    # 8 cycles before in a block of two instructions, and 8 in a block of one
    rare = blame(branch, {0x30: {LONG: 90}})
    assert [edge.samples for edge in rare.edges] == [30, 60]
    often = blame(branch, {0x30: {LONG: 90}, 0x10: {"selected": 7}})
    assert [edge.samples for edge in often.edges if edge.reason == LONG] == [72, 18]


def test_results_that_must_be_there_are_left_out() -> None:
    texts = [
        ("LDG.E R4, desc[UR4][R2.64]", bits(write=0)),
        *[("NOP", bits(stall=15))] * 300,
        ("LDG.E R5, desc[UR4][R2.64+0x8]", bits(write=0)),
        ("FADD R7, R4, R5", bits(wait=[0])),
    ]
    (edge,) = blame(loads(*texts), {16 * 302: {LONG: 10**6}}).edges
    assert edge.blamed == 16 * 301
    # but if there is no other one, the load took that long
    only = loads(*texts[:301], ("FADD R7, R4, R4", bits(wait=[0])))
    assert charged(only, 16 * 301) == [(0, 100, "data")]


def test_wait_after_a_depbar_is_its() -> None:
    code = loads(
        ("LDGSTS.E [R8], desc[UR4][R2.64]", bits()),
        ("LDGDEPBAR", bits(write=0)),
        ("DEPBAR.LE SB0, 0x0", bits()),
        ("LDS R4, [R8]", bits(write=1)),
    )
    assert charged(code, 0x30) == [(0x00, 100, "async")]


def test_samples_without_a_candidate_are_kept() -> None:
    code = loads(("FADD R4, R5, R6", bits()), ("EXIT", bits()))
    result = blame(code, {0: {LONG: 5, "no_instruction": 2}, 8: {LONG: 1}, 4096: {"wait": 3}})
    assert result.edges == []
    assert result.unattributed == [
        Unattributed(0, LONG, 5),
        Unattributed(0, "no_instruction", 2),
        Unattributed(8, LONG, 1),
        Unattributed(4096, "wait", 3),
    ]


def test_negative_samples_are_rejected() -> None:
    with pytest.raises(ValueError, match="-1 samples of wait at 0x0"):
        blame(code_of("EXIT"), {0: {"wait": -1}})


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("smsp__pcsamp_warps_issue_stalled_long_scoreboard", "long"),
        ("smsp__pcsamp_warps_issue_stalled_long_scoreboard_not_issued", "long"),
        ("smsp__pcsamp_warps_issue_stalled_lg_throttle", "own"),
        ("stalled: short scoreboard", "short"),
        ("smsp__pcsamp_warps_issue_stalled_not_selected", "own"),
        ("smsp__pcsamp_warps_issue_stalled_branch_resolving", "branch"),
        ("smsp__pcsamp_warps_issue_stalled_gmma", "gmma"),
        ("smsp__pcsamp_warps_issue_stalled_membar", "membar"),
        ("smsp__pcsamp_warps_issue_stalled_barrier", "barrier"),
        ("smsp__pcsamp_warps_issue_stalled_wait", "wait"),
        ("something new", "none"),
    ],
)  # fmt: skip
def test_kinds_of_reasons(reason: str, kind: str) -> None:
    assert kind_of(reason) == kind


# ---- properties ----------------------------------------------------------------------------


@given(st.integers(0, 10**6), st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=8))
def test_parts_add_up(count: int, weights: Sequence[float]) -> None:
    parts = apportion(count, list(weights))
    assert sum(parts) == count
    total = sum(weights)
    assert all(
        abs(part - count * weight / total) < 1.001
        for part, weight in zip(parts, weights, strict=True)
    )


@examples(30)
@given(st.data())
def test_every_sample_is_charged_once(data: st.DataObject) -> None:
    code = data.draw(st.sampled_from(list(recorded_code("stalls_sm90").values())))
    offsets = st.integers(-2, len(code.form) + 2).map(lambda at: 16 * at)
    reasons = st.sampled_from([LONG, SHORT, "wait", "barrier", "membar", "drain", "gmma", "branch",
                               "selected", "math_pipe_throttle", "no_instruction"])  # fmt: skip
    samples = data.draw(
        st.dictionaries(offsets, st.dictionaries(reasons, st.integers(0, 999)), max_size=8)
    )
    result = blame(code, samples)
    total: dict[tuple[int, str], int] = {}
    for each in (*result.edges, *result.unattributed):
        assert each.samples > 0
        total[each.stalled, each.reason] = total.get((each.stalled, each.reason), 0) + each.samples
    given_samples = {(at, reason): count for at, reasons in samples.items()
                     for reason, count in reasons.items() if count}  # fmt: skip
    assert total == given_samples
    assert len({(e.stalled, e.blamed, e.reason, e.dependency) for e in result.edges}) == len(
        result.edges
    )


def test_blame_in_all_recorded_kernels_leads_to_lines() -> None:
    """Every wait for a scoreboard in our kernels is charged, and mostly to one instruction."""
    cubin = Cubin((LISTINGS / "stalls_sm90.cubin").read_bytes())
    lines = read_lines(cubin)
    edges: list[tuple[str, Edge]] = []
    for name, code in recorded_code("stalls_sm90").items():
        blamer = Blamer(code)
        waiting = [at for at in range(len(code.form)) if code.control[at] >> 11 & 63]
        result = blamer.blame({16 * at: {LONG: 1000} for at in waiting})
        # one waits for a read barrier that was drained on every path
        assert sum(each.samples for each in result.unattributed) <= 1000
        edges += ((name, edge) for edge in result.edges)
    assert all(lines[name].at(edge.blamed) is not None for name, edge in edges)
