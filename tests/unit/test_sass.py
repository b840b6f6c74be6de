"""Contents of a module's functions: recorded cubins of our own kernels, and the real nvdisasm.

The cubins in tests/data/sass come from the .cu files beside them, so what a kernel must
contain can be read there.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pasta import interruption
from pasta.errors import MissingDependency
from pasta.sass import disassembly as sass
from pasta.sass import nvdisasm, patterns
from pasta.sass.cubin import Cubin
from pasta.sass.disassembler import read_code
from pasta.sass.disassembly import (
    Function,
    SassError,
    classify,
    disassemble,
    find_nvdisasm,
    find_opcode,
    summarize,
)
from pasta.sass.forms import Forms, build_forms
from pasta.sass.lines import Lines, read_lines
from pasta.sass.patterns import OPERATION_MASK, without_patterns
from pasta.sass.places import Place, describe
from tests.support.sass import (
    LISTINGS,
    code_of,
    make_cubin,
    play_recorded,
    read_listing,
    recorded_code,
)

NOT_MEMORY = {"barrier", "block_exit", "call"}
ANY = (0x7918, 0)  # some instruction


def listing(name: str) -> dict[str, Function]:
    lines = read_lines(Cubin((LISTINGS / f"{name}.cubin").read_bytes()))
    codes = recorded_code(name)
    return {each: summarize(code, lines.get(each, Lines())) for each, code in codes.items()}


def kinds(function: Function) -> dict[str, int]:
    return dict(Counter(i.kind for i in function.instructions if i.kind not in NOT_MEMORY))


def opcodes(function: Function, root: str) -> list[sass.Opcode]:
    found = (i.opcode for i in function.instructions)
    return [opcode for opcode in found if opcode.text.split(".")[0] == root]


@pytest.mark.parametrize(
    ("module", "kernel", "expected"),
    [
        ("sm80", "widths", {"global": 12}),
        ("sm80", "guarded", {"global": 1}),
        ("sm80", "copy_async", {"async_copy": 3, "shared": 2, "global": 2}),
        ("sm80", "matrix", {"matrix": 3, "shared": 1, "global": 2}),
        ("sm80", "texture", {"texture": 5, "global": 1}),
        ("sm80", "caches", {"prefetch": 3, "global": 7}),
        ("sm90", "bulk", {"bulk_load": 3, "bulk_store": 1, "bulk_reduction": 2,
                          "bulk_shared": 2, "prefetch": 1}),
        ("sm90", "tensor", {"tensor_load": 3, "tensor_store": 3, "prefetch": 1,
                            "shared": 1, "global": 1}),
        # mapa, ld.shared::cluster: generic instructions
        ("sm90", "cluster", {"shared": 1, "generic": 5, "async_store": 5, "global": 1}),
        ("sm90", "wg", {"tensor_core": 1, "global": 1}),
        ("sm100", "wide", {"global": 2}),
        ("sm100", "mats", {"matrix": 3, "shared_fill": 1, "shared": 1, "global": 1}),
        ("sm100", "gather", {"tensor_load": 1, "tensor_store": 1, "bulk_load": 1, "bulk_store": 1}),
        ("sm100", "mma", {"tensor_core": 4}),
    ],
)  # fmt: skip
def test_memory_instructions_of_a_kernel(
    module: str, kernel: str, expected: dict[str, int]
) -> None:
    assert kinds(listing(module)[kernel]) == expected


@pytest.mark.parametrize("module", ["sm80", "sm90", "sm100"])
def test_all_opcodes_of_our_kernels_are_known(module: str) -> None:
    strange = {
        i.opcode.text
        for function in listing(module).values()
        for i in function.instructions
        if i.kind == sass.UNKNOWN
    }
    assert strange == set()


def test_functions_are_the_code_sections() -> None:
    functions = listing("sm80")
    assert set(functions) == {
        "widths", "atomics", "generic", "locals", "calls", "guarded",
        "copy_async", "matrix", "texture", "caches",
    }  # fmt: skip
    assert all(function.bytes % 128 == 0 or function.bytes for function in functions.values())
    for function in functions.values():
        offsets = [i.offset for i in function.instructions]
        assert offsets == sorted(set(offsets))
        assert all(offset % 16 == 0 and offset < function.bytes for offset in offsets)


@pytest.mark.parametrize(
    ("opcode", "width"),
    [
        ("LDG.E", 4), ("LDG.E.SYS", 4), ("LDG.E.U8", 1), ("LDG.E.S16.CONSTANT", 2),
        ("LDG.E.64.CONSTANT", 8), ("LDG.E.LTC128B.128", 16), ("LDG.E.LTC128B", 4),
        ("LDG.E.ENL2.256", 32), ("STG.E.128.STRONG.SYS", 16), ("LDS.U.64", 8), ("STL.128", 16),
        ("LDGSTS.E", 4), ("LDGSTS.E.64", 8), ("LDGSTS.E.BYPASS.LTC128B.128", 16),
        ("REDG.E.ADD.F32x4.FTZ.RN.STRONG.GPU", 16), ("REDG.E.ADD.BF16x8.RN.STRONG.GPU", 16),
        ("ATOM.E.ADD.F16x2.RN.STRONG.GPU", 4), ("REDG.E.ADD.BF16_V2.RN.STRONG.GPU", 4),
        ("RED.E.MIN.S64.STRONG.GPU", 8), ("RED.E.ADD.F64.RN.STRONG.GPU", 8),
        ("ATOMG.E.CAS.128.STRONG.GPU", 16), ("ATOMS.POPC.INC.32", 4), ("ATOMS.CAST.SPIN.64", 8),
        ("STAS.128", 16), ("REDAS.ADD.64", 8),
        ("LDSM.16.M88.4", 16), ("STSM.16.MT88", 16),
        # the transfer's size is in a register or in the tensor map
        ("UBLKCP.S.G", None), ("UTMALDG.2D", None), ("TEX.LL", None), ("BAR.SYNC", None),
    ],
)  # fmt: skip
def test_bytes_per_lane(opcode: str, width: int | None) -> None:
    found = classify(opcode)
    assert found is not None
    assert found.bytes == width


@pytest.mark.parametrize(
    ("opcode", "kind", "flags"),
    [
        ("LDG.E", "global", "r"), ("STG.E", "global", "w"), ("REDG.E.ADD", "global", "rwa"),
        ("ATOMS.ADD", "shared", "rwa"), ("LDL", "local", "r"), ("LDGSTS.E", "async_copy", "r"),
        ("UBLKCP.S.G.MULTICAST", "bulk_load", "r"),
        ("UBLKCP.G.S.DST_G_BYTE_MASK", "bulk_store", "w"),
        ("UBLKCP.S.S", "bulk_shared", "rw"),
        ("UBLKRED.G.S.ADD.F16.RN", "bulk_reduction", "rwa"),
        ("UBLKRED.S.S.ADD", "bulk_shared", "rwa"),
        ("UTMALDG.4D.IM2COL", "tensor_load", "r"), ("UTMASTG.2D.SCATTER4", "tensor_store", "w"),
        ("UTMAREDG.2D.ADD", "tensor_store", "rwa"),
        ("REDAS.ADD", "async_store", "rwa"), ("STAS", "async_store", "w"),
        ("SURED.D.BA.2D.ADD.STRONG.SYS.TRAP", "texture", "rwa"),
        ("HGMMA.64x8x16.F32", "tensor_core", "r"), ("UTCOMMA", "tensor_core", "r"),
        ("CCTL.E.PF2", "prefetch", ""), ("UTMAPF.L2.2D", "prefetch", ""),
        ("BAR.ARV", "barrier", ""), ("CALL.REL.NOINC", "call", ""), ("EXIT", "block_exit", ""),
        # a direction unknown to PASTA
        ("UBLKCP.G.G", "unknown", ""),
    ],
)  # fmt: skip
def test_classification_of_opcodes(opcode: str, kind: str, flags: str) -> None:
    found = classify(opcode)
    assert found is not None
    found_flags = ("r" * found.reads) + ("w" * found.writes) + ("a" * found.atomic)
    assert (found.kind, found_flags) == (kind, flags)


@pytest.mark.parametrize(
    "opcode",
    ["LDC.64", "LDCU.128", "ULDC", "SYNCS.ARRIVE.TRANS64", "LDGDEPBAR", "CCTL.IVALL",
     "MEMBAR.SC.GPU", "QSPC.E.S", "B2R.RESULT", "REDUX", "UTMACCTL.PF", "LDTM.x2",
     "RET.REL.NODEC", "IMAD"],
)  # fmt: skip
def test_constants_barriers_and_fences_are_not_accesses(opcode: str) -> None:
    assert classify(opcode) is None


def test_unknown_opcode_with_an_address_is_reported() -> None:
    function = summarize(
        code_of(
            "LDFOO.E.64 R2, desc[UR4][R2.64]",
            "STBAR [UR4], R2",
            "IMAD R1, R2, c[0x0][0x28], R3",
            "LDC R1, c[0x0][R4+0x8]",
            "XMMA R24, gdesc[UR4], RZ",
            "",  # nvdisasm does not know it
        ),
        Lines(),
    )
    assert [(i.kind, i.opcode.text) for i in function.instructions] == [
        ("unknown", "LDFOO.E.64"),
        ("unknown", "STBAR"),
        ("unknown", ""),
    ]
    assert find_opcode("BRX", "R4 -0x10") is None


def test_predicates() -> None:
    code = code_of("@P0 LDG.E R0, [R2]", "@!UP1 UBLKCP.S.G [UR8], [UR4], UR10", "LDS R1, [R2]",
                   "@!PT LDS RZ, [RZ]")  # fmt: skip
    function = summarize(code, Lines())
    # @!PT never executes: counting it would report instructions that no probe could see
    assert [(i.offset, i.predicated) for i in function.instructions] == [
        (0, True),
        (16, True),
        (32, False),
    ]
    assert function.bytes == 64


def test_source_lines_from_the_line_table() -> None:
    widths = listing("sm80")["widths"]
    source = (LISTINGS / "sm80.cu").read_text().splitlines()
    (wide,) = [i for i in widths.instructions if i.opcode.text == "STG.E.128"]
    assert wide.file is not None and wide.file.endswith("/sm80.cu")
    assert wide.line is not None
    assert "make_int4(1, 2, 3, 4)" in source[wide.line - 1]
    assert {i.file for i in listing("sm90")["bulk"].instructions} == {None}


def test_inlined_code_has_the_lines_of_its_calls() -> None:
    cubin = Cubin((LISTINGS / "stalls_sm90.cubin").read_bytes())
    lines = read_lines(cubin)["copy_async"]
    offset = 16 * recorded_code("stalls_sm90")["copy_async"].texts().index("S2UR UR5, SR_CgaCtaId")
    source = (LISTINGS / "stalls.cu").read_text().splitlines()
    place = lines.at(offset)
    chain = []
    while place is not None:
        chain.append((Path(place.file).name, place.line))
        place = place.caller
    assert [file for file, _ in chain] == ["sm_20_intrinsics.hpp", "stalls.cu", "stalls.cu"]
    assert "__cvta_generic_to_shared" in source[chain[1][1] - 1]
    assert "shared_address(&s" in source[chain[2][1] - 1]


@pytest.mark.parametrize("damage", range(0, 1053, 31))
def test_damaged_line_table_gives_fewer_lines(damage: int) -> None:
    image = bytearray((LISTINGS / "stalls_sm90.cubin").read_bytes())
    section = Cubin(bytes(image)).sections
    (table,) = [each for each in section if each.name == ".debug_line"]
    image[table.offset + damage % table.size] ^= 0xFF
    for lines in read_lines(Cubin(bytes(image))).values():
        assert lines.offsets == sorted(lines.offsets)


def test_calls_to_other_sections_are_named() -> None:
    calls = listing("sm80")["calls"]
    assert calls.calls == frozenset()  # its device function is in its own section
    assert calls.indirect  # and it calls through a pointer
    code = code_of(
        "CALL.ABS.NOINC 0x0",
        "CALL.REL.NOINC .+0x10",
        "CALL.REL.NOINC 0x0",
        symbols={0: "k", 32: "$k$slow"},
        references={0: "_Z5otherPi", 16: "$k$slow", 32: "_Z6insidePi$3"},
    )
    caller = summarize(code, Lines())
    assert caller.calls == {"_Z5otherPi", "_Z6insidePi$3"}
    assert not caller.indirect


@pytest.mark.usefixtures("recorded")
def test_single_instructions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of a device function behind its kernel; unknown where nothing can be read."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "text").write_bytes(b"no module")
    images = {1: LISTINGS / "stalls_sm90.cubin", 2: tmp_path / "text", 3: tmp_path / "none"}
    slow, start = "$__internal_0_$__cuda_sm3x_div_rn_noftz_f32_slowpath", 640
    found = describe(
        [
            Place(1, "dependent_loads", 0x90), Place(1, "divergent", start + 16),
            Place(1, slow, 16), Place(1, "dependent_loads", 1 << 40), Place(1, "none", 0),
            Place(2, "f", 0), Place(3, "f", 0), Place(4, "f", 0),
        ],
        images.get,
    )  # fmt: skip
    assert found[0] == ("/tmp/src/stalls.cu:16", "LDG.E R4, desc[UR4][R4.64]")
    assert found[1] == found[2]
    assert found[1].text
    assert [each.text for each in found[3:]] == [None] * 5
    assert found[4:] == [(None, None)] * 4


# ---- modules -------------------------------------------------------------------------------


def test_names_of_a_module() -> None:
    image = make_cubin(
        {"a": [ANY], "b": [ANY, ANY]}, symbols=[("inner", "b", 16)], calls=[("b", 0, "a")]
    )
    cubin = Cubin(image)
    assert cubin.architecture == 90
    assert cubin.names() == ["a", "b"]
    code = cubin.code("b")
    assert code is not None
    assert code.symbols == {0: "b", 16: "inner"}
    assert code.references == {0: "a"}
    assert code.words.tolist() == [list(ANY)] * 2
    assert cubin.code("c") is None


def test_architecture_of_older_modules() -> None:
    image = bytearray(make_cubin({"k": [ANY]}))
    image[8] = 7  # EI_ABIVERSION
    image[0x30:0x34] = (80 << 16 | 80).to_bytes(4, "little")
    assert Cubin(bytes(image)).architecture == 80


@pytest.mark.parametrize("image", [b"", b"not a cubin", make_cubin({"k": [ANY]})[:100]])
def test_invalid_cubin_is_reported(recorded: list[int], image: bytes) -> None:
    with pytest.raises(SassError):
        disassemble(image, ["k"])


def test_code_outside_of_the_module_is_reported(recorded: list[int]) -> None:
    image = make_cubin({"k": [ANY] * 8})
    with pytest.raises(SassError):
        Cubin(image[:64] + image[-64 * 5 :])


# ---- the program ---------------------------------------------------------------------------


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Texts come from the listings; the numbers of instructions asked for."""
    asked: list[int] = []

    def play(architecture: int, words: Any, end: float) -> Iterator[list[str]]:
        asked.append(len(words))
        yield from play_recorded(architecture, words, end)

    monkeypatch.setattr(nvdisasm, "list_instructions", play)
    monkeypatch.setattr(nvdisasm, "version", lambda program: "13.5")
    monkeypatch.setenv("PASTA_NVDISASM", "/recorded")
    return asked


def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> Path:
    """A program in nvdisasm's place, in Python; `words` are the code's instructions."""
    program = tmp_path / "nvdisasm"
    program.write_text(
        f"#!{sys.executable}\n"
        "import struct, sys\n"
        f"open({str(tmp_path / 'calls')!r}, 'a').write(' '.join(sys.argv[1:-1]) + '\\n')\n"
        "words = list(struct.iter_unpack('<QQ', open(sys.argv[-1], 'rb').read()))\n"
        "base = 0x180000000000\n" + body
    )
    program.chmod(0o755)
    monkeypatch.setenv("PASTA_NVDISASM", str(program))
    return tmp_path / "calls"


LIST = """
for at, (low, high) in enumerate(words):
    print(f"        /*{base + 16 * at:x}*/    @P0 LDG.E R{low}, [R2] ;")
"""


def test_runs_nvdisasm_once_for_equal_instructions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = fake(tmp_path, monkeypatch, LIST)
    # the control bits do not matter; nvdisasm gets them
    image = make_cubin({"k": [(4, 5 << 41), (5, 0), (4, 6 << 41)], "other": [(6, 0)]})
    (codes,) = read_code([(Cubin(image), ["k", "absent"])])
    assert list(codes) == ["k"]
    assert codes["k"].texts() == ["@P0 LDG.E R4, [R2]", "@P0 LDG.E R5, [R2]", "@P0 LDG.E R4, [R2]"]
    assert codes["k"].control.tolist() == [5, 0, 6]
    assert calls.read_text() == "-b SM90a -raw -ndf -base 0x180000000000\n"


def test_targets_are_relative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake(
        tmp_path,
        monkeypatch,
        "for at, (low, _) in enumerate(words):\n"
        "    place = base + 16 * at\n"
        "    print(f'/*{place:x}*/ @P0 BRA P1, 0x{place + (32 if low == 1 else -48):x} ;')\n",
    )
    (codes,) = read_code([(Cubin(make_cubin({"k": [(1, 0), (2, 0)]})), None)])
    assert codes["k"].texts() == ["@P0 BRA P1, .+0x20", "@P0 BRA P1, .-0x30"]


def test_rejected_instructions_have_no_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = fake(
        tmp_path,
        monkeypatch,
        "for at, (low, _) in enumerate(words):\n"
        "    if low == 7:\n"
        "        print(f'nvdisasm error   : no operation at address 0x{base + 16 * at:x}',"
        " file=sys.stderr)\n"
        "if any(low == 7 for low, _ in words):\n"
        "    sys.exit(1)\n" + LIST,
    )
    (codes,) = read_code([(Cubin(make_cubin({"k": [(4, 0), (7, 0), (5, 0)]})), None)])
    assert codes["k"].texts() == ["@P0 LDG.E R4, [R2]", "", "@P0 LDG.E R5, [R2]"]
    assert len(calls.read_text().splitlines()) == 2


def test_missing_names_do_not_start_nvdisasm(recorded: list[int]) -> None:
    assert disassemble(make_cubin({"k": [ANY]}), ["absent"]) == []
    assert not recorded


def test_architecture_rejected_by_nvdisasm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake(tmp_path, monkeypatch, "sys.exit('nvdisasm fatal   : unknown architecture')\n")
    with pytest.raises(SassError, match=r"sm_90.*unknown architecture.*nvidia-cuda-nvdisasm"):
        disassemble(make_cubin({"k": [ANY]}))


@pytest.mark.timeout(60)
def test_hanging_disassembler_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake(tmp_path, monkeypatch, "import time; time.sleep(100)\n")
    with pytest.raises(SassError, match=r"too long"):
        disassemble(make_cubin({"k": [ANY]}), timeout=0.2)


@pytest.mark.timeout(60)
def test_interruption_kills_the_disassembler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake(tmp_path, monkeypatch, "import time; time.sleep(100)\n")
    monkeypatch.setattr(interruption, "_file", tmp_path / "interrupted")
    threading.Timer(0.3, (tmp_path / "interrupted").touch).start()
    with pytest.raises(SassError, match=r"interrupted by a signal"):
        disassemble(make_cubin({"k": [ANY]}))


def test_missing_named_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PASTA_NVDISASM", "/nowhere/nvdisasm")
    with pytest.raises(MissingDependency, match=r"/nowhere/nvdisasm.*No such file"):
        disassemble(make_cubin({"k": [ANY]}))


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No nvdisasm except where the test puts one."""
    for name in ("PASTA_NVDISASM", "CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site-packages")])
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    access = os.access
    monkeypatch.setattr(
        os, "access", lambda path, mode: str(path).startswith(str(tmp_path)) and access(path, mode)
    )
    return tmp_path


def place(path: Path) -> Path:
    path.parent.mkdir(parents=True)
    path.touch(mode=0o755)
    return path


def test_missing_nvdisasm_error_names_the_wheel(bare: Path) -> None:
    assert find_nvdisasm() is None
    with pytest.raises(MissingDependency, match="pip install nvidia-cuda-nvdisasm"):
        disassemble(make_cubin({"k": [ANY]}))


def test_search_order_of_nvdisasm(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_path = place(bare / "path" / "nvdisasm")
    assert find_nvdisasm() == on_path
    toolkit = place(bare / "cuda" / "bin" / "nvdisasm")
    monkeypatch.setenv("CUDA_PATH", str(bare / "cuda"))
    assert find_nvdisasm() == toolkit
    old = place(bare / "site-packages" / "nvidia" / "cuda_nvdisasm" / "bin" / "nvdisasm")
    assert find_nvdisasm() == old
    wheel = place(bare / "site-packages" / "nvidia" / "cu13" / "bin" / "nvdisasm")
    assert find_nvdisasm() == wheel
    monkeypatch.setenv("PASTA_NVDISASM", "/mine/nvdisasm")
    assert find_nvdisasm() == Path("/mine/nvdisasm")


# ---- cache ---------------------------------------------------------------------------------


def test_cached_texts_are_reused(
    recorded: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache" / "sass"
    module = LISTINGS / "sm80.cubin"
    first = disassemble(module, ["matrix", "absent"], cache=cache)
    assert disassemble(module, ["matrix"], cache=cache) == first
    assert disassemble(module, ["absent"], cache=cache) == []
    assert len(recorded) == 1
    # another function: only instructions that the first one lacks
    more = disassemble(module, ["widths"], cache=cache)
    assert len(recorded) == 2
    assert recorded[1] < len(recorded_code("sm80")["widths"].form)
    assert disassemble(module, ["matrix", "widths"], cache=cache) == sorted(
        [*more, *first], key=lambda function: [*listing("sm80")].index(function.name)
    )
    whole = disassemble(module, cache=cache)
    assert len(recorded) == 3
    assert disassemble(module, cache=cache) == whole == list(listing("sm80").values())
    assert disassemble(module, ["widths"], cache=cache) == more
    assert len(recorded) == 3
    disassemble(LISTINGS / "sm90.cubin", cache=cache)
    assert len(recorded) == 4
    assert len(list(cache.iterdir())) == 2
    # of another version
    monkeypatch.setattr(nvdisasm, "version", lambda program: "14.0")
    assert disassemble(module, cache=cache) == whole
    assert len(recorded) == 5


def test_cached_texts_need_no_nvdisasm(
    recorded: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = LISTINGS / "sm90.cubin"
    whole = disassemble(module, cache=tmp_path)
    monkeypatch.setattr(nvdisasm, "find_nvdisasm", lambda: None)
    assert disassemble(module, cache=tmp_path) == whole


@pytest.mark.parametrize(
    "damage",
    [lambda body: b"", lambda body: body[:-4], lambda body: b"[]\n" + body,
     lambda body: body.replace(b'"format": 3', b'"format": 2'),
     lambda body: body.replace(b'"instructions"', b'"commands"'),
     lambda body: body[:body.index(b"x\x01")] + zlib.compress(b"\0LDG.E R0, [R2]")],
)  # fmt: skip
def test_damaged_cache_is_rebuilt(recorded: list[int], tmp_path: Path, damage: object) -> None:
    assert callable(damage)
    module = LISTINGS / "sm100.cubin"
    first = disassemble(module, cache=tmp_path)
    (kept,) = tmp_path.iterdir()
    body = kept.read_bytes()
    kept.write_bytes(damage(body))
    assert disassemble(module, cache=tmp_path) == first
    assert len(recorded) == 2
    assert kept.read_bytes() == body


# ---- patterns ------------------------------------------------------------------------------


def invented(low: int, high: int) -> str:
    """Text of an instruction of an invented machine, by the fields of a real one."""
    d, a, b = (low >> shift & 255 for shift in (16, 24, 32))
    first, second, third, last = ("RZ" if n == 255 else f"R{n}" for n in (d, a, b, high & 255))
    return {
        0: f"@P0 FFMA {first}, {second}.reuse, {third}, {last}",
        1: f"IADD {first}, {second}, 0x{low >> 32 & 0xFFFFFFFF:x}, !PT",  # other bits in two fields
        2: f"MOV {first}, {third}" if a == 255 else f"ADD {first}, {second}, {third}, P{high & 7}",
        3: f"LDG.E.64 {first}, desc[UR{b & 63}][{second}.64+0x{high:x}]",
        4: f"SHF {first}, R{low >> 40 & 255}",  # a register elsewhere
        5: "" if d == 8 else f"S2R {first}, SR_TID.X",  # rejects a mark
        6: f"BRA P{a & 7}, .+0x{low >> 32 & 0xFFFF:x}",
    }[low & 7]


def test_patterns_give_the_texts_of_single_instructions(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def play(architecture: int, words: Any, end: float) -> Iterator[list[str]]:
        asked.append(len(words))
        yield [invented(low, high & OPERATION_MASK) for low, high in words.tolist()]

    monkeypatch.setattr(nvdisasm, "list_instructions", play)
    monkeypatch.setattr(patterns, "_FEW", 0)
    random = np.random.default_rng(1)
    registers = np.array([0, 1, 8, 16, 24, 32, 33, 254, 255], np.uint64)
    fields = random.choice(registers, (5000, 4))
    low = random.integers(0, 7, 5000, np.uint64) | random.integers(0, 3, 5000, np.uint64) << 40
    for field, shift in enumerate((16, 24, 32)):
        low |= fields[:, field] << np.uint64(shift)
    words = np.unique(np.column_stack([low, fields[:, 3]]), axis=0)
    listing = patterns.list_distinct(90, words, 0)
    expected = [invented(*each).replace(".reuse", "") for each in words.tolist()]
    at = patterns.find(listing.words, words)
    assert [listing.text(index) for index in at.tolist()] == expected
    assert sum(asked) < len(words)
    asked.clear()
    patterns.list_distinct(130, words, 0)  # not compared yet
    assert asked == [len(words)]
    assert_same_forms(build_forms(listing), build_forms(without_patterns(words, expected)), at)


def assert_same_forms(found: Forms, expected: Forms, at: Any) -> None:
    """Form `at[i]` of the first equals form i of the others."""
    names = np.array(found.opcode_names)[found.opcodes[at]]
    assert names.tolist() == np.array(expected.opcode_names)[expected.opcodes].tolist()
    assert found.flags[at].tolist() == expected.flags.tolist()
    for one, other in ((found.defs, expected.defs), (found.uses, expected.uses)):
        every = other.take(np.arange(len(at), dtype=np.int32))
        assert [each.tolist() for each in one.take(at)] == [each.tolist() for each in every]
    assert {form: found.deltas.get(each) for form, each in enumerate(at.tolist())} == {
        form: expected.deltas.get(form) for form in range(len(at))
    }


@pytest.mark.slow
@pytest.mark.skipif(find_nvdisasm() is None, reason="needs nvdisasm")
@pytest.mark.parametrize("path", sorted(LISTINGS.glob("*.cubin")), ids=lambda path: path.stem)
def test_patterns_of_real_code(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patterns, "_FEW", 0)
    (codes,) = read_code([(Cubin(path.read_bytes()), None)])
    expected = read_listing(path.with_suffix(".sass"))
    assert {name: code.texts() for name, code in codes.items()} == expected


# ---- the real tool -------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.skipif(find_nvdisasm() is None, reason="needs nvdisasm")
def test_nvdisasm_output_matches_the_recorded_listings() -> None:
    paths = sorted(LISTINGS.glob("*.cubin"))
    modules = read_code([(Cubin(path.read_bytes()), None) for path in paths])
    for path, codes in zip(paths, modules, strict=True):
        expected = read_listing(path.with_suffix(".sass"))
        assert {name: code.texts() for name, code in codes.items()} == expected


@pytest.mark.skipif(find_nvdisasm() is None, reason="needs nvdisasm")
def test_texts_equal_those_of_the_whole_module() -> None:
    """nvdisasm gives an instruction the same text alone and in its module, except names."""
    path = LISTINGS / "stalls_sm90.cubin"
    program = find_nvdisasm()
    assert program is not None
    done = subprocess.run(
        [program, "-c", "-ndf", "-raw", path], capture_output=True, text=True, check=True
    )
    lines = [line for line in done.stdout.splitlines() if line.lstrip().startswith("/*")]
    whole = {line.partition("*/")[2].rstrip(" ;").strip().replace(".reuse", "") for line in lines}
    for texts in read_listing(path.with_suffix(".sass")).values():
        for text in texts:
            # targets are names there
            assert ".+0x" in text or ".-0x" in text or "REL" in text or text in whole
