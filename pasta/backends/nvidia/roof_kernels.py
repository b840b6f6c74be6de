"""Kernels that measure the roofs of a device, in PTX that the driver compiles.

All have the same parameters, and each block does `count` times the same work: it reads or copies
16 bytes per thread, or does independent multiply-adds. The operands are zeros: where bits switch,
the limit of power may lower clocks, and a kernel could then exceed what was measured.

Tensor cores: by `wgmma` from shared memory on compute capability 9.0, otherwise by `mma.sync`. 10.x
needs other instructions for their full rate: there only memory and double precision are measured,
as no other type is without tensor cores. Shapes and matrix descriptors: "Parallel Thread Execution
ISA" 8.0, sections "Matrix multiply-accumulate operation using mma instruction" and "Asynchronous
warpgroup level matrix instructions".
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from pasta.processors.architecture import CACHE, MEMORY, matrix_unit

_THREADS, _BLOCKS = 256, 4
#: Accesses of a thread, and multiply-adds of each accumulator, in an iteration.
_ACCESSES, _UNROLLED = 8, 16
_ACCUMULATORS = 8
#: A bit pattern that no kernel computes: results have to be used, but are never stored.
_NEVER = "0x5eed5eed"

_KERNEL = """\
.version {version}
.target sm_{target}
.address_size 64
.visible .entry kernel(.param .u64 memory, .param .u32 count, .param .u32 mask,
    .param .u32 block, .param .u32 step, .param .u64 distance)
.maxntid {threads}, 1, 1
.minnctapersm {blocks}
{{
.reg .pred %p;
.reg .b32 %count, %thread, %result;
.reg .b64 %memory;
{declared}ld.param.u64 %memory, [memory];
cvta.to.global.u64 %memory, %memory;
ld.param.u32 %count, [count];
mov.u32 %thread, %tid.x;
{before}loop:
{body}sub.u32 %count, %count, 1;
setp.ne.u32 %p, %count, 0;
@%p bra loop;
mov.u32 %result, 0;
{after}setp.eq.u32 %p, %result, {never};
@%p st.global.u32 [%memory], %result;
ret;
}}
"""


class Kernel(NamedTuple):
    """PTX of the kernel `kernel`. `work`: bytes or operations of a block in an iteration; `blocks`
    per multiprocessor."""

    roof: str
    ptx: str
    work: int
    threads: int = _THREADS
    blocks: int = _BLOCKS


#: What kernels measure of the memory.
READ, COPY = f"{MEMORY}, read", f"{MEMORY}, copy"
#: The oldest compute capability that they are for.
MIN_CAPABILITY = 75


def kernels(capability: int) -> Iterator[Kernel]:
    """The kernels for a compute capability such as 90, from MIN_CAPABILITY on."""
    read, bytes = _accesses(copies=False), _THREADS * 16 * _ACCESSES
    yield Kernel(READ, read, bytes)
    yield Kernel(COPY, _accesses(copies=True), 2 * bytes)
    yield Kernel(CACHE, read, bytes)
    yield _multiply_adds("float64", "f64")
    if 100 <= capability < 120:
        return
    yield _multiply_adds("float32", "f32")
    yield _multiply_adds("float16", "f16x2")
    if capability >= 80:
        yield _multiply_adds("bfloat16", "bf16x2", _AMPERE)
    if capability == 90:
        yield from _warpgroup_products()
        yield _products("float64", "m16n8k16", "f64", (8, 4, 4), _HOPPER, blocks=2)
    else:
        yield from _warp_products(capability)


class _Target(NamedTuple):
    """Version of PTX and target: the lowest ones that have the instructions, as drivers do not read
    newer versions."""

    version: str
    target: str


_TURING, _AMPERE = _Target("6.5", "75"), _Target("7.0", "80")
_ADA, _HOPPER, _HOPPER_ONLY = _Target("8.4", "89"), _Target("7.8", "90"), _Target("8.0", "90a")


def _kernel(
    body: str,
    *,
    declared: str,
    before: str,
    after: str,
    target: _Target = _TURING,
    threads: int = _THREADS,
    blocks: int = _BLOCKS,
) -> str:
    return _KERNEL.format(
        body=body, declared=declared, before=before, after=after, never=_NEVER, threads=threads,
        blocks=blocks, **target._asdict(),
    )  # fmt: skip


def _names(prefix: str, count: int, first: int = 0) -> str:
    return "{" + ", ".join(f"%{prefix}{at}" for at in range(first, first + count)) + "}"


# ---- memory ----


def _accesses(*, copies: bool) -> str:
    """Reads of 16 bytes per thread at offsets that advance by `step` and wrap at `mask`, past the
    first cache; with `copies` they are written at `distance`."""
    load, store = "", ""
    for at in range(_ACCESSES):
        load += (
            "and.b32 %masked, %offset, %mask;\ncvt.u64.u32 %wide, %masked;\n"
            f"add.u64 %address{at}, %memory, %wide;\n"
            f"ld.global.cg.v4.u32 {_names('value', 4, 4 * at)}, [%address{at}];\n"
            "add.u32 %offset, %offset, %step;\n"
        )
        if copies:
            store += (
                f"add.u64 %address{at}, %address{at}, %distance;\n"
                f"st.global.v4.u32 [%address{at}], {_names('value', 4, 4 * at)};\n"
            )
    used = "".join(f"or.b32 %used, %used, %value{at};\n" for at in range(4 * _ACCESSES))
    return _kernel(
        load + (store or used),
        declared=".reg .b32 %offset, %masked, %mask, %step, %block, %used,"
        f" %value<{4 * _ACCESSES}>;\n.reg .b64 %wide, %distance, %address<{_ACCESSES}>;\n",
        before="ld.param.u32 %mask, [mask];\nld.param.u32 %block, [block];\n"
        "ld.param.u32 %step, [step];\nld.param.u64 %distance, [distance];\n"
        "mov.u32 %offset, %ctaid.x;\nmul.lo.u32 %offset, %offset, %block;\n"
        "mad.lo.u32 %offset, %thread, 16, %offset;\nmov.u32 %used, 0;\n",
        after="mov.u32 %result, %used;\n",
    )


# ---- arithmetic ----


def _multiply_adds(roof: str, type: str, target: _Target = _TURING) -> Kernel:
    """Multiply-adds outside of tensor cores."""
    bits, packed = (64 if type == "f64" else 32), (2 if type.endswith("x2") else 1)
    declared, before = _operands(bits, {"sum": _ACCUMULATORS, "a": 1, "b": 1})
    body = "".join(
        f"fma.rn.{type} %sum{at}, %sum{at}, %a0, %b0;\n"
        for _ in range(_UNROLLED)
        for at in range(_ACCUMULATORS)
    )
    ptx = _kernel(
        body, declared=declared, before=before, after=_used(bits, _ACCUMULATORS), target=target
    )
    return Kernel(roof, ptx, _THREADS * _UNROLLED * _ACCUMULATORS * 2 * packed)


def _products(
    type: str,
    shape: str,
    name: str,
    sizes: tuple[int, int, int],
    target: _Target = _AMPERE,
    blocks: int = _BLOCKS,
) -> Kernel:
    """Products of small matrices by `mma.sync`; `sizes`: registers of A, B and the sum."""
    bits = 64 if name == "f64" else 32
    a, b, c = sizes
    count = _ACCUMULATORS // 2  # more would not fit the registers
    declared, before = _operands(bits, {"sum": count * c, "a": a, "b": b})
    into = "f64" if bits == 64 else "f32"
    instruction = f"mma.sync.aligned.{shape}.row.col.{into}.{name}.{name}.{into}"
    body = "".join(
        f"{instruction} {_names('sum', c, c * at)}, {_names('a', a)}, {_names('b', b)},"
        f" {_names('sum', c, c * at)};\n"
        for _ in range(_UNROLLED)
        for at in range(count)
    )
    ptx = _kernel(
        body, declared=declared, before=before, after=_used(bits, count * c), target=target,
        blocks=blocks,
    )  # fmt: skip
    operations = _operations(shape) * _THREADS // 32 * _UNROLLED * count
    return Kernel(matrix_unit(type), ptx, operations, blocks=blocks)


def _warp_products(capability: int) -> Iterator[Kernel]:
    if capability < 80:
        yield _products("float16", "m16n8k8", "f16", (2, 1, 4), _TURING)
        return
    yield _products("float64", "m8n8k4", "f64", (1, 1, 2))
    yield _products("tf32", "m16n8k8", "tf32", (4, 2, 4))
    yield _products("float16", "m16n8k16", "f16", (4, 2, 4))
    yield _products("bfloat16", "m16n8k16", "bf16", (4, 2, 4))
    if capability >= 89:
        yield _products("float8", "m16n8k32", "e4m3", (4, 2, 4), _ADA)


#: Rows of A and columns of B, of 32 bytes each, and 32-bit registers of the sum in each thread.
_ROWS, _COLUMNS, _SUMS = 64, 256, 128
#: Matrices without swizzling: units of 8 rows of 16 bytes. Distances between them along a row and
#: along a column, in units of 16 bytes, in the descriptor's bits 16 and 32.
_LAYOUT = 8 << 16 | 16 << 32


def _warpgroup_products() -> Iterator[Kernel]:
    for type, name, depth, transposed in (
        ("tf32", "tf32", 8, ""),
        ("float16", "f16", 16, ", 0, 0"),
        ("bfloat16", "bf16", 16, ", 0, 0"),
        ("float8", "e4m3", 32, ""),
    ):
        shape = f"m{_ROWS}n{_COLUMNS}k{depth}"
        product = (
            f"wgmma.mma_async.sync.aligned.{shape}.f32.{name}.{name} {_names('sum', _SUMS)},"
            f" %a, %b, %accumulates, 1, 1{transposed};\n"
        )
        ptx = _kernel(
            "wgmma.fence.sync.aligned;\n" + _UNROLLED * product
            + "wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;\n",
            declared=f".reg .b32 %sum<{_SUMS}>, %at;\n.reg .b64 %a, %b;\n"
            f".reg .pred %accumulates;\n.shared .align 128 .b8 tile[{32 * (_ROWS + _COLUMNS)}];\n",
            before=_ZEROED + _DESCRIPTORS
            + "".join(f"mov.b32 %sum{at}, 0;\n" for at in range(_SUMS)),
            after=_used(32, _SUMS), target=_HOPPER_ONLY, threads=128, blocks=2,
        )  # fmt: skip
        yield Kernel(matrix_unit(type), ptx, _operations(shape) * _UNROLLED, threads=128, blocks=2)


#: The threads fill both matrices in shared memory.
_ZEROED = (
    "mov.u32 %at, tile;\nmad.lo.u32 %at, %thread, 16, %at;\n"
    + "".join(
        f"st.shared.v4.u32 [%at+{offset}], {{0, 0, 0, 0}};\n"
        for offset in range(0, 32 * (_ROWS + _COLUMNS), 16 * 128)
    )
    + "fence.proxy.async.shared::cta;\nbar.sync 0;\n"
)
_DESCRIPTORS = (
    "setp.ne.u32 %accumulates, %count, 0;\n"
    "mov.u32 %at, tile;\nshr.u32 %at, %at, 4;\ncvt.u64.u32 %a, %at;\n"
    f"or.b64 %a, %a, {_LAYOUT};\nadd.u64 %b, %a, {32 * _ROWS >> 4};\n"
)


def _operations(shape: str) -> int:
    """Operations of a product of a shape such as m16n8k16: a multiplication and an addition."""
    rows, rest = shape[1:].split("n")
    columns, depth = rest.split("k")
    return 2 * int(rows) * int(columns) * int(depth)


def _operands(bits: int, counts: dict[str, int]) -> tuple[str, str]:
    """Declarations of registers, and their values: read from memory, so that no compiler knows
    them."""
    declared, before, at = "", "", 0
    for name, count in counts.items():
        declared += f".reg .b{bits} %{name}<{count}>;\n"
        for number in range(count):
            before += f"ld.global.b{bits} %{name}{number}, [%memory+{8 * at}];\n"
            at += 1
    return declared + (".reg .b64 %all;\n" if bits == 64 else ""), before


def _used(bits: int, count: int) -> str:
    """Combines the sums, so that all have to be computed."""
    if bits == 64:
        combined = "".join(f"or.b64 %all, %all, %sum{at};\n" for at in range(1, count))
        return f"mov.b64 %all, %sum0;\n{combined}cvt.u32.u64 %result, %all;\n"
    return "".join(f"or.b32 %result, %result, %sum{at};\n" for at in range(count))
