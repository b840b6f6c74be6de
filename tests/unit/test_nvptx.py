"""Python functions as patches: PTX and cubins, without a GPU."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from pasta.backends.nvidia import nvptx
from pasta.backends.nvidia.intrinsics import (
    activemask,
    atomic_add_u64,
    ballot_sync,
    is_first,
    load_u32,
    load_u64,
    match_any_sync,
    popc,
    smid,
)
from pasta.backends.nvidia.libraries import find_ptxas
from pasta.backends.nvidia.lowering import PatchError, PatchFunction
from pasta.backends.nvidia.nvptx import compile_patches, to_ptx
from pasta.errors import MissingDependency
from tests.support.patch_intrinsics import store_u64, ult

MEMORY_ACCESS = ("u64", "u64", "u64", "u32", "u32", "u64")


def ptx_of(
    function: Callable[..., Any], arguments: Sequence[str] = ("u64", "u64"), sm: int = 90
) -> str:
    return to_ptx([PatchFunction("patch", function, tuple(arguments))], sm)


def instructions(ptx: str) -> list[str]:
    """Opcodes and labels of the one function in `ptx`, in order."""
    body = ptx[ptx.index("\n{") :]
    lines = (line.split("//")[0].strip() for line in body.splitlines())
    return [
        line.split()[1] if line.startswith("@") else line.split()[0]
        for line in lines
        if line and not line.startswith((".", "{", "}"))
    ]


# ---- an example: which range an address is in, counted per multiprocessor --------------------


def find_range(table, count, address):
    """Number of the range (begin, end) that holds `address`, in a sorted table; -1: none."""
    low = 0
    high = count
    while low < high:
        middle = (low + high) >> 1
        if ult(address, load_u64(table + 16 * middle)):
            high = middle
        else:
            low = middle + 1
    if low == 0:
        return -1
    if ult(address, load_u64(table + 16 * low - 8)):
        return low - 1
    return -1


def count_ranges(place, pc, address, size, flags, data):
    """`place`: table, counters, number of ranges, counters per multiprocessor."""
    if place == 0:
        return 0
    table = load_u64(place)
    counters = load_u64(place + 8)
    count = load_u32(place + 16)
    columns = load_u32(place + 20)
    found = find_range(table, count, address)
    mask = activemask()
    same = match_any_sync(mask, found)
    if is_first(same) and found >= 0:
        atomic_add_u64(counters + 8 * (smid() * columns + found), popc(same))
    return 0


def test_patch_is_one_function_without_calls() -> None:
    ptx = ptx_of(count_ranges, MEMORY_ACCESS)
    declared = re.findall(r"^\.(?:visible|weak|extern|func|global|const|shared).*", ptx, re.M)
    assert declared == [".visible .func  (.param .b32 func_retval0) patch("]
    parameters = re.findall(r"\.param \.(b\d+) patch_param_(\d)", ptx)
    assert parameters == [
        ("b64", "0"), ("b64", "1"), ("b64", "2"), ("b32", "3"), ("b32", "4"), ("b64", "5"),
    ]  # fmt: skip
    assert not re.search(r"\.local|__local_depot|\bcall\b|trap|\.f32|\.f64|vprintf", ptx)


def test_patch_reads_global_memory_and_reduces() -> None:
    opcodes = instructions(ptx_of(count_ranges, MEMORY_ACCESS))
    memory = {opcode for opcode in opcodes if opcode.startswith(("ld.", "st.", "atom", "red"))}
    assert memory == {
        "ld.param.b64", "ld.global.b64", "ld.global.b32", "red.relaxed.gpu.global.add.u64",
        "st.param.b32",
    }  # fmt: skip
    assert opcodes.count("match.any.sync.b32") == 1


@pytest.mark.parametrize(
    ("sm", "version", "base"),
    [(75, "6.3", 75), (80, "7.0", 80), (89, "7.0", 80), (90, "8.0", 90), (120, "8.0", 90)],
)
def test_ptx_version_is_supported_by_old_compilers(sm: int, version: str, base: int) -> None:
    ptx = ptx_of(count_ranges, MEMORY_ACCESS, sm)
    assert f".version {version}\n.target sm_{base}\n" in ptx


def test_unknown_architecture_does_not_abort_the_process() -> None:
    assert ".target sm_90" in ptx_of(count_ranges, MEMORY_ACCESS, 199)


def test_architecture_without_warp_matching_is_rejected() -> None:
    with pytest.raises(PatchError, match="sm_75 or later, not sm_61"):
        ptx_of(count_ranges, MEMORY_ACCESS, 61)


# ---- warp operations are not moved -------------------------------------------------------------


def active_after_a_branch(place, address):
    kind = 2
    if ult(address, 100):
        kind = 1
        store_u64(place, address)
    mask = activemask()
    if kind == 1:
        store_u64(place + 8, address)
    store_u64(place + 16, match_any_sync(mask, address))
    return 0


def lanes_here(place):
    return popc(activemask())


def active_in_a_callee(place, address):
    kind = 2
    if ult(address, 100):
        kind = 1
        store_u64(place, address)
    lanes = lanes_here(place)
    if kind == 1:
        store_u64(place + 8, address)
    store_u64(place + 16, lanes)
    return 0


@pytest.mark.parametrize("function", [active_after_a_branch, active_in_a_callee])
def test_activemask_is_read_once_after_convergence(
    function: Callable[..., Any],
) -> None:
    # LLVM would copy it to both sides of the first branch, to save the test of `kind`.
    opcodes = instructions(ptx_of(function))
    asked = [i for i, opcode in enumerate(opcodes) if opcode == "activemask.b32"]
    first_store = opcodes.index("st.global.b64")
    assert len(asked) == 1
    assert first_store < asked[0]
    assert any(opcode.endswith(":") for opcode in opcodes[first_store : asked[0]])


def match_in_a_branch(place, value):
    mask = activemask()
    if place != 0:
        store_u64(place, match_any_sync(mask, value))
    return 0


def ballots_in_both_branches(place, value):
    mask = activemask()
    if value > 7:
        store_u64(place, ballot_sync(mask, value & 1))
    else:
        store_u64(place + 8, ballot_sync(mask, value & 1))
    return 0


def test_match_in_a_branch_is_not_moved() -> None:
    opcodes = instructions(ptx_of(match_in_a_branch))
    assert opcodes.index("activemask.b32") < opcodes.index("bra")
    assert opcodes.index("bra") < opcodes.index("match.any.sync.b32")


def test_equal_votes_of_two_branches_are_not_merged() -> None:
    opcodes = instructions(ptx_of(ballots_in_both_branches))
    assert opcodes.count("vote.sync.ballot.b32") == 2
    assert opcodes.index("bra") < opcodes.index("vote.sync.ballot.b32")


# ---- integers --------------------------------------------------------------------------------


def compares(place, address):
    if ult(address, load_u64(place)):
        return 1
    return 0


def compares_signed(place, address):
    if address < load_u64(place):
        return 1
    return 0


def narrow(place, size, flags):
    store_u64(place, size)
    store_u64(place + 8, flags)
    return -1


def test_comparisons_are_signed_except_ult() -> None:
    assert "setp.lt.u64" in ptx_of(compares)
    assert "setp.lt.s64" in ptx_of(compares_signed)


def test_32_bit_parameters_are_sign_extended() -> None:
    ptx = ptx_of(narrow, ("u64", "u32", "i32"))
    assert re.search(r"ld\.param\.b32\s+%rd\d+, \[patch_param_1\]", ptx)
    assert re.search(r"ld\.param\.s32\s+%rd\d+, \[patch_param_2\]", ptx)
    assert re.search(r"st\.param\.b32\s+\[func_retval0\], -1", ptx)


# ---- ptxas -----------------------------------------------------------------------------------


@pytest.fixture
def ptxas() -> Path:
    try:
        return find_ptxas()
    except MissingDependency as error:
        pytest.skip(str(error))


@pytest.fixture
def fresh() -> Any:
    find_ptxas.cache_clear()
    yield
    find_ptxas.cache_clear()


def symbols(cubin: bytes) -> dict[str, tuple[int, int]]:
    """Type and bytes of each named symbol of an ELF file of 64 bits."""
    sections, size, count = (
        struct.unpack_from("<Q", cubin, 40)[0],
        *struct.unpack_from("<HH", cubin, 58),
    )
    headers = [struct.unpack_from("<IIQQQQIIQQ", cubin, sections + i * size) for i in range(count)]
    found = {}
    for _, kind, _, _, offset, length, link, *_ in headers:
        if kind != 2:  # SHT_SYMTAB
            continue
        names = headers[link][4]
        for at in range(offset, offset + length, 24):
            name, info, _, _, _, extent = struct.unpack_from("<IBBHQQ", cubin, at)
            text = cubin[names + name : cubin.index(b"\0", names + name)].decode()
            found[text] = (info & 15, extent)
    return found


@pytest.mark.parametrize("sm", [80, 90, 100])
def test_cubin_contains_each_patch_as_a_function(ptxas: Path, sm: int) -> None:
    made = compile_patches(
        [
            PatchFunction("on_access", count_ranges, MEMORY_ACCESS),
            PatchFunction("on_other", active_in_a_callee, ("u64", "u64")),
        ],
        sm,
    )
    functions = {name: extent for name, (kind, extent) in symbols(made.cubin).items() if kind == 2}
    # Before Hopper, ptxas adds its own function for operations without an instruction.
    added = {name for name in functions if name.startswith("__cuda_")}
    assert set(functions) - added == {"on_access", "on_other"}
    assert all(functions.values())
    assert "Function properties for on_access" in made.usage


def test_patch_spills_no_more_than_equivalent_cuda(ptxas: Path) -> None:
    # nvcc 13.0's of the same function: 8 bytes, and 97 instructions.
    made = compile_patches([PatchFunction("on_access", count_ranges, MEMORY_ACCESS)], 90)
    spilled = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", made.usage)
    assert spilled is not None
    assert max(int(spilled[1]), int(spilled[2])) <= 8


def test_ptxas_errors_are_reported(ptxas: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvptx, "to_ptx", lambda *_: ".version 8.0\n.target sm_90\nbad\n")
    with pytest.raises(PatchError, match=r"ptxas rejects the patches: .*line 3"):
        compile_patches([], 90)


def test_named_ptxas_is_used(fresh: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "ptxas"
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PASTA_PTXAS", str(tool))
    assert find_ptxas() == tool


def test_missing_named_ptxas_is_an_error(
    fresh: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PASTA_PTXAS", str(tmp_path / "none"))
    with pytest.raises(MissingDependency, match="is not executable"):
        find_ptxas()


def test_ptxas_of_a_wheel_precedes_a_toolkit(
    fresh: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools = {
        "wheel": tmp_path / "site" / "nvidia" / "cu13" / "bin" / "ptxas",
        "toolkit": tmp_path / "cuda" / "bin" / "ptxas",
    }
    for tool in tools.values():
        tool.parent.mkdir(parents=True)
        tool.write_text("#!/bin/sh\n")
        tool.chmod(0o755)
    monkeypatch.delenv("PASTA_PTXAS", raising=False)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "cuda"))
    monkeypatch.setattr("sys.path", [str(tmp_path / "site")])
    assert find_ptxas() == tools["wheel"]
    tools["wheel"].unlink()
    find_ptxas.cache_clear()
    assert find_ptxas() == tools["toolkit"]
