"""Contents of a module's functions: listings of our own kernels, and the real nvdisasm.

The listings in tests/data/sass come from the .cu files beside them, so what a kernel must
contain can be read there.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import struct
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from pasta.errors import MissingDependency
from pasta.sass import disassembly as sass
from pasta.sass.disassembly import Function, SassError, classify, disassemble, find_nvdisasm, parse
from tests.support.places import DATA

LISTINGS = DATA / "sass"
NOT_MEMORY = {"barrier", "block_exit", "call"}


def listing(name: str) -> dict[str, Function]:
    with open(LISTINGS / f"{name}.sass") as file:
        return {function.name: function for function in parse(file)}


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


def section(*lines: str, name: str = "k") -> io.StringIO:
    body = "".join(f"        /*{16 * i:04x}*/  {line} ;\n" for i, line in enumerate(lines))
    return io.StringIO(f'\t.section\t.text.{name},"ax",@progbits\n.text.{name}:\n{body}')


def test_unknown_opcode_with_an_address_is_reported() -> None:
    (function,) = parse(
        section(
            "LDFOO.E.64 R2, desc[UR4][R2.64]",
            "STBAR [UR4], R2",
            "IMAD R1, R2, c[0x0][0x28], R3",
            "LDC R1, c[0x0][R4+0x8]",
            "XMMA R24, gdesc[UR4], RZ",
        )
    )
    assert [(i.kind, i.opcode.text) for i in function.instructions] == [
        ("unknown", "LDFOO.E.64"),
        ("unknown", "STBAR"),
    ]


def test_predicates() -> None:
    (function,) = parse(
        section("@P0 LDG.E R0, [R2]", "@!UP1 UBLKCP.S.G [UR8], [UR4], UR10", "LDS R1, [R2]",
                "@!PT LDS RZ, [RZ]")
    )  # fmt: skip
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
    assert wide.file == "sm80.cu"
    assert wide.line is not None
    assert "make_int4(1, 2, 3, 4)" in source[wide.line - 1]
    assert {i.file for i in listing("sm90")["bulk"].instructions} == {None}


def test_line_table_ends_with_the_function() -> None:
    text = (
        '\t.section\t.text.a,"ax",@progbits\n\t//## File "a.cu", line 3\n'
        "        /*0000*/  LDG.E R0, [R2] ;\n"
        '\t.section\t.text.b,"ax",@progbits\n        /*0000*/  LDG.E R0, [R2] ;\n'
    )
    a, b = parse(io.StringIO(text))
    assert (a.instructions[0].file, a.instructions[0].line) == ("a.cu", 3)
    assert (b.instructions[0].file, b.instructions[0].line) == (None, None)


def test_calls_to_other_sections_are_named() -> None:
    calls = listing("sm80")["calls"]
    assert calls.calls == frozenset()  # its device function is in its own section
    assert calls.indirect  # and it calls through a pointer
    text = (
        '\t.section\t.text.caller,"ax",@progbits\n'
        "        .type           caller,@function\n"
        "        /*0000*/  CALL.ABS.NOINC `(_Z5otherPi) ;\n"
        "        /*0010*/  CALL.REL.NOINC `($caller$slow) ;\n"
        "        .type           $caller$slow,@function\n"
        "        /*0020*/  CALL.REL.NOINC `(_Z6insidePi$3) ;\n"
    )
    (caller,) = parse(io.StringIO(text))
    assert caller.calls == {"_Z5otherPi", "_Z6insidePi$3"}
    assert not caller.indirect


def test_only_requested_functions() -> None:
    with open(LISTINGS / "sm80.sass") as file:
        found = list(parse(file, ["matrix", "no such kernel"]))
    assert found == [listing("sm80")["matrix"]]


@pytest.mark.parametrize("chunk", [1, 7, 1000])
def test_lines_split_by_a_pipe_are_joined(monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    whole = listing("sm90")["tensor"]
    monkeypatch.setattr(sass, "_CHUNK", chunk)
    text = (LISTINGS / "sm90.sass").read_text()
    cut = text[text.index("\t.section\t.text.tensor") :]
    assert next(iter(parse(io.StringIO(cut)))) == whole


@pytest.mark.slow
@pytest.mark.timeout(60)  # reading takes time in proportion to the lines: seconds for a million
def test_million_lines_are_read() -> None:
    body = (LISTINGS / "sm80.sass").read_text()
    text = body * (1_000_000 // body.count("\n") + 1)
    found = sum(1 for _ in parse(io.StringIO(text)))
    assert found > 10_000


# ---- the program ---------------------------------------------------------------------------


def cubin(*functions: str) -> bytes:
    """An ELF file with a symbol table, which gives each function's index."""
    names = b"\0" + b"".join(name.encode() + b"\0" for name in functions)
    symbols = struct.pack("<IBBHQQ", 0, 0, 0, 0, 0, 0)
    at = 1
    for name in functions:
        symbols += struct.pack("<IBBHQQ", at, 0x12, 0, 1, 0, 128)
        at += len(name.encode()) + 1
    strings_at, symbols_at = 64, 64 + len(names)
    headers_at = symbols_at + len(symbols)
    header = b"\x7fELF\x02\x01".ljust(0x28, b"\0") + struct.pack("<Q", headers_at)
    header = header.ljust(0x3A, b"\0") + struct.pack("<HH", 64, 3)
    sections = (
        bytes(64)
        + struct.pack("<IIQQQQIIQQ", 0, 3, 0, 0, strings_at, len(names), 0, 0, 1, 0)
        + struct.pack("<IIQQQQIIQQ", 0, 2, 0, 0, symbols_at, len(symbols), 1, 0, 8, 24)
    )
    return header.ljust(64, b"\0") + names + symbols + sections


@pytest.fixture
def fake_nvdisasm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program that prints a listing and logs its arguments; the test may replace it."""
    program = tmp_path / "nvdisasm"
    calls = tmp_path / "calls"
    program.write_text(
        f"#!{sys.executable}\n"
        "import sys\n"
        f"open({str(calls)!r}, 'a').write(' '.join(sys.argv[1:-1]) + '\\n')\n"
        f"sys.stdout.write(open({str(LISTINGS / 'sm80.sass')!r}).read())\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PASTA_NVDISASM", str(program))
    return calls


def test_runs_nvdisasm(fake_nvdisasm: Path) -> None:
    found = disassemble(cubin("matrix", "widths"))
    assert {function.name: function for function in found} == listing("sm80")
    assert "-fun" not in fake_nvdisasm.read_text()


def test_requests_only_wanted_functions_from_nvdisasm(fake_nvdisasm: Path, tmp_path: Path) -> None:
    module = tmp_path / "a.cubin"
    module.write_bytes(cubin("other", "matrix", "widths"))
    found = disassemble(module, ["widths", "matrix", "absent"])
    assert sorted(function.name for function in found) == ["matrix", "widths"]
    assert fake_nvdisasm.read_text().rstrip().endswith("-fun 2,3")


def test_missing_names_do_not_start_nvdisasm(fake_nvdisasm: Path) -> None:
    assert disassemble(cubin("matrix"), ["absent"]) == []
    assert not fake_nvdisasm.exists()


@pytest.mark.parametrize("image", [b"", b"not a cubin", cubin("k")[:100]])
def test_invalid_cubin_is_reported(fake_nvdisasm: Path, image: bytes) -> None:
    with pytest.raises(SassError):
        disassemble(image, ["k"])


def test_module_rejected_by_nvdisasm(fake_nvdisasm: Path, tmp_path: Path) -> None:
    (tmp_path / "nvdisasm").write_text(
        "#!/bin/sh\necho 'nvdisasm fatal   : unsupported architecture sm_70' >&2\nexit 1\n"
    )
    with pytest.raises(SassError, match=r"unsupported architecture sm_70.*nvidia-cuda-nvdisasm"):
        disassemble(cubin("k"))


@pytest.mark.timeout(60)
def test_hanging_disassembler_is_killed(fake_nvdisasm: Path, tmp_path: Path) -> None:
    (tmp_path / "nvdisasm").write_text("#!/bin/sh\nexec sleep 100\n")
    with pytest.raises(SassError, match=r"more than 0\.2 s"):
        disassemble(cubin("k"), timeout=0.2)


def test_missing_named_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PASTA_NVDISASM", "/nowhere/nvdisasm")
    with pytest.raises(MissingDependency, match=r"/nowhere/nvdisasm.*No such file"):
        disassemble(cubin("k"))


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
        disassemble(cubin("k"))


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


def runs(calls: Path) -> int:
    return len(calls.read_text().splitlines()) if calls.exists() else 0


def test_cached_listing_is_reused(fake_nvdisasm: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache" / "sass"
    module = cubin("matrix", "widths", "caches")
    first = disassemble(module, ["matrix", "absent"], cache=cache)
    assert disassemble(module, ["matrix"], cache=cache) == first
    assert disassemble(module, ["absent"], cache=cache) == []
    assert runs(fake_nvdisasm) == 1
    # another function is added to the cache
    more = disassemble(module, ["widths"], cache=cache)
    assert runs(fake_nvdisasm) == 2
    assert disassemble(module, ["matrix", "widths"], cache=cache) == [*more, *first]
    assert runs(fake_nvdisasm) == 2
    # the whole module
    whole = disassemble(module, cache=cache)
    assert runs(fake_nvdisasm) == 3
    assert disassemble(module, cache=cache) == whole == list(listing("sm80").values())
    assert disassemble(module, ["widths"], cache=cache) == more
    assert runs(fake_nvdisasm) == 3
    # another module
    disassemble(cubin("matrix"), cache=cache)
    assert runs(fake_nvdisasm) == 4
    assert len(list(cache.iterdir())) == 2


def test_unknown_opcodes_are_cached(fake_nvdisasm: Path, tmp_path: Path) -> None:
    text = section("LDFOO.E R0, [R2]").getvalue()
    (tmp_path / "nvdisasm").write_text(f"#!/bin/sh\ncat <<'END'\n{text}END\n")
    for _ in range(2):
        (function,) = disassemble(cubin("k"), cache=tmp_path / "cache")
        assert [i.kind for i in function.instructions] == ["unknown"]


@pytest.mark.parametrize(
    "damage",
    [lambda text: "", lambda text: text[:-40], lambda text: "[]\n" + text,
     lambda text: text.replace('"schema": 1', '"schema": 0'),
     lambda text: text.replace('"bytes"', '"size"')],
)  # fmt: skip
def test_damaged_cache_is_rebuilt(fake_nvdisasm: Path, tmp_path: Path, damage: object) -> None:
    assert callable(damage)
    first = disassemble(cubin("k"), cache=tmp_path / "cache")
    (kept,) = (tmp_path / "cache").iterdir()
    kept.write_text(damage(kept.read_text()))
    assert disassemble(cubin("k"), cache=tmp_path / "cache") == first
    assert runs(fake_nvdisasm) == 2
    assert json.loads(kept.read_text().splitlines()[0])["schema"] == 1


# ---- the real tool -------------------------------------------------------------------------

NVCC = shutil.which("nvcc") or next(
    (str(path) for path in [Path("/usr/local/cuda/bin/nvcc")] if path.exists()), None
)


@pytest.mark.skipif(find_nvdisasm() is None or NVCC is None, reason="needs nvdisasm and nvcc")
@pytest.mark.parametrize(
    ("module", "arch"), [("sm80", "sm_80"), ("sm90", "sm_90a"), ("sm100", "sm_100a")]
)
def test_nvdisasm_output_matches_the_recorded_listings(
    module: str, arch: str, tmp_path: Path
) -> None:
    assert NVCC is not None
    built = tmp_path / "out.cubin"
    command = [NVCC, f"-arch={arch}", "-lineinfo", "-cubin", "-o", str(built)]
    subprocess.run([*command, str(LISTINGS / f"{module}.cu")], check=True, timeout=110)
    whole = {function.name: function for function in disassemble(built)}
    expected = listing(module)
    assert {name: kinds(function) for name, function in whole.items()} == {
        name: kinds(function) for name, function in expected.items()
    }
    one = sorted(expected)[0]
    assert disassemble(built, [one]) == [whole[one]]
    assert all(
        Path(i.file).is_absolute() and i.line
        for function in whole.values()
        for i in function.instructions
        if i.file is not None
    )
    assert any(i.file for i in whole[one].instructions)
