"""The expected accesses against closed forms, and against the instructions that nvcc makes of the
kernels."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from pasta.backends.nvidia.visibility import read_code, sanitizer
from pasta.probes.coverage import cover
from pasta.probes.kinds import GROUPS
from tests.support.expected_accesses import SCENARIOS, Access, expected
from tests.support.places import PROGRAMS, ROOT

KERNELS = PROGRAMS / "nvidia" / "accesses.cu"
EXAMPLES = ROOT / "examples" / "cuda"
# SCENARIO KIND[:OP] FIELD=NUMBER..., counted by hand.
WANTED = """
# 4096 threads in 128 warps, a load and a store each
stride1 global instructions=256 accesses=8192 bytes=32768 sectors=1024 ideal_sectors=1024
stride2 global instructions=256 accesses=8192 bytes=32768 sectors=2048 ideal_sectors=1024
stride32 global instructions=256 accesses=8192 bytes=32768 sectors=8192 ideal_sectors=1024
stride1 global:load objects.from=4096 lanes.32=128
# 20 blocks of 32 + 18 lanes and one of 3
tail global:load instructions=41 accesses=1003 lanes.32=20 lanes.18=20 lanes.3=1
one_thread global:load instructions=64 accesses=64 sectors=64
many_blocks global:store instructions=70000 accesses=2240000
# per warp two loads of 16 lanes, and 32 of 32, 31, ..., 1 lanes of one word
divergent global:load instructions=1088 accesses=17920 bytes=73728 sectors=1216 objects.wide=512
early_exit global instructions=16 accesses=320 sectors=48 lanes.20=16
atomics_one global:red instructions=128 accesses=4096 atomics=4096 sectors=128 objects.sum=4096
atomics_one global instructions=384 reads=0 writes=4096 atomics=8192
atomics_distinct global instructions=640 writes=8192 atomics=12288 sectors=2560
# 32 warps, a store and a load each
shared_broadcast shared instructions=64 accesses=2048 wavefronts=64
shared_1way shared instructions=64 accesses=2048 wavefronts=64
shared_2way shared instructions=64 accesses=2048 wavefronts=128
shared_8way shared instructions=64 accesses=2048 wavefronts=512
shared_32way shared instructions=64 accesses=2048 wavefronts=2048
shared_8bytes shared instructions=64 bytes=16384 wavefronts=128
shared_16bytes shared instructions=64 bytes=32768 wavefronts=256
local local instructions=1024 reads=16384 writes=16384 bytes=131072 sectors=0
# 1024 threads: 4, 8, 16, 10 and 8 bytes on average; the last by every second lane
async_copy async_copy instructions=160 accesses=4608 bytes=47104 threads=5120 lanes.16=32
bulk bulk_load instructions=4 accesses=4 bytes=4096 sectors=128 ideal_sectors=128 lanes.1=4
bulk bulk_reduction bytes=4096 atomics=4 objects.sum=4
# 4, 4 x 4 and 3 x 3 x 3 boxes; 1000, 5000 and 8000 floats
tensor tensor_load instructions=47 accesses=47 bytes=56000
tensor tensor_store instructions=47 accesses=47 bytes=56000 objects.to2=16
# 8 warps load and store 1 + 2 + 4 matrices of 128 bytes
matrix matrix instructions=48 accesses=896 bytes=14336 wavefronts=112
cluster remote_shared instructions=64 reads=1024 writes=1024
barrier barrier instructions=160 bytes=0
call call instructions=96 accesses=2560 lanes.16=32
graph global instructions=1920 objects.from=20480 objects.to=40960
two_streams global:red accesses=81920 objects.both=81920
two_contexts global objects.first=16384 objects.second=24576
unload global instructions=6 accesses=192
many global:load accesses=4296015872 instructions=134250496 sectors=537001984
large global accesses=5121 sectors=5121 objects.big=5121
unknown global:load objects.inside=128 objects.unknown=128
many_objects global:load bytes=40000 objects.table=5000
"""


@pytest.mark.parametrize("line", [x for x in WANTED.splitlines() if x and not x.startswith("#")])
def test_counts(line: str) -> None:
    name, which, *fields = line.split()
    kind, _, op = which.partition(":")
    count = expected(name).count(kind, op or None)
    for one in fields:
        path, _, number = one.partition("=")
        attribute, _, key = path.partition(".")
        value = getattr(count, attribute)
        if key:
            value = value[int(key) if attribute == "lanes" else key]
        assert value == int(number), one


def test_object_ends_are_exact() -> None:
    assert "neighbour" not in expected("unknown").count().objects


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("stride1", 32768),
        ("stride32", 32 * 8192),
        ("atomics_one", 32),
        ("many", 1024 + (4 << 20)),
        ("large", 32 * 5121),
        ("bulk", 2 * 4096 + 1024),
        ("tensor", 8000),
    ],
)
def test_unique_bytes_of_the_first_launch(name: str, wanted: int) -> None:
    assert expected(name).launches[0].unique_bytes() == wanted


def test_scenarios_match_the_program() -> None:
    table = re.findall(r'^    \{"(\w+)", \1, ', KERNELS.read_text(), re.MULTILINE)
    assert sorted(table) == sorted(SCENARIOS)


OPCODES = {
    ("global", "load"): "LDG",
    ("global", "store"): "STG",
    ("global", "atom"): "ATOMG",
    ("global", "red"): "REDG",
    ("shared", "load"): "LDS",
    ("shared", "store"): "STS",
    ("local", "load"): "LDL",
    ("local", "store"): "STL",
    ("async_copy", "load"): "LDGSTS",
    ("bulk_load", "load"): "UBLKCP",
    ("bulk_store", "store"): "UBLKCP",
    ("bulk_reduction", "red"): "UBLKRED",
    ("tensor_load", "load"): "UTMALDG",
    ("tensor_store", "store"): "UTMASTG",
    ("matrix", "load"): "LDSM",
    ("matrix", "store"): "STSM",
    ("async_store", "store"): "STAS",
    ("remote_shared", "load"): "LD",
    ("remote_shared", "store"): "ST",
    ("barrier", "barrier"): "BAR",
    ("call", "call"): "CALL",
}


def opcode(access: Access) -> str:
    return OPCODES[access.kind, access.op]


def program(name: str) -> str | None:
    """A program of the CUDA toolkit: on PATH, in CUDA_HOME, or from a wheel."""
    places = [os.environ.get("CUDA_HOME", "/usr/local/cuda")]
    if spec := importlib.util.find_spec("nvidia"):
        places += [f"{place}/cu13" for place in spec.submodule_search_locations or []]
    path = os.pathsep.join([os.environ.get("PATH", ""), *(f"{place}/bin" for place in places)])
    return shutil.which(name, path=path)


@pytest.fixture(scope="module")
def cubin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The kernels, compiled for sm_90."""
    nvcc = program("nvcc")
    if not nvcc or not program("nvdisasm"):
        pytest.skip("nvcc or nvdisasm was not found")
    output = tmp_path_factory.mktemp("kernels") / "kernels.cubin"
    command = [nvcc, "-std=c++17", "-O2", "-lineinfo", "-arch=sm_90", "-cubin", f"-I{EXAMPLES}"]
    subprocess.run([*command, str(KERNELS), "-o", str(output)], check=True)
    return output


def test_kernel_code_matches_expected_instructions(cubin: Path) -> None:
    cuobjdump = program("cuobjdump")
    if not cuobjdump:
        pytest.skip("cuobjdump was not found")
    dump = [cuobjdump, "-sass", str(cubin)]
    path = f"{Path(str(program('nvdisasm'))).parent}{os.pathsep}{os.environ['PATH']}"
    text = subprocess.run(
        dump, check=True, capture_output=True, text=True, env={**os.environ, "PATH": path}
    ).stdout
    found: dict[str, Counter[str]] = {}
    for function in text.split("Function : ")[1:]:
        code = re.findall(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?!@!PT )(?:@!?U?P\d )?(\w+)", function, re.M)
        found[function.split()[0]] = Counter(name for name in code if name in OPCODES.values())
    wrong = {}
    for name in SCENARIOS:
        for launch in expected(name).launches:
            if launch.exact and launch.kernel != "from_module":  # the driver compiles that one
                wanted = Counter(map(opcode, launch.accesses))
                if found[launch.kernel] != wanted:
                    wrong[name, launch.kernel] = (found[launch.kernel], wanted)
    assert not wrong


def test_coverage_lists_the_instructions(cubin: Path) -> None:
    """As many of each kind as are counted; kinds that no library sees are reported."""
    library = sanitizer("13.5")
    wanted = set(GROUPS["memory"])
    code = read_code(cubin)
    for name in SCENARIOS:
        for launch in expected(name).launches:
            if not launch.exact or launch.kernel == "from_module":
                continue
            found = cover(
                launch.kernel, code, None,
                wanted=wanted, patched=wanted & library.kinds, visibility=library,
            )  # fmt: skip
            counted = Counter(a.kind for a in launch.accesses if a.kind in wanted)
            rows = {row.kind: row.instructions for row in found.kinds if row.wanted}
            # memory of a cluster is accessed by generic instructions
            rows["remote_shared"] = (rows["remote_shared"] or 0) + (rows.pop("generic", 0) or 0)
            assert {kind: count for kind, count in rows.items() if count} == counted, launch.kernel
            assert found.verdict == ("partly" if "tensor_store" in counted else "seen")
            lines = code.functions and code.functions[launch.kernel].instructions
            assert lines and all((each.file or "").endswith(KERNELS.name) for each in lines)
