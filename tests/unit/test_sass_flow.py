"""Instructions, control flow, def-use chains: cases by hand, and random ones by enumeration."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pasta.sass.control import SCOREBOARDS, decode_control
from pasta.sass.control_flow import ControlFlow, build_control_flow
from pasta.sass.dataflow import DefUse
from pasta.sass.disassembler import Code
from pasta.sass.distances import distances_back
from pasta.sass.forms import RESOURCE_MASK, role_of
from pasta.sass.instructions import Flow, Role, parse_operation
from pasta.sass.resources import SB, B, R, name
from tests.support.examples import examples
from tests.support.sass import LISTINGS, bits, code_of, read_listing, recorded_code

# Each instruction's destinations and sources: a address, g guard, else value.
OPERANDS = [
    ("FFMA R1, R2, R3.reuse, -R4", "R1", "R2 R3 R4"),
    ("@!P0 LDG.E.128 R4, desc[UR4][R2.64+0x8]", "R4 R5 R6 R7", "gP0 aUR4 aUR5 aR2 aR3"),
    ("LDG.E R4, [R2]", "R4", "aR2 aR3"),
    ("LDG.E R4, [R2.U32+UR6]", "R4", "aR2 aUR6 aUR7"),
    ("LDG.E.U8 R4, desc[UR4][UR6.64]", "R4", "aUR4 aUR5 aUR6 aUR7"),
    ("STG.E.64 desc[UR4][R2.64], R6", "", "aUR4 aUR5 aR2 aR3 R6 R7"),
    ("LDS R0, [R2+UR4+0x40]", "R0", "aR2 aUR4"),
    ("LDGSTS.E.BYPASS.128 [R9+0x800], desc[UR4][R4.64], P1", "", "aR9 aUR4 aUR5 aR4 aR5 P1"),
    ("ATOMG.E.ADD.STRONG.GPU PT, R4, desc[UR40][R2.64], R0", "R4", "aUR40 aUR41 aR2 aR3 R0"),
    ("ATOMG.E.CAS.64.STRONG.GPU PT, R4, [R2], R6, R8", "R4 R5", "aR2 aR3 R6 R7 R8 R9"),
    ("REDG.E.ADD.F32.FTZ.RN.STRONG.GPU desc[UR14][R2.64], R0", "", "aUR14 aUR15 aR2 aR3 R0"),
    ("IADD3 R4, P0, P1, R5, R6, R7", "R4 P0 P1", "R5 R6 R7"),
    ("IADD3.X R4, PT, PT, R5, UR13, RZ, P2, !PT", "R4", "R5 UR13 P2"),
    ("LOP3.LUT P0, RZ, R0, 0x1, RZ, 0xc0, !PT", "P0", "R0"),
    ("LOP3.LUT P0, R3, R0, 0x1, RZ, 0xc0, !P1", "P0 R3", "R0 P1"),
    ("ISETP.LT.OR.EX P0, P3, R2, R37, P1, P2", "P0 P3", "R2 R37 P1 P2"),
    ("DSETP.GEU.AND P0, PT, |R4|, R2, PT", "P0", "R4 R5 R2 R3"),
    ("PLOP3.LUT P0, PT, P0, P1, UP2, 0xd5, 0x0", "P0", "P0 P1 UP2"),
    ("SHFL.IDX P0, R10, R5, R2, R3", "P0 R10", "R5 R2 R3"),
    ("VOTE.ANY R0, PT, P3", "R0", "P3"),
    ("VOTEU.ANY UP0, P1", "UP0", "P1"),
    ("SEL R3, R0, 0x1, !P1", "R3", "R0 P1"),
    ("IMAD.WIDE.U32 R4, P1, R19, UR4, R8", "R4 R5 P1", "R19 UR4 R8 R9"),
    ("DFMA R2, R4, R6, c[0x3][0x8]", "R2 R3", "R4 R5 R6 R7"),
    ("F2F.F64.F32 R4, R0", "R4 R5", "R0"),
    ("F2F.F32.F64 R4, R2", "R4", "R2 R3"),
    ("F2I.S64.TRUNC R4, R2", "R4 R5", "R2"),
    ("I2F.F64 R4, R2", "R4 R5", "R2"),
    ("SHF.R.U64 R2, R4, R17, R5", "R2", "R4 R17 R5"),
    ("MOV.64 R4, R2", "R4 R5", "R2 R3"),
    ("FFMA2 R2, R4.F32x2.HI_LO, R6.F32x2.HI_LO, R8", "R2 R3", "R4 R5 R6 R7 R8 R9"),
    ("CS2R R2, SR_CLOCKLO", "R2 R3", ""),
    ("S2UR UR4, SR_CTAID.X", "UR4", ""),
    ("R2UR UR4, R0", "UR4", "R0"),
    ("LDC.64 R2, c[0x0][R4+0x8]", "R2 R3", "aR4"),
    ("LDCU.128 UR4, c[0x0][0x380]", "UR4 UR5 UR6 UR7", ""),
    ("HMMA.16816.F32.BF16 R4, R8, R12, R4", "R4 R5 R6 R7",
     "R8 R9 R10 R11 R12 R13 R4 R5 R6 R7"),
    ("HMMA.1688.F16 R4, R8, R12, RZ", "R4 R5", "R8 R9 R12"),
    ("IMMA.16832.S8.S8 R4, R8.ROW, R12.COL, R4", "R4 R5 R6 R7",
     "R8 R9 R10 R11 R12 R13 R4 R5 R6 R7"),
    ("DMMA.8x8x4 R4, R8, R10, R4", "R4 R5 R6 R7", "R8 R9 R10 R11 R4 R5 R6 R7"),
    ("HGMMA.64x8x16.F32.BF16 R24, gdesc[UR4], R24, gsb0", "R24 R25 R26 R27 gsb0",
     "aUR4 aUR5 aUR6 aUR7 R24 R25 R26 R27"),
    ("HGMMA.64x8x16.F16 R24, R4, gdesc[UR4].tnspB, R24", "R24 R25",
     "R4 R5 R6 R7 aUR4 aUR5 R24 R25"),
    ("WARPGROUP.DEPBAR.LE gsb0, 0x0", "", "gsb0"),
    ("LDSM.16.MT88.4 R112, [R119+UR5+0x800]", "R112 R113 R114 R115", "aR119 aUR5"),
    ("LDTM.x4 R4, tmem[UR4]", "R4 R5 R6 R7", "aUR4"),
    ("SYNCS.PHASECHK.TRANS64.TRYWAIT P3, [R2+URZ], R0", "P3", "aR2 R0"),
    ("SYNCS.EXCH.64 URZ, [UR6+0x8], UR4", "", "aUR6 UR4 UR5"),
    ("UTMALDG.2D [UR8], [UR4], desc[UR6]", "",
     "aUR8 aUR9 aUR10 aUR11 aUR4 aUR5 aUR6 aUR7"),
    ("UTMASTG.4D [UR8], [UR44], desc[UR42]", "",
     "aUR8 aUR9 aUR10 aUR11 aUR12 aUR44 aUR45 aUR42 aUR43"),
    ("UBLKCP.S.G [UR8], [UR4], UR10", "", "aUR8 aUR9 aUR4 aUR5 UR10"),
    ("TEX.SCR.LL RZ, R4, R6, R8, 0x0, 0x58, 2D, 0x1", "R4 R5", "R6 R7 R8"),
    ("TLD.SCR.LZ RZ, R3, R2, 0x0, 0x58, 1D, 0x1", "R3 R4", "R2"),
    ("IMNMX.U64 PT, P1, R8, R2, UR14, !PT, !P0", "P1 R8 R9", "R2 R3 UR14 UR15 P0"),
    ("IADD.64 R8, R6, -R2", "R8 R9", "R6 R7 R2 R3"),
    ("R2P PR, R181.B1, 0x5", "P0 P2", "R181"),
    ("P2R R0, PR, RZ, 0x3", "R0", "P0 P1"),
    ("BSSY B0, .+0x40", "B0", ""),
    ("BSYNC B0", "", "B0"),
    ("BMOV.32.CLEAR R2, B3", "R2", "B3"),
    ("MUFU.RSQ R0, -QNAN", "R0", ""),
    ("ELECT P1, URZ, PT", "P1", ""),
    ("EXIT P1", "", "P1"),
    ("@!PT LDS RZ, [RZ]", "", ""),
    ("LDG.E.128 R252, [R2]", "R252 R253 R254", "aR2 aR3"),  # no further registers
]  # fmt: skip


@pytest.mark.parametrize(("text", "defs", "uses"), OPERANDS, ids=[each[0] for each in OPERANDS])
def test_operands(text: str, defs: str, uses: str) -> None:
    operation = parse_operation(text)
    prefix = {Role.DATA: "", Role.ADDRESS: "a", Role.GUARD: "g"}
    assert " ".join(map(name, operation.defs)) == defs
    found = [prefix[use.role] + name(use.resource) for use in operation.uses]
    assert " ".join(found) == uses


@pytest.mark.parametrize(
    ("text", "flow", "falls", "target"),
    [
        ("BRA .+0x20", Flow.BRANCH, False, 32),
        ("@P0 BRA .-0x20", Flow.BRANCH, True, -32),
        ("BRA P1, .+0x20", Flow.BRANCH, True, 32),
        ("BRA.DIV UR4, .+0x20", Flow.BRANCH, True, 32),
        ("BRA.U UP0, .+0x20", Flow.BRANCH, True, 32),
        ("WARPSYNC.COLLECTIVE R0, .+0x40", Flow.BRANCH, True, 64),
        ("WARPSYNC R0", Flow.NONE, True, None),
        ("CALL.REL.NOINC .+0x100", Flow.CALL, True, 256),
        ("CALL.REL.NOINC R2 .-0x10", Flow.CALL, True, None),
        ("RET.REL.NODEC R2 .-0x8f0", Flow.RETURN, False, None),
        ("BRX R4 -0x3e20", Flow.INDIRECT, False, None),
        ("EXIT", Flow.EXIT, False, None),
        ("@P0 EXIT", Flow.EXIT, True, None),
        ("EXIT P0", Flow.EXIT, True, None),
        ("BSSY B0, .+0x40", Flow.NONE, True, None),
        ("FADD R0, R1, R2", Flow.NONE, True, None),
    ],
)
def test_flow_of_instructions(text: str, flow: Flow, falls: bool, target: int | None) -> None:
    operation = parse_operation(text)
    assert (operation.flow, operation.falls, operation.target) == (flow, falls, target)


def test_control_bits() -> None:
    fields = decode_control(
        code_of("NOP", control=[bits(stall=4, write=2, read=0, wait=[3])]).control
    )
    assert [int(each[0]) for each in fields] == [4, 1, 2, 0, 8, 0]
    code = recorded_code("stalls_sm90")["two_loads_one_use"]
    fields = decode_control(code.control)
    listed = code.texts()
    load = next(at for at, text in enumerate(listed) if text.startswith("LDG"))
    use = next(at for at, text in enumerate(listed) if text.startswith("FMUL"))
    assert fields.write[load] == 3
    assert fields.wait[use] == 1 << 3


@pytest.mark.parametrize("path", sorted(LISTINGS.glob("*.sass")), ids=lambda path: path.stem)
def test_arrays_equal_single_instructions(path: Path) -> None:
    texts = sorted({text for each in read_listing(path).values() for text in each})
    forms = code_of(*texts).forms
    for form, text in enumerate(texts):
        operation = parse_operation(text)
        defs = forms.defs.values[forms.defs.starts[form] : forms.defs.starts[form + 1]].tolist()
        uses = forms.uses.values[forms.uses.starts[form] : forms.uses.starts[form + 1]].tolist()
        assert set(defs) == set(operation.defs), text
        assert {(use & RESOURCE_MASK, role_of(use)) for use in uses} == set(operation.uses), text
        assert forms.opcode_names[forms.opcodes[form]] == operation.opcode


@given(st.text(alphabet="@!PTURZ0123456789[],.+-x cdesgMLDABFG{};|_\n", max_size=60))
def test_any_text_is_an_instruction_or_an_error(text: str) -> None:
    try:
        parse_operation(text)
    except ValueError as error:
        assert str(error).startswith("no instruction: ")
    code_of(text)


MANGLED = [text for each in read_listing(LISTINGS / "stalls_sm90.sass").values() for text in each]


@examples(25)
@given(st.data())
def test_mangled_instructions(data: st.DataObject) -> None:
    text = list(data.draw(st.sampled_from(MANGLED)))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(text)))
        text[at : at + data.draw(st.integers(0, 3))] = data.draw(st.text(max_size=3))
    code = code_of("".join(text), "FADD R0, R1, R2", "EXIT")
    DefUse(code, build_control_flow(code)).chains()


# ---- control flow --------------------------------------------------------------------------


def shape(flow: ControlFlow) -> dict[int, tuple[int, ...]]:
    """First instructions of the successors of each block, by its first instruction."""
    return {
        flow.starts[block]: tuple(sorted(flow.starts[each] for each in following))
        for block, following in enumerate(flow.successors)
    }


def test_loop_and_exits() -> None:
    flow = build_control_flow(
        code_of("MOV R0, R1", "@P0 EXIT", "IADD3 R0, R0, 0x1, RZ", "@P1 BRA .-0x10", "EXIT", "NOP")
    )
    assert shape(flow) == {0: (2,), 2: (2, 4), 4: (), 5: ()}
    assert [flow.starts[each] for each in flow.exits] == [0, 4, 5]
    assert [flow.block_of(at) for at in range(6)] == [0, 0, 1, 1, 2, 3]
    assert list(flow.block(1)) == [2, 3]
    assert flow.indirect == ()


def test_calls_return_behind_their_calls() -> None:
    code = code_of(
        "CALL.REL.NOINC .+0x40",  # 0
        "CALL.REL.NOINC .+0x30",  # 1
        "EXIT",  # 2
        "NOP",  # 3
        "FADD R0, R1, R2",  # 4: the function
        "RET.REL.NODEC R20 .-0x50",  # 5
        symbols={0: "k", 64: "$k$f"},
    )
    assert shape(build_control_flow(code)) == {0: (4,), 1: (4,), 2: (), 3: (4,), 4: (1, 2)}


def test_calls_of_other_sections_continue() -> None:
    code = code_of("CALL.REL.NOINC .-0x10", "CALL.ABS.NOINC R2", "EXIT", references={0: "f"})
    flow = build_control_flow(code)
    assert shape(flow) == {0: (1,), 1: (2,), 2: ()}
    assert flow.indirect == (1,)


def test_indirect_branches() -> None:
    texts = ("BRX R4 -0x10", "NOP", "EXIT", "NOP", "EXIT")
    table = build_control_flow(code_of(*texts, jumps={0: (0x10, 0x30)}))
    assert shape(table) == {0: (1, 3), 1: (), 3: ()}
    assert table.indirect == ()
    unknown = build_control_flow(code_of(*texts))
    assert shape(unknown) == {0: (1, 3), 1: (), 3: ()}
    assert unknown.indirect == (0,)


def test_recorded_kernels_have_known_flow() -> None:
    for kernel, code in recorded_code("stalls_sm80").items():
        flow = build_control_flow(code)
        assert flow.indirect == (), kernel
        assert flow.exits


def test_distances_are_shortest_paths() -> None:
    flow = build_control_flow(
        code_of("NOP", "@P0 BRA .+0x30", "NOP", "NOP", "FADD R0, R1, R2", "EXIT")
    )
    assert distances_back(flow, [2, 5, 1, 1, 4, 1], 4) == {3: 1, 2: 2, 1: 5, 0: 7}


# ---- def-use chains ------------------------------------------------------------------------


def chains(code: Code) -> set[tuple[int, str, int]]:
    """Edges as use, resource and definition."""
    found = DefUse(code, build_control_flow(code)).chains()
    rows = zip(found.uses.tolist(), found.resources.tolist(), found.defs.tolist(), strict=True)
    return {(use, name(resource), definition) for use, resource, definition in rows}


def test_predicated_definitions_do_not_end_earlier_ones() -> None:
    code = code_of("MOV R1, 0x1", "@P0 MOV R1, 0x2", "FADD R2, R1, R1", "MOV R1, 0x3",
                   "FADD R3, R1, R1", "@!PT MOV R1, 0x4", "FADD R4, R1, R1")  # fmt: skip
    assert chains(code) == {(2, "R1", 0), (2, "R1", 1), (4, "R1", 3), (6, "R1", 3)}


def test_definitions_come_around_a_loop() -> None:
    code = code_of("MOV R1, 0x1", "FADD R1, R1, R2", "@P0 BRA .-0x10", "EXIT")
    assert chains(code) == {(1, "R1", 0), (1, "R1", 1)}


def test_parts_of_vectors() -> None:
    code = code_of("LDG.E.128 R4, [R2]", "MOV R5, 0x1", "DADD R6, R4, R6")
    assert chains(code) == {(2, "R4", 0), (2, "R5", 1), (2, "R6", 0), (2, "R7", 0)}


def test_scoreboards_are_free_after_a_wait() -> None:
    code = code_of(
        "LDG.E R1, [R8]", "LDG.E R2, [R8]", "FADD R3, R1, R1", "LDG.E R4, [R8]", "FADD R5, R4, R4",
        control=[
            bits(write=0), bits(write=0), bits(wait=[0]), bits(write=0, read=1),
            bits(wait=[0, 1]),
        ],
    )  # fmt: skip
    found = {edge for edge in chains(code) if edge[1].startswith("SB")}
    assert found == {(2, "SB0", 0), (2, "SB0", 1), (4, "SB0", 3), (4, "SB1", 3)}


def test_depbar_with_a_rest_leaves_the_scoreboard_in_use() -> None:
    code = code_of(
        "LDGDEPBAR", "LDGDEPBAR", "DEPBAR.LE SB0, 0x1", "DEPBAR.LE SB0, 0x0", "DEPBAR.LE SB0, 0x0",
        control=[bits(write=0), bits(write=0), bits(), bits(), bits()],
    )  # fmt: skip
    found = {edge for edge in chains(code) if edge[1] == "SB0"}
    assert found == {(2, "SB0", 0), (2, "SB0", 1), (3, "SB0", 0), (3, "SB0", 1)}


def random_code(seed: int) -> Code:
    """Eight or so blocks that write and read two registers and a scoreboard."""
    rng = random.Random(seed)
    count = rng.randrange(4, 18)
    texts, control = [], []
    for at in range(count):
        guard = rng.choice(["", "", "@P0 "])
        if rng.random() < 0.3:
            delta = 16 * (rng.randrange(count) - at)
            texts.append(f"{guard}BRA .{'-' if delta < 0 else '+'}{abs(delta):#x}")
        elif rng.random() < 0.08:
            texts.append(f"{guard}EXIT")
        else:
            texts.append(f"{guard}FADD R{rng.randrange(2)}, R{rng.randrange(2)}, R9")
        control.append(bits(write=rng.choice([0, 7, 7]), wait=rng.choice([[], [], [0]])))
    return code_of(*texts, control=control)


def enumerate_edges(code: Code) -> set[tuple[int, str, int]]:
    """Def-use edges by walking forward from each definition, one instruction at a time."""
    operations = [parse_operation(text) for text in code.texts()]
    fields = decode_control(code.control)
    count = len(operations)

    def following(at: int) -> Sequence[int]:
        found = [at + 1] if operations[at].falls else []
        if operations[at].target is not None:
            found.append(at + operations[at].target // 16)
        return [each for each in found if 0 <= each < count]

    edges = set()
    for definition in range(count):
        written = list(operations[definition].defs)
        written += [SB + int(fields.write[definition])] if fields.write[definition] < 6 else []
        for resource in written:
            open_, seen = list(following(definition)), set()
            while open_:
                at = open_.pop()
                if at in seen:
                    continue
                seen.add(at)
                operation = operations[at]
                waits = resource >= SB and fields.wait[at] >> (resource - SB) & 1
                if waits or any(use.resource == resource for use in operation.uses):
                    edges.add((at, name(resource), definition))
                if waits or (resource in operation.defs and not operation.conditional):
                    continue
                open_ += following(at)
    return edges


@given(st.integers(0, 10**9))
def test_chains_equal_enumerated_paths(seed: int) -> None:
    code = random_code(seed)
    expected = enumerate_edges(code)
    assert chains(code) == expected
    def_use = DefUse(code, build_control_flow(code))
    for at in range(len(code.form)):
        for resource in {R, R + 1, SB} & set(def_use.uses(at)):
            found = {(at, name(resource), each) for each in def_use.definitions(at, resource)}
            assert found == {e for e in expected if e[:2] == (at, name(resource))}


# ---- what the compiler guarantees ----------------------------------------------------------


@pytest.mark.parametrize("path", sorted(LISTINGS.glob("*.cubin")), ids=lambda path: path.stem)
def test_compiled_code_is_consistent(path: Path) -> None:
    """Registers are written before they are read, and variable latencies are waited for.

    A wrong rule for destinations, widths or control bits breaks that.
    """
    for kernel, code in recorded_code(path.stem).items():
        flow = build_control_flow(code)
        edges = DefUse(code, flow).chains()
        fields = decode_control(code.control)
        written = set(zip(edges.uses.tolist(), edges.resources.tolist(), strict=True))
        for at in reachable(flow):
            for use in parse_operation(code.text(at)).uses:
                is_known = use.resource >= B or name(use.resource) == "R1"  # the stack
                assert is_known or (at, use.resource) in written, (kernel, code.text(at))
        registers = edges.resources < B
        for at, each in zip(
            edges.uses[registers].tolist(), edges.defs[registers].tolist(), strict=True
        ):
            board = int(fields.write[each])
            if board < SCOREBOARDS and at != each:
                assert is_waited_for(flow, fields.wait.tolist(), each, at, board), (kernel, at)


def reachable(flow: ControlFlow) -> set[int]:
    """Instructions that may be executed."""
    open_, seen = list(flow.entries), set(flow.entries)
    while open_:
        for each in flow.successors[open_.pop()]:
            if each not in seen:
                seen.add(each)
                open_.append(each)
    return {at for block in seen for at in flow.block(block)}


def is_waited_for(flow: ControlFlow, waits: list[int], producer: int, use: int, board: int) -> bool:
    """Whether every path from an instruction to a use of its result waits for a scoreboard."""
    open_, seen = [producer + 1], set()
    while open_:
        at = open_.pop()
        if at in seen or at >= len(waits):
            continue
        seen.add(at)
        if waits[at] >> board & 1:
            continue
        if at == use:
            return False
        block = flow.block_of(at)
        last = flow.starts[block + 1] - 1
        open_ += [flow.starts[each] for each in flow.successors[block]] if at == last else [at + 1]
    return True
