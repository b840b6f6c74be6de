"""Communication between lanes of a warp, and their position in the grid."""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from pasta.backends.nvidia.intrinsics.define import (
    I1,
    I32,
    I64,
    Generate,
    Intrinsic,
    Values,
    call_llvm,
    emit_ptx,
    narrow,
    truth,
    wide,
)


def _active(builder: Any, arguments: Values) -> Any:
    # Without "convergent" LLVM copies it into both sides of a branch, and each side sees half.
    assembly = ir.InlineAsm(ir.FunctionType(I32, []), "activemask.b32 $0;", "=r", side_effect=True)
    return wide(builder, builder.call(assembly, [], attrs=("convergent",)))


def _match(bits: int) -> Generate:
    def generate(builder: Any, arguments: Values) -> Any:
        mask, value = arguments
        if bits == 32:
            value = narrow(builder, value)
        name = f"llvm.nvvm.match.any.sync.i{bits}"
        return wide(builder, call_llvm(builder, name, I32, [narrow(builder, mask), value]))

    return generate


def _equal(builder: Any, arguments: Values) -> Any:
    given = [narrow(builder, each) for each in arguments]
    result = ir.LiteralStructType([I32, I1])
    found = call_llvm(builder, "llvm.nvvm.match.all.sync.i32p", result, given)
    return wide(builder, builder.extract_value(found, 1))


def _vote(way: str, result: Any) -> Generate:
    def generate(builder: Any, arguments: Values) -> Any:
        given = [narrow(builder, arguments[0]), truth(builder, arguments[1])]
        return wide(builder, call_llvm(builder, f"llvm.nvvm.vote.{way}.sync", result, given))

    return generate


def _before(builder: Any, arguments: Values) -> Any:
    # Read each time: LLVM would keep the special register in one of the few general ones.
    below = "mov.u32 $0, %lanemask_lt;\nand.b32 $0, $0, $1;"
    return wide(builder, emit_ptx(builder, below, "=&r,r", [narrow(builder, arguments[0])], I32))


def _first_lanes(builder: Any, arguments: Values) -> Any:
    text = "sub.u32 $0, 32, $1;\nshr.u32 $0, -1, $0;"
    return wide(builder, emit_ptx(builder, text, "=r,r", [narrow(builder, arguments[0])], I32))


def _first(builder: Any, arguments: Values) -> Any:
    lower = narrow(builder, _before(builder, arguments))
    return wide(builder, builder.icmp_unsigned("==", lower, ir.Constant(I32, 0)))


def _lowest(builder: Any, arguments: Values) -> Any:
    below = "mov.u32 $0, %lanemask_le;\nand.b32 $0, $0, $1;\npopc.b32 $0, $0;"
    lower = emit_ptx(builder, below, "=&r,r", [narrow(builder, arguments[0])], I32)
    return wide(builder, builder.icmp_unsigned("==", lower, ir.Constant(I32, 1)))


def _register(name: str) -> Generate:
    def generate(builder: Any, arguments: Values) -> Any:
        return wide(builder, call_llvm(builder, f"llvm.nvvm.read.ptx.sreg.{name}", I32, []))

    return generate


activemask = Intrinsic("activemask", 0, _active)
#: Lanes of `mask` (first argument) with the same value; by its low 32 bits.
match_any_sync = Intrinsic("match_any_sync", 2, _match(32))
match_any_sync_64 = Intrinsic("match_any_sync_64", 2, _match(64))
#: Whether the lanes of `mask` have the same value (by its low 32 bits): takes the same time for any
#: values, while `match_any_sync` takes twelve cycles for each distinct one.
all_equal = Intrinsic("all_equal", 2, _equal)
ballot_sync = Intrinsic("ballot_sync", 2, _vote("ballot", I32))
any_sync = Intrinsic("any_sync", 2, _vote("any", I1))
#: The lanes of a mask below this one.
before = Intrinsic("before", 1, _before)
#: The lanes with numbers below one from 1 to 32.
first_lanes = Intrinsic("first_lanes", 1, _first_lanes)
#: Whether this lane is the lowest in a mask that contains it.
is_first = Intrinsic("is_first", 1, _first)
#: The same by another special register, so that ptxas keeps no value of one for the other.
is_lowest = Intrinsic("is_lowest", 1, _lowest)
lane_id = Intrinsic("lane_id", 0, _register("laneid"))
smid = Intrinsic("smid", 0, _register("smid"))
#: Of the multiprocessor: the only number that differs between warps and is read in few cycles.
clock = Intrinsic(
    "clock",
    0,
    lambda builder, _: wide(builder, emit_ptx(builder, "mov.u32 $0, %clock;", "=r", [], I32)),
)
tid_x = Intrinsic("tid_x", 0, _register("tid.x"))
tid_y = Intrinsic("tid_y", 0, _register("tid.y"))
tid_z = Intrinsic("tid_z", 0, _register("tid.z"))
ntid_x = Intrinsic("ntid_x", 0, _register("ntid.x"))
ntid_y = Intrinsic("ntid_y", 0, _register("ntid.y"))
ctaid_x = Intrinsic("ctaid_x", 0, _register("ctaid.x"))
ctaid_y = Intrinsic("ctaid_y", 0, _register("ctaid.y"))
ctaid_z = Intrinsic("ctaid_z", 0, _register("ctaid.z"))
nctaid_x = Intrinsic("nctaid_x", 0, _register("nctaid.x"))
nctaid_y = Intrinsic("nctaid_y", 0, _register("nctaid.y"))
#: Clock of the device, ns; the same for all multiprocessors.
global_time = Intrinsic(
    "global_time",
    0,
    lambda builder, arguments: emit_ptx(builder, "mov.u64 $0, %globaltimer;", "=l", [], I64),
)
