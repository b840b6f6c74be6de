"""Coverage of a kernel by probes: every reason for missed accesses has its text."""

from __future__ import annotations

from pathlib import Path

import pytest

from pasta.backends.nvidia.visibility import read_code, read_together, sanitizer
from pasta.probes.coverage import (
    Code,
    Coverage,
    KindCoverage,
    Visibility,
    cover,
    table,
)
from pasta.sass import disassembly as sass
from pasta.sass import nvdisasm
from pasta.sass.disassembly import Function, Instruction, Opcode
from tests.support.sass import make_cubin


def describe(coverage: Coverage, name: str | None = None) -> str:
    """Summary of a kernel: verdict, kinds in the code or requested by probes, reasons.

    `name` is written instead of the mangled one.
    """
    lines = [f"{name or coverage.kernel}: {_VERDICTS[coverage.verdict]}"]
    shown = [row for row in coverage.kinds if row.wanted and row.instructions != 0]
    if not shown and coverage.verdict == "seen":
        lines.append("  the code has no instruction of a kind that probes ask for")
    unmissed = [row for row in shown if not row.missed]
    width = max((len(row.kind) for row in unmissed), default=0)
    lines += [f"  {row.kind:<{width}}  {row.state}" for row in unmissed]
    lines += [f"  {reason}" for reason in coverage.reasons]
    lines += [f"  note: {note}" for note in coverage.notes]
    return "\n".join(lines)


_VERDICTS: dict[str, str] = {
    "seen": "seen",
    "partly": "partly seen",
    "unseen": "not seen",
    "unknown": "nothing fired; whether it has such instructions is not known",
}


GLOBAL_MEMORY = {
    "global", "async_copy", "bulk_load", "bulk_store", "bulk_reduction",
    "tensor_load", "tensor_store",
}  # fmt: skip
NEW = sanitizer("13.5")
OLD = sanitizer("13.0")


def function(name: str, *opcodes: str, calls: frozenset[str] = frozenset()) -> Function:
    """Instructions 16 bytes apart, from 0."""
    instructions = tuple(
        Instruction(16 * i, sass.classify(text) or Opcode(text, sass.UNKNOWN))
        for i, text in enumerate(opcodes)
    )
    return Function(name, 16 * len(opcodes), instructions, calls)


def code(*functions: Function) -> Code:
    return Code({f.name: f for f in functions})


def row(coverage: Coverage, kind: str) -> KindCoverage:
    (found,) = [one for one in coverage.kinds if one.kind == kind]
    return found


def covered(
    *opcodes: str,
    fired: dict[str, list[int]] | None = None,
    wanted: set[str] = GLOBAL_MEMORY,
    patched: set[str] | None = None,
    visibility: Visibility = NEW,
) -> Coverage:
    return cover(
        "k",
        code(function("k", *opcodes, "EXIT")),
        fired or {},
        wanted=wanted,
        patched=wanted & visibility.kinds if patched is None else patched,
        visibility=visibility,
    )


def test_all_accesses_are_seen() -> None:
    coverage = covered("LDG.E", "LDG.E.64", "STG.E", fired={"global": [0, 32]})
    assert coverage.verdict == "seen"
    assert row(coverage, "global").state == "2 of 3 executed"
    assert coverage.reasons == coverage.notes == ()
    assert describe(coverage) == "k: seen\n  global  2 of 3 executed"


def test_kind_without_a_callback() -> None:
    opcodes = ["LDG.E"] + ["UTMALDG.2D"] * 12
    coverage = covered(*opcodes, fired={"global": [0]}, visibility=OLD)
    assert coverage.verdict == "partly"
    assert coverage.reasons == (
        "12 tensor_load instructions were not seen: "
        "the Sanitizer library 13.0 has no callback for them",
    )
    tensor = row(coverage, "tensor_load")
    assert (tensor.instructions, tensor.executed, tensor.visible, tensor.patched) == (
        12, 0, False, False,
    )  # fmt: skip
    assert describe(coverage, "void k()").splitlines() == [
        "void k(): partly seen",
        "  global  1 of 1 executed",
        f"  {coverage.reasons[0]}",
    ]


def test_no_accesses_are_seen() -> None:
    coverage = covered("UTMALDG.2D", visibility=OLD)
    assert coverage.verdict == "unseen"
    assert coverage.reasons == (
        "1 tensor_load instruction was not seen: the Sanitizer library 13.0 has no callback for it",
    )
    assert describe(coverage).startswith("k: not seen\n")


def test_zero_counts_are_explained() -> None:
    """Not executed, not patched, not in the code: three zeros, three texts."""
    patched = covered("LDG.E", "LDGSTS.E", fired={"global": [0]})
    assert row(patched, "async_copy").state == "0 of 1 executed (in the code, patched)"
    assert patched.verdict == "seen"
    not_patched = covered("LDG.E", "LDGSTS.E", fired={"global": [0]}, patched={"global"})
    assert row(not_patched, "async_copy").state == "not seen: not patched in this kernel"
    assert not_patched.verdict == "partly"
    assert not_patched.reasons == (
        "1 async_copy instruction was not seen: not patched in this kernel",
    )
    absent = covered("LDG.E", fired={"global": [0]})
    assert row(absent, "async_copy").state == "none in the code"
    assert absent.verdict == "seen"


def test_kinds_that_were_not_requested_are_not_missed() -> None:
    coverage = covered("LDG.E", "LDS", "STS", fired={"global": [0]})
    assert coverage.verdict == "seen"
    assert row(coverage, "shared").state == "not selected"
    assert "shared" not in describe(coverage)


def test_kernel_without_instructions_of_the_kind() -> None:
    coverage = covered("LDS", visibility=OLD)
    assert coverage.verdict == "seen"
    assert describe(coverage) == (
        "k: seen\n  the code has no instruction of a kind that probes ask for"
    )


def test_texture_accesses_are_reported_as_missed() -> None:
    coverage = covered("TEX.LL", "SUST.D.BA", "STG.E", fired={"global": [32]})
    assert coverage.verdict == "partly"
    assert coverage.reasons == (
        "2 texture instructions were not seen: the Sanitizer library 13.5 has no callback for"
        " texture and surface instructions",
    )
    # shared memory is requested: texture is irrelevant, reads by the tensor core are not
    shared = covered("TEX.LL", "HGMMA.64x8x16.F32", "LDS", wanted={"shared"})
    assert shared.verdict == "partly"
    assert [one.split(":")[0] for one in shared.reasons] == [
        "1 tensor_core instruction was not seen"
    ]


def test_unknown_opcodes() -> None:
    coverage = covered("LDFOO.E.64", "LDFOO.E", "LDG.E")
    assert coverage.verdict == "partly"
    assert coverage.reasons == (
        "2 unknown instructions were not seen: not known to PASTA (LDFOO.E, LDFOO.E.64)",
    )
    assert covered("LDFOO.E", wanted={"barrier"}).verdict == "seen"


def test_prefetches_are_not_missed_accesses() -> None:
    assert covered("CCTL.E.PF2", "UTMAPF.L2.2D", "LDG.E").verdict == "seen"


def test_generic_instructions_count_by_address_space() -> None:
    coverage = covered(
        "LD.E", "LDG.E", "LDS", "ST.E",
        fired={"global": [0, 16], "shared": [0, 32]},
        wanted={"global", "shared"},
    )  # fmt: skip
    assert row(coverage, "generic").state == "1 of 2 executed"
    assert row(coverage, "global").state == "1 of 1 executed"
    assert row(coverage, "shared").state == "1 of 1 executed"
    assert coverage.verdict == "seen"
    assert coverage.notes == (
        "2 instructions may access any address space (generic addresses):"
        " each access is counted by its address",
    )


def test_kernel_with_only_generic_instructions() -> None:
    unpatched = covered("LD.E", patched=set())
    assert unpatched.verdict == "unseen"
    assert unpatched.reasons == ("1 generic instruction was not seen: not patched in this kernel",)
    assert covered("LD.E").verdict == "seen"


def test_calls_outside_the_kernel_are_counted_in() -> None:
    kernel = function("k", "LDG.E", "CALL.ABS.NOINC", calls=frozenset({"f"}))
    f = function("f", "LDG.E", "UTMALDG.2D", "CALL.ABS.NOINC", calls=frozenset({"k", "g"}))
    g = function("g", "LDG.E")
    coverage = cover(
        "k", code(kernel, f, g), {"global": [0, 0x4000]},
        wanted=GLOBAL_MEMORY, patched={"global"}, visibility=OLD,
    )  # fmt: skip
    assert row(coverage, "global").state == "2 of 3 executed"
    assert row(coverage, "tensor_load").instructions == 1
    assert coverage.notes == ()
    alone = cover(
        "k", code(kernel), {}, wanted=GLOBAL_MEMORY, patched=GLOBAL_MEMORY, visibility=NEW
    )
    assert alone.notes == ("calls code that is not counted here: f",)


def test_indirect_calls_are_noted() -> None:
    kernel = Function("k", 16, (), indirect=True)
    coverage = cover("k", code(kernel), {}, wanted={"global"}, patched={"global"}, visibility=NEW)
    assert coverage.notes == ("calls code that is not counted here: functions chosen at run time",)


def test_executed_instructions_must_exist_in_the_code() -> None:
    coverage = covered("IMAD", "LDG.E", fired={"global": [16, 0x20]})
    assert coverage.notes == (
        "1 instruction fired where the code has no instruction of that kind:"
        " instruction counts may come from other code",
    )


def test_without_a_disassembler() -> None:
    missing = Code(None, "nvdisasm was not found: pip install nvidia-cuda-nvdisasm")
    fired = cover(
        "k", missing, {"global": [0, 16]}, wanted={"global"}, patched={"global"}, visibility=NEW
    )
    assert fired.verdict == "seen"
    assert row(fired, "global").state == "2 executed"
    assert fired.notes == (
        "from the probes that fired; the rest of the code is unknown:"
        " nvdisasm was not found: pip install nvidia-cuda-nvdisasm",
    )
    silent = cover("k", missing, {}, wanted={"global"}, patched={"global"}, visibility=NEW)
    assert silent.verdict == "unknown"
    assert row(silent, "global").state == ("0 executed (patched; unknown whether the code has any)")
    part = cover(
        "k", missing, {"global": [0]},
        wanted={"global", "tensor_load"}, patched={"global"}, visibility=OLD,
    )  # fmt: skip
    assert part.verdict == "partly"
    assert part.reasons == (
        "tensor_load instructions, if the code has any, were not seen:"
        " the Sanitizer library 13.0 has no callback for them",
    )
    none = cover("k", missing, {}, wanted={"tensor_load"}, patched=set(), visibility=OLD)
    assert none.verdict == "unseen"


def test_kernel_missing_in_the_module() -> None:
    coverage = cover(
        "k",
        code(function("other", "LDG.E")),
        {},
        wanted={"global"},
        patched={"global"},
        visibility=NEW,
    )
    assert coverage.verdict == "unknown"
    assert "the module's code does not have this kernel" in coverage.notes[0]


def test_kernels_begin_and_end() -> None:
    coverage = covered(
        "BAR.SYNC", "LDG.E",
        fired={"block_enter": [0], "block_exit": [32], "barrier": [0]},
        wanted={"block_enter", "block_exit", "barrier"},
    )  # fmt: skip
    assert [row(coverage, kind).state for kind in ("block_enter", "block_exit", "barrier")] == [
        "1 of 1 executed",
        "1 of 1 executed",
        "1 of 1 executed",
    ]
    assert coverage.verdict == "seen"
    assert coverage.notes == ()


def test_kinds_have_names() -> None:
    with pytest.raises(ValueError, match="'globl' is not an access kind"):
        covered("LDG.E", wanted={"globl"})
    with pytest.raises(ValueError, match="'texture' is not an access kind"):
        covered("LDG.E", fired={"texture": [0]})


def test_coverage_by_sanitizer_version() -> None:
    everything = frozenset(sass.SPACES)
    assert sanitizer("13.5").kinds == everything - {"tensor_store"}
    assert sanitizer("13.3").kinds == everything - {"tensor_store"}
    assert everything - sanitizer("13.0").kinds == {"tensor_load", "tensor_store"}
    assert everything - sanitizer("12.9").kinds == {"tensor_load", "tensor_store"}
    assert sanitizer("12.8").kinds == frozenset()  # probes do not run with it


def test_missed_instructions_are_listed_first() -> None:
    seen = covered("LDG.E", fired={"global": [0]}, wanted={"global"})
    unseen = covered("UTMALDG.2D", wanted={"tensor_load"}, visibility=OLD)
    unknown = cover("f", Code(None), {}, wanted={"global"}, patched={"global"}, visibility=NEW)
    rows = list(table([seen, unknown, unseen], {"k": "kernel(int)"}).rows())
    entries = [(one["kernel"], one["kind"], one["instructions"], one["executed"]) for one in rows]
    assert entries[0] == ("kernel(int)", "tensor_load", 1, 0)
    assert ("f", "global", None, 0) in entries
    assert ("kernel(int)", "global", 1, 1) in entries
    assert rows[0]["coverage"] == "unseen"
    assert rows[0]["state"] == "not seen: the Sanitizer library 13.0 has no callback for them"
    assert table([]).columns.keys() == table([seen]).columns.keys()
    table([seen, unknown]).to_arrow()


def test_reads_a_kernel_and_its_callees(monkeypatch: pytest.MonkeyPatch) -> None:
    module = {
        "k": function("k", "CALL.ABS.NOINC", calls=frozenset({"f"})),
        "f": function("f", "LDG.E", calls=frozenset({"k", "absent"})),
        "other": function("other"),
    }
    asked = []

    def disassemble(
        modules: list[tuple[bytes, set[str] | None]], *, cache: Path | None, timeout: float
    ) -> list[list[Function]]:
        ((_, functions),) = modules
        asked.append(functions)
        return [[one for name, one in module.items() if functions is None or name in functions]]

    monkeypatch.setattr(sass, "disassemble_together", disassemble)
    assert read_code(b"", ["k"]).functions == {"k": module["k"], "f": module["f"]}
    assert asked == [{"k"}, {"f"}, {"absent"}]
    assert read_code(b"").functions == module


def test_a_module_that_cannot_be_read_does_not_affect_others() -> None:
    good, bad = make_cubin({"k": [(1, 2)]}), b"\x7fELF"
    alone = read_code(good)
    first, broken, second = read_together([(good, None), (bad, None), (good, ["k"])])
    assert first == second == alone
    assert broken.functions is None and "ELF" in broken.reason


def test_unreadable_code_never_raises(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(nvdisasm, "find_nvdisasm", lambda: None)
    assert read_code(make_cubin({"k": [(1, 2)]})) == Code(
        None, "nvdisasm was not found: pip install nvidia-cuda-nvdisasm"
    )
    assert read_code(b"\x7fELF").functions is None
    gone = read_code(tmp_path / "gone.cubin")
    assert gone.functions is None
    assert "No such file" in gone.reason
