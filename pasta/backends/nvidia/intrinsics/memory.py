"""Global memory: loads, atomic additions and exchanges at an address."""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from pasta.backends.nvidia.intrinsics.define import (
    I64,
    Generate,
    Intrinsic,
    Values,
    emit_ptx,
    wide,
)
from pasta.backends.nvidia.structs import constants

_GLOBAL = 1  # address space


def _load(bits: int, volatile: bool = False) -> Generate:
    kind = ir.IntType(bits)

    def generate(builder: Any, arguments: Values) -> Any:
        if volatile:
            return emit_ptx(
                builder, "ld.relaxed.gpu.global.u64 $0, [$1];", "=l,l,~{memory}", arguments, I64
            )
        pointer = builder.inttoptr(arguments[0], ir.PointerType(kind, _GLOBAL))
        return wide(builder, builder.load(pointer, align=bits // 8))

    return generate


#: In place: a patch has few registers.
_LAUNCH_OF = """{
.reg .pred node;
.reg .b32 low, high;
.reg .b64 at;
cvt.u32.u64 low, $0;
and.b32 low, low, PASTA_PROBE_IS_NODE;
setp.ne.u32 node, low, 0;
@!node bra.uni known${:uid};
mov.b64 {low, high}, %gridid;
and.b32 low, low, LAST;
mad.wide.u32 at, low, 8, $0;
ld.global.u64 $0, [at + -PASTA_PROBE_IS_NODE];
known${:uid}:
}"""


def _launch_of(builder: Any, arguments: Values) -> Any:
    known = constants()
    text = _LAUNCH_OF.replace("PASTA_PROBE_IS_NODE", str(known["IS_NODE"]))
    text = text.replace("LAST", str(known["NODES"] - 1))
    return emit_ptx(builder, text, "=l,0", arguments, I64)


def _add(builder: Any, arguments: Values) -> Any:
    emit_ptx(builder, "red.relaxed.gpu.global.add.u64 [$0], $1;", "l,l", arguments)


def _add_to(builder: Any, arguments: Values) -> Any:
    text = "atom.relaxed.gpu.global.add.u64 $0, [$1], $2;"
    return emit_ptx(builder, text, "=l,l,l,~{memory}", arguments, I64)


def _swap(builder: Any, arguments: Values) -> Any:
    text = "atom.relaxed.gpu.global.cas.b64 $0, [$1], $2, $3;"
    return emit_ptx(builder, text, "=l,l,l,l,~{memory}", arguments, I64)


def _exchange(builder: Any, arguments: Values) -> Any:
    text = "atom.relaxed.gpu.global.exch.b64 $0, [$1], $2;"
    return emit_ptx(builder, text, "=l,l,l,~{memory}", arguments, I64)


#: A callback's user data → the address of its launch's descriptor; 0: it is not probed.
launch_of = Intrinsic("launch_of", 1, _launch_of)
load_u8 = Intrinsic("load_u8", 1, _load(8))
load_u32 = Intrinsic("load_u32", 1, _load(32))
load_u64 = Intrinsic("load_u64", 1, _load(64))
#: Sees writes of other multiprocessors.
load_u64_volatile = Intrinsic("load_u64_volatile", 1, _load(64, volatile=True))
atomic_add_u64 = Intrinsic("atomic_add_u64", 2, _add)
#: Address, amount → the previous word.
atomic_fetch_add_u64 = Intrinsic("atomic_fetch_add_u64", 2, _add_to)
#: Compare and swap: address, expected word, new word → the previous word.
atomic_cas_u64 = Intrinsic("atomic_cas_u64", 3, _swap)
#: Address, new word → the previous word.
atomic_exchange_u64 = Intrinsic("atomic_exchange_u64", 2, _exchange)
