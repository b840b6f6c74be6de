"""What patches can do beyond arithmetic: memory at an address, and the other lanes of the warp.

Everything takes and gives int64, whose bits may mean an unsigned number: `ult`, `lshr` and the
like treat them so.  There is no unsigned type, because Numba makes float64 of an int64 and a
uint64: the mask of all ones is -1, and 0xFFFF_FFFF_FFFF_FFFF would be a uint64.  Only for code
that nvptx.py compiles.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from llvmlite import ir
from numba.core import types
from numba.core.errors import TypingError
from numba.extending import intrinsic

from pasta.probes import trace
from pasta.probes.layout import BIN_STRIPES, OFFSETS

_I1, _I32, _I64 = (ir.IntType(bits) for bits in (1, 32, 64))
_GLOBAL = 1  # address space
_int = types.int64

Values = list[Any]
Generate = Callable[[Any, Values], Any]

_pair = types.UniTuple(_int, 2)


def _define(name: str, arity: int, generate: Generate, result: Any = _int) -> Any:
    """An intrinsic of `arity` integers, which Numba casts to int64."""

    def lower(context: Any, builder: Any, signature: Any, arguments: Values) -> Any:
        found = generate(builder, arguments)
        if result is types.none:
            return context.get_dummy_value()
        return found

    def typed(*arguments: Any) -> Any:
        for argument in arguments:
            if not isinstance(argument, (types.Integer, types.Boolean)):
                raise TypingError(f"{name}() takes integers, not {argument}")
        return result(*[_int] * arity), lower

    parameters = ", ".join(f"a{i}" for i in range(arity))
    comma = ", " if arity else ""
    namespace: dict[str, Any] = {"typed": typed}
    exec(f"def {name}(context{comma}{parameters}):\n    return typed({parameters})", namespace)
    function = namespace[name]
    function.__module__ = __name__
    return intrinsic(function)


def _narrow(builder: Any, value: Any, kind: Any = _I32) -> Any:
    return builder.trunc(value, kind)


def _wide(builder: Any, value: Any) -> Any:
    return builder.zext(value, _I64) if value.type.width < 64 else value


def _call(builder: Any, name: str, result: Any, arguments: Values) -> Any:
    """Calls an intrinsic of LLVM; what the lanes do together must not move across branches."""
    function = builder.module.globals.get(name)
    if function is None:
        kind = ir.FunctionType(result, [argument.type for argument in arguments])
        function = ir.Function(builder.module, kind, name)
        function.attributes.add("convergent")
        function.attributes.add("nounwind")
    return builder.call(function, arguments)


def _assembly(
    builder: Any, text: str, constraints: str, arguments: Values, result: Any = None
) -> Any:
    kind = ir.FunctionType(result or ir.VoidType(), [argument.type for argument in arguments])
    return builder.call(ir.InlineAsm(kind, text, constraints, side_effect=True), arguments)


def _tuple_of(builder: Any, found: Any) -> Any:
    """The struct that inline assembly gives, as Numba keeps a tuple of int64."""
    count = len(found.type.elements)
    result = ir.Constant(ir.ArrayType(_I64, count), ir.Undefined)
    for i in range(count):
        result = builder.insert_value(result, _wide(builder, builder.extract_value(found, i)), i)
    return result


# ---- memory ----------------------------------------------------------------------------------


def _load(bits: int, volatile: bool = False) -> Generate:
    kind = ir.IntType(bits)

    def generate(builder: Any, arguments: Values) -> Any:
        if volatile:
            return _assembly(
                builder, "ld.relaxed.gpu.global.u64 $0, [$1];", "=l,l,~{memory}", arguments, _I64
            )
        pointer = builder.inttoptr(arguments[0], ir.PointerType(kind, _GLOBAL))
        return _wide(builder, builder.load(pointer, align=bits // 8))

    return generate


def _load_pair(builder: Any, arguments: Values) -> Any:
    kind = ir.LiteralStructType([_I64, _I64])
    text = "ld.global.v2.u64 {$0, $1}, [$2];"
    assembly = ir.InlineAsm(ir.FunctionType(kind, [_I64]), text, "=l,=l,l")
    return _tuple_of(builder, builder.call(assembly, arguments))


def _add(builder: Any, arguments: Values) -> Any:
    _assembly(builder, "red.relaxed.gpu.global.add.u64 [$0], $1;", "l,l", arguments)


def _swap(builder: Any, arguments: Values) -> Any:
    text = "atom.relaxed.gpu.global.cas.b64 $0, [$1], $2, $3;"
    return _assembly(builder, text, "=l,l,l,l,~{memory}", arguments, _I64)


load_u8 = _define("load_u8", 1, _load(8))
load_u32 = _define("load_u32", 1, _load(32))
load_u64 = _define("load_u64", 1, _load(64))
#: Two words at an address that is a multiple of 16; of memory that does not change meanwhile.
load_pair = _define("load_pair", 1, _load_pair, _pair)
#: Sees what other multiprocessors wrote.
load_u64_volatile = _define("load_u64_volatile", 1, _load(64, volatile=True))
atomic_add_u64 = _define("atomic_add_u64", 2, _add, types.none)
#: What was there; written if that was the second argument.
atomic_cas_u64 = _define("atomic_cas_u64", 3, _swap)

# ---- unsigned arithmetic, bits ---------------------------------------------------------------


def _shift(builder: Any, arguments: Values) -> Any:
    return builder.lshr(*arguments)


def _count(builder: Any, arguments: Values) -> Any:
    return _call(builder, "llvm.ctpop.i64", _I64, arguments)


def _again(builder: Any, arguments: Values) -> Any:
    kind = ir.FunctionType(_I64, [_I64])
    return builder.call(ir.InlineAsm(kind, "mov.b64 $0, $1;", "=l,l"), arguments)


#: The same, of which the compiler knows nothing: what is computed of it is computed anew, which
#: costs less than a register that holds it meanwhile.
again = _define("again", 1, _again)
#: Arithmetic that wraps around: of + - * Numba tells LLVM that they do not.
plus = _define("plus", 2, lambda builder, arguments: builder.add(*arguments))
minus = _define("minus", 2, lambda builder, arguments: builder.sub(*arguments))
times = _define("times", 2, lambda builder, arguments: builder.mul(*arguments))
#: For counts below 64.
lshr = _define("lshr", 2, _shift)
#: Bits that are set.
popc = _define("popc", 1, _count)

# ---- the warp --------------------------------------------------------------------------------


def _active(builder: Any, arguments: Values) -> Any:
    # Without "convergent" LLVM copies it into both sides of a branch, and each side sees half.
    assembly = ir.InlineAsm(ir.FunctionType(_I32, []), "activemask.b32 $0;", "=r", side_effect=True)
    return _wide(builder, builder.call(assembly, [], attrs=("convergent",)))


def _match(bits: int) -> Generate:
    def generate(builder: Any, arguments: Values) -> Any:
        mask, value = arguments
        if bits == 32:
            value = _narrow(builder, value)
        name = f"llvm.nvvm.match.any.sync.i{bits}"
        return _wide(builder, _call(builder, name, _I32, [_narrow(builder, mask), value]))

    return generate


def _truth(builder: Any, value: Any) -> Any:
    return builder.icmp_unsigned("!=", value, ir.Constant(value.type, 0))


def _vote(way: str, result: Any) -> Generate:
    def generate(builder: Any, arguments: Values) -> Any:
        given = [_narrow(builder, arguments[0]), _truth(builder, arguments[1])]
        return _wide(builder, _call(builder, f"llvm.nvvm.vote.{way}.sync", result, given))

    return generate


def _first(builder: Any, arguments: Values) -> Any:
    # Read anew each time: LLVM would keep the special register in one of the few others.
    below = "mov.u32 $0, %lanemask_lt;\nand.b32 $0, $0, $1;"
    lower = _assembly(builder, below, "=&r,r", [_narrow(builder, arguments[0])], _I32)
    return _wide(builder, builder.icmp_unsigned("==", lower, ir.Constant(_I32, 0)))


def _lowest(builder: Any, arguments: Values) -> Any:
    below = "mov.u32 $0, %lanemask_le;\nand.b32 $0, $0, $1;\npopc.b32 $0, $0;"
    lower = _assembly(builder, below, "=&r,r", [_narrow(builder, arguments[0])], _I32)
    return _wide(builder, builder.icmp_unsigned("==", lower, ir.Constant(_I32, 1)))


def _register(name: str) -> Generate:
    def generate(builder: Any, arguments: Values) -> Any:
        return _wide(builder, _call(builder, f"llvm.nvvm.read.ptx.sreg.{name}", _I32, []))

    return generate


activemask = _define("activemask", 0, _active)
#: Lanes of `mask` (first argument) that give the same value; by its low 32 bits.
match_any_sync = _define("match_any_sync", 2, _match(32))
match_any_sync_64 = _define("match_any_sync_64", 2, _match(64))
ballot_sync = _define("ballot_sync", 2, _vote("ballot", _I32))
any_sync = _define("any_sync", 2, _vote("any", _I1))
#: Whether this lane is the lowest of those in a mask that it belongs to.
is_first = _define("is_first", 1, _first)
#: The same by another register of the hardware, which ptxas does not keep from one to the other.
is_lowest = _define("is_lowest", 1, _lowest)
lane_id = _define("lane_id", 0, _register("laneid"))
smid = _define("smid", 0, _register("smid"))
tid_x = _define("tid_x", 0, _register("tid.x"))
tid_y = _define("tid_y", 0, _register("tid.y"))
tid_z = _define("tid_z", 0, _register("tid.z"))
ntid_x = _define("ntid_x", 0, _register("ntid.x"))
ntid_y = _define("ntid_y", 0, _register("ntid.y"))
ctaid_x = _define("ctaid_x", 0, _register("ctaid.x"))
ctaid_y = _define("ctaid_y", 0, _register("ctaid.y"))
ctaid_z = _define("ctaid_z", 0, _register("ctaid.z"))
nctaid_x = _define("nctaid_x", 0, _register("nctaid.x"))
nctaid_y = _define("nctaid_y", 0, _register("nctaid.y"))


# ---- tensor maps -----------------------------------------------------------------------------
# A CUtensorMap is opaque; these are its fields as cuTensorMapEncode* writes them (sm_90, measured):
#   0 address · 8 bit 0 im2col, 4-6 rank - 1, 7-10 element type
#   12 + 4 d low 32 bits of pitch d / 16, 28 bits 4 d their upper 4 bits, d from 0 for the second
#   axis · 32 + 4 a size of axis a, less 1
#   52 bits 3 a steps between elements, less 1 · 55 + a box, less 1 · 60 im2col: pixels, less 1

_BOX = """{
.reg .pred p, image;
.reg .b32 flags, shift, begin, end, size, count, left, high, c1, c2, c3, c4, steps, boxes;
.reg .b64 at, pitch, low;
mov.b32 c1, $7;
mov.b32 c2, $8;
mov.b32 c3, $9;
mov.b32 c4, $10;
mov.b64 at, $4;
ld.b64 $0, [at];
ld.b32 flags, [at+8];
and.b32 shift, flags, 1;
setp.ne.u32 image, shift, 0;
shr.u32 shift, flags, 6;
and.b32 shift, shift, 30;
shr.u32 shift, ELEMENTS, shift;
and.b32 shift, shift, 3;
ld.b32 steps, [at+52];
ld.b32 high, [at+28];
ld.b32 boxes, [at+56];
ld.b32 size, [at+32];
ld.u8 end, [at+55];
add.s32 end, end, $6;
min.s32 end, end, size;
max.s32 begin, $6, 0;
sub.s32 count, end, begin;
max.s32 count, count, -1;
and.b32 end, steps, 7;
add.u32 end, end, 1;
add.u32 count, count, end;
div.u32 count, count, end;
shl.b32 count, count, shift;
cvt.u64.u32 pitch, begin;
shl.b64 pitch, pitch, shift;
add.u64 $0, $0, pitch;
mov.b32 $1, count;
mov.b32 $2, 1;
mov.b64 $3, 0;
mov.b32 left, $5;
axis${:uid}:
sub.u32 left, left, 1;
setp.le.s32 p, left, 0;
@p bra done${:uid};
add.u64 at, at, 4;
shr.u32 steps, steps, 3;
ld.b32 size, [at+8];
cvt.u64.u32 low, size;
and.b32 size, high, 15;
shr.u32 high, high, 4;
cvt.u64.u32 pitch, size;
shl.b64 pitch, pitch, 32;
or.b64 pitch, pitch, low;
shl.b64 pitch, pitch, 4;
setp.eq.u64 p, $3, 0;
@p mov.b64 $3, pitch;
ld.b32 size, [at+32];
and.b32 end, boxes, 255;
shr.u32 boxes, boxes, 8;
@image mov.b32 end, 0;
add.s32 end, end, c1;
min.s32 end, end, size;
max.s32 begin, c1, 0;
sub.s32 count, end, begin;
max.s32 count, count, -1;
and.b32 end, steps, 7;
add.u32 end, end, 1;
add.u32 count, count, end;
div.u32 count, count, end;
mul.lo.u32 $1, $1, count;
mul.lo.u32 $2, $2, count;
cvt.u64.u32 low, begin;
mul.lo.u64 pitch, pitch, low;
add.u64 $0, $0, pitch;
mov.b32 c1, c2;
mov.b32 c2, c3;
mov.b32 c3, c4;
bra axis${:uid};
done${:uid}:
@image ld.u16 count, [$4+60];
@image add.u32 count, count, 1;
@image mul.lo.u32 $1, $1, count;
@image mul.lo.u32 $2, $2, count;
}"""
_quadruple = types.UniTuple(_int, 4)
#: log2 of the bytes of an element, two bits for each element type.
_ELEMENTS = 0x1E9FA4


def _box(builder: Any, arguments: Values) -> Any:
    kind = ir.LiteralStructType([_I64, _I32, _I32, _I64])
    tensor, *rest = arguments
    given = [tensor, *(_narrow(builder, each) for each in rest)]
    assembly = ir.InlineAsm(
        ir.FunctionType(kind, [each.type for each in given]),
        _BOX.replace("ELEMENTS", str(_ELEMENTS)), "=&l,=&r,=&r,=&l,l,r,r,r,r,r,r", side_effect=True,
    )  # fmt: skip
    return _tuple_of(builder, builder.call(assembly, given))


#: Box of a tensor map, rank, coordinates: first byte, bytes, rows, bytes between rows, of what
#: lies inside the tensor.  Rows of more than two axes are counted, and placed as if evenly spaced;
#: pixels of im2col are counted without regard to the image's borders.
tensor_box = _define("tensor_box", 7, _box, _quadruple)

# ---- objects ---------------------------------------------------------------------------------
# In PTX of our own: a patch has fourteen registers for nothing, and 64-bit ones take two.

#: The object of ADDRESS: OBJECT.  What all lanes read counts: bytes out of L1, where the library's
#: own trampoline saves registers.
_FIND = """{
.reg .pred p;
.reg .b64 base, at, last;
.reg .b32 low, high, middle, left;
ld.global.v4.b32 {left, middle, low, high}, [LAUNCH];
mov.b64 at, {low, high};
mul.wide.u32 base, left, BASE_UNIT;
sub.u64 base, ADDRESS, base;
shr.u32 left, middle, 8;
and.b32 middle, middle, 255;
shr.u64 base, base, middle;
cvt.u64.u32 last, left;
setp.gt.u64 p, base, last;
@p bra other${:uid};
bucket${:uid}:
cvt.u32.u64 low, base;
mad.wide.s32 at, low, -4, at;
ld.global.b32 low, [at+-4];
setp.ge.s32 p, low, 0;
@p bra part${:uid};
and.b32 OBJECT, low, 0x7fffffff;
WHOLE
bra done${:uid};
other${:uid}:
ld.global.b64 at, [LAUNCH+L_TABLE];
setp.eq.u64 p, at, 0;
@p bra miss${:uid};
ld.global.b32 left, [at+T_CLUSTERS];
next${:uid}:
setp.eq.u32 p, left, 0;
@p bra miss${:uid};
ld.global.b64 base, [at+T_CLUSTER];
ld.global.v2.b32 {low, high}, [at+T_CLUSTER+C_SHIFT];
sub.u64 base, ADDRESS, base;
shr.u64 base, base, low;
cvt.u64.u32 last, high;
sub.u32 left, left, 1;
add.u64 at, at, CLUSTER;
setp.gt.u64 p, base, last;
@p bra next${:uid};
ld.global.b64 at, [at+T_CLUSTER+C_BUCKETS-CLUSTER];
bra bucket${:uid};
part${:uid}:
ld.global.b32 high, [at+-8];
and.b32 high, high, 0x7fffffff;
ld.global.b64 last, [LAUNCH+L_RANGES];
search${:uid}:
setp.ge.u32 p, low, high;
@p bra found${:uid};
add.u32 middle, low, high;
add.u32 middle, middle, 1;
shr.u32 middle, middle, 1;
mad.wide.u32 at, middle, RANGE, last;
ld.global.b64 at, [at+-RANGE];
setp.lt.u64 p, ADDRESS, at;
@p sub.u32 high, middle, 1;
@!p mov.b32 low, middle;
bra search${:uid};
found${:uid}:
mad.wide.u32 at, low, RANGE, last;
ld.global.v2.b64 {base, at}, [at+-RANGE];
sub.u64 base, ADDRESS, base;
mov.b32 OBJECT, low;
PART
setp.lt.u64 p, base, at;
@p bra done${:uid};
miss${:uid}:
mov.b32 OBJECT, 0;
MISS
done${:uid}:
}"""
#: The object that holds all of the unit that $2 is in, of 1 << PASTA_PROBE_BASE_SHIFT bytes; 0: it
#: is not known without more reading.
_WHOLE = """{
.reg .pred p;
.reg .b64 base, at, last;
.reg .b32 low, shape, left;
mov.b32 $0, 0;
ld.global.v2.b32 {left, shape}, [$1];
mul.wide.u32 base, left, BASE_UNIT;
sub.u64 base, $2, base;
shr.u32 left, shape, 8;
and.b32 shape, shape, 255;
shr.u64 base, base, shape;
cvt.u64.u32 last, left;
setp.gt.u64 p, base, last;
setp.lt.or.u32 p, shape, BASE_SHIFT, p;
@p bra done${:uid};
cvt.u32.u64 low, base;
ld.global.b64 at, [$1+L_RANGES];
mad.wide.s32 at, low, -4, at;
ld.global.b32 low, [at+-4];
setp.lt.s32 p, low, 0;
@p and.b32 $0, low, 0x7fffffff;
done${:uid}:
}"""
#: The same as `_FIND` and the offset in the object.
_OFFSET = {
    "WHOLE": """RANGE_OF at, LAUNCH, OBJECT;
ld.global.b64 at, [at+-RANGE];
sub.u64 $1, ADDRESS, at;""",
    "PART": "mov.b64 $1, base;",
    "MISS": "mov.b64 $1, ADDRESS;",
    "LAUNCH": "$2",
    "ADDRESS": "$3",
    "OBJECT": "$0",
}
_NO_OFFSET = {"WHOLE": "", "PART": "", "MISS": "", "LAUNCH": "$1", "ADDRESS": "$2", "OBJECT": "$0"}
#: Address of the words of $2 in this multiprocessor's stripe of the launch's slot, less those
#: before the objects.  The row is the index, or is found or taken by the hash of the object's
#: number; what has no row is counted behind all slots, or at last in the row of all others.
_AT_ROW = """{
.reg .pred p;
.reg .b64 words;
.reg .b32 row, stripe, bytes, mask;
mov.b32 row, $2;
ld.global.v2.b64 {$0, words}, [$1+L_SLOT];
mov.b64 {bytes, mask}, words;
setp.lt.s32 p, mask, 0;
@p bra place${:uid};
{
.reg .b64 at;
.reg .b32 rows, key, there;
ld.global.b32 rows, [$1+L_HASH_MASK];
mov.b32 key, 0;
setp.eq.u32 p, $2, 0;
@p bra keyed${:uid};
RANGE_OF at, $1, $2;
ld.global.b32 key, [at+R_NUMBER-RANGE];
keyed${:uid}:
and.b32 row, key, rows;
add.u32 key, key, 1;
next${:uid}:
ld.global.b64 at, [$1+L_KEYS];
mad.wide.u32 at, row, 4, at;
ld.global.b32 there, [at];
setp.eq.u32 p, there, key;
@p bra hashed${:uid};
setp.ne.u32 p, there, 0;
@p bra taken${:uid};
atom.relaxed.gpu.global.cas.b32 there, [at], 0, key;
setp.eq.u32 p, there, 0;
@p bra hashed${:uid};
setp.eq.u32 p, there, key;
@p bra hashed${:uid};
taken${:uid}:
add.u32 row, row, 1;
and.b32 row, row, rows;
sub.u32 there, row, key;
add.u32 there, there, 1;
and.b32 there, there, rows;
setp.ne.u32 p, there, 0;
setp.lt.and.u32 p, there, TRIES, p;
@p bra next${:uid};
add.u32 row, rows, 1;
ld.global.b32 there, [$1+L_SPILL_ROWS];
setp.ge.u32 p, $2, there;
@p bra hashed${:uid};
ld.global.b64 at, [$1+L_KEYS];
mad.wide.u32 at, row, 4, at;
mov.b32 there, 1;
st.global.b32 [at], there;
ld.global.b64 $0, [$1+L_SPILL];
mad.wide.u32 $0, $2, BYTES, $0;
bra done${:uid};
hashed${:uid}:
}
ld.global.b64 $0, [$1+L_SLOT];
ld.global.b32 bytes, [$1+L_STRIPE_BYTES];
ld.global.b32 mask, [$1+L_STRIPE_MASK];
place${:uid}:
mov.u32 stripe, %smid;
and.b32 stripe, stripe, mask;
mad.wide.u32 $0, stripe, bytes, $0;
mad.wide.u32 $0, row, BYTES, $0;
done${:uid}:
}"""
#: Bytes of granules of $2: of those set in $3, the word of granule $4.  The last granule ends with
#: the object.
_BYTES = """{
.reg .pred p;
.reg .b32 shift, padding, last, bit;
.reg .b64 size;
RANGE_OF size, $1, $2;
ld.global.u8 shift, [size+R_PLANE_SHIFT-RANGE];
ld.global.b64 size, [size+R_SIZE-RANGE];
mov.b32 padding, 1;
shl.b32 padding, padding, shift;
popc.b32 bit, $3;
mul.wide.u32 $0, bit, padding;
sub.u32 padding, padding, 1;
cvt.u32.u64 bit, size;
neg.s32 bit, bit;
and.b32 padding, padding, bit;
sub.u64 size, size, 1;
shr.u64 size, size, shift;
cvt.u32.u64 last, size;
and.b32 bit, last, 31;
shr.u32 bit, $3, bit;
and.b32 bit, bit, 1;
setp.ne.u32 p, bit, 0;
xor.b32 last, last, $4;
setp.lt.and.u32 p, last, 32, p;
@!p mov.b32 padding, 0;
cvt.u64.u32 size, padding;
sub.u64 $0, $0, size;
}"""
#: Number of the bin of offset $3 in $2, among those of all objects; all ones: there is none.
_BIN = """{
.reg .pred p;
.reg .b32 shift;
.reg .b64 at;
mov.b32 $0, -1;
setp.eq.u32 p, $2, 0;
@p bra done${:uid};
RANGE_OF at, $1, $2;
ld.global.b32 $0, [at+R_BINS-RANGE];
setp.eq.u32 p, $0, -1;
@p bra done${:uid};
ld.global.u8 shift, [at+R_BIN_SHIFT-RANGE];
shr.u64 at, $3, shift;
cvt.u32.u64 shift, at;
add.u32 $0, $0, shift;
done${:uid}:
}"""
#: Address of the words of a bin in this multiprocessor's stripe.
_BIN_AT = """{
.reg .b32 stripe;
.reg .b64 bytes, wide;
ld.global.b64 $0, [$1+L_BINS];
mad.wide.u32 $0, $2, BYTES, $0;
mov.u32 stripe, %smid;
and.b32 stripe, stripe, STRIPES;
ld.global.b64 bytes, [$1+L_BIN_STRIPE];
cvt.u64.u32 wide, stripe;
mad.lo.u64 $0, bytes, wide, $0;
}"""
#: Marks the granule of each lane's access in plane PLANE; $2: descriptor, $3: object, $4: offset.
#: Lanes that find theirs unmarked go together by word, and one of them marks those of all: $0:
#: which it marked first; $1: the granule, all ones: the object has none.  Bits are ORed by rounds,
#: one for each distinct bit, unless they are a stretch from the first lane's to the last lane's.
#: A launch that runs at the same time may make a word its own at any moment: it is swapped whole.
#: What is looked up again could have been kept, in registers that there are not.
_TOUCH = """{
.reg .pred p;
.reg .b32 all, group, first, last, low, old;
mov.b32 $0, 0;
mov.b32 $1, -1;
{
.reg .b64 at, range;
.reg .b32 word;
setp.eq.u32 p, $3, 0;
@p bra done${:uid};
RANGE_OF range, $2, $3;
ld.global.b32 word, [range+R_PLANE-RANGE];
ld.global.b64 at, [$2+L_PLANES+PLANE];
setp.eq.u32 p, word, -1;
setp.eq.or.u64 p, at, 0, p;
@p bra done${:uid};
ld.global.u8 first, [range+R_PLANE_SHIFT-RANGE];
shr.u64 range, $4, first;
cvt.u32.u64 $1, range;
shr.u32 first, $1, 5;
add.u32 word, word, first;
mad.wide.u32 at, word, 8, at;
ld.relaxed.gpu.global.v2.b32 {low, old}, [at];
EPOCH first;
setp.eq.u32 p, old, first;
and.b32 first, $1, 31;
shr.u32 first, low, first;
and.b32 first, first, 1;
setp.ne.and.u32 p, first, 0, p;
@p bra done${:uid};
activemask.b32 all;
match.any.sync.b32 group, word, all;
}
brev.b32 first, group;
bfind.shiftamt.u32 first, first;
shfl.sync.idx.b32 first, $1, first, 31, group;
bfind.u32 last, group;
shfl.sync.idx.b32 last, $1, last, 31, group;
match.any.sync.b32 low, $1, group;
brev.b32 low, low;
bfind.shiftamt.u32 low, low;
mov.u32 all, %laneid;
setp.eq.u32 p, low, all;
vote.sync.ballot.b32 $0, p, group;
popc.b32 $0, $0;
setp.lt.u32 p, $1, first;
setp.gt.or.u32 p, $1, last, p;
vote.sync.any.pred p, p, group;
sub.u32 low, last, first;
add.u32 low, low, 1;
setp.ne.or.u32 p, low, $0, p;
@p bra rounds${:uid};
mov.b32 low, -1;
sub.u32 $0, 32, $0;
shr.u32 $0, low, $0;
and.b32 first, first, 31;
shl.b32 $0, $0, first;
bra marked${:uid};
rounds${:uid}:
mov.b32 $0, 0;
mov.b32 last, group;
round${:uid}:
brev.b32 first, last;
bfind.shiftamt.u32 first, first;
shfl.sync.idx.b32 first, $1, first, 31, group;
setp.ne.u32 p, $1, first;
and.b32 first, first, 31;
mov.b32 low, 1;
shl.b32 low, low, first;
or.b32 $0, $0, low;
vote.sync.ballot.b32 low, p, group;
and.b32 last, last, low;
setp.ne.u32 p, last, 0;
@p bra round${:uid};
marked${:uid}:
brev.b32 first, group;
bfind.shiftamt.u32 first, first;
mov.u32 all, %laneid;
setp.eq.u32 p, all, first;
@!p mov.b32 $0, 0;
@!p bra done${:uid};
{
.reg .b64 at, was, new;
.reg .pred other;
RANGE_OF at, $2, $3;
ld.global.b32 low, [at+R_PLANE-RANGE];
shr.u32 first, $1, 5;
add.u32 low, low, first;
ld.global.b64 at, [$2+L_PLANES+PLANE];
mad.wide.u32 at, low, 8, at;
again${:uid}:
ld.relaxed.gpu.global.v2.b32 {low, old}, [at];
mov.b64 was, {low, old};
EPOCH first;
setp.ne.u32 other, old, first;
or.b32 low, low, $0;
@other mov.b32 low, $0;
mov.b64 new, {low, first};
atom.relaxed.gpu.global.cas.b64 new, [at], was, new;
setp.ne.u64 p, new, was;
@p bra again${:uid};
mov.b64 {low, old}, was;
not.b32 low, low;
@!other and.b32 $0, $0, low;
}
done${:uid}:
}"""


def _offsets() -> dict[str, int]:
    """Offsets of the structs of pasta_probes.h, and the sizes of two."""
    from pasta._native import ffi, lib

    values = {
        "TRIES": lib.PASTA_PROBE_TRIES,
        "BASE_SHIFT": lib.PASTA_PROBE_BASE_SHIFT,
        "BASE_UNIT": 1 << lib.PASTA_PROBE_BASE_SHIFT,
        "RANGE": ffi.sizeof("pasta_object_range"),
        "CLUSTER": ffi.sizeof("pasta_object_cluster"),
    }
    for struct, letter in OFFSETS:
        for name, field in ffi.typeof(struct).fields:
            values[f"{letter}_{name.upper()}"] = field.offset
    return values


#: End of the range of an object, by its index from 1.
_RANGE_OF = r"ld.global.b64 \1, [\2+L_RANGES];\nmad.wide.u32 \1, \3, RANGE, \1;"


def _placed(text: str) -> str:
    """PTX with the offsets put in, as LLVM's inline assembly wants it."""
    text = re.sub(r"RANGE_OF (\S+), (\S+), (\S+);", _RANGE_OF, text)
    values = _offsets()
    for name in sorted(values, key=len, reverse=True):
        text = re.sub(rf"\b{name}\b", str(values[name]), text)
    return text


def _filled(text: str, names: Mapping[str, str]) -> str:
    for name, value in names.items():
        text = re.sub(rf"\b{name}\b", value, text)
    return _placed(text)


def _find(builder: Any, arguments: Values) -> Any:
    text = _filled(_FIND, _NO_OFFSET)
    return _wide(builder, _assembly(builder, text, "=&r,l,l", arguments, _I32))


def _find_whole(builder: Any, arguments: Values) -> Any:
    return _wide(builder, _assembly(builder, _placed(_WHOLE), "=&r,l,l", arguments, _I32))


def _find_offset(builder: Any, arguments: Values) -> Any:
    kind = ir.FunctionType(ir.LiteralStructType([_I32, _I64]), [_I64, _I64])
    text = _filled(_FIND, _OFFSET)
    assembly = ir.InlineAsm(kind, text, "=&r,=&l,l,l", side_effect=True)
    return _tuple_of(builder, builder.call(assembly, arguments))


def row_address(words: int) -> Any:
    """An intrinsic that gives where words of an object's row are: descriptor, object → address.

    Add the bytes of the slot's words before the rows, and of the row's before the one meant.
    """
    text = _filled(_AT_ROW, {"BYTES": str(8 * words)})

    def generate(builder: Any, arguments: Values) -> Any:
        given = [arguments[0], _narrow(builder, arguments[1])]
        return _assembly(builder, text, "=&l,l,r,~{memory}", given, _I64)

    return _define("at_row", 2, generate)


def _marking(plane: int, by_launch: bool) -> str:
    epoch = r"ld.global.b32 \1, [$2+L_EPOCH];" if by_launch else r"mov.b32 \1, 1;"
    return _placed(re.sub(r"EPOCH (\w+);", epoch, _TOUCH)).replace("PLANE", str(8 * plane))


def touch_plane(plane: int, by_launch: bool) -> Any:
    """An intrinsic that marks granules in a plane: descriptor, object, offset → bits, granule.

    Which granules of the word this lane marked first on behalf of all lanes that touch it, and its
    own granule; 0xFFFFFFFF: the object has none.
    """
    text = _marking(plane, by_launch)

    def generate(builder: Any, arguments: Values) -> Any:
        kind = ir.FunctionType(ir.LiteralStructType([_I32, _I32]), [_I64, _I32, _I64])
        assembly = ir.InlineAsm(kind, text, "=&r,=&r,l,r,l,~{memory}", side_effect=True)
        user, object, offset = arguments
        given = [user, _narrow(builder, object), offset]
        return _tuple_of(builder, builder.call(assembly, given, attrs=("convergent",)))

    return _define(f"touch_plane_{plane}", 3, generate, _pair)


def _bytes(builder: Any, arguments: Values) -> Any:
    given = [arguments[0], *(_narrow(builder, each) for each in arguments[1:])]
    return _assembly(builder, _placed(_BYTES), "=&l,l,r,r,r", given, _I64)


def _bin(builder: Any, arguments: Values) -> Any:
    user, object, offset = arguments
    given = [user, _narrow(builder, object), offset]
    return _wide(builder, _assembly(builder, _placed(_BIN), "=&r,l,r,l", given, _I32))


def bin_address(words: int) -> Any:
    """An intrinsic that gives the address of a bin's words: descriptor, number → address."""
    text = _filled(_BIN_AT, {"BYTES": str(8 * words), "STRIPES": str(BIN_STRIPES - 1)})

    def generate(builder: Any, arguments: Values) -> Any:
        given = [arguments[0], _narrow(builder, arguments[1])]
        return _assembly(builder, text, "=&l,l,r", given, _I64)

    return _define("bin_at", 2, generate)


#: The object of an address, by a launch's descriptor: its index in the table of objects from 1; 0:
#: none.
find = _define("find", 2, _find)
#: The object of all addresses of this one's unit, which is its bits from UNIT_SHIFT on; 0: ask for
#: each.
find_whole = _define("find_whole", 2, _find_whole)
#: As `find`, and the offset in the object; without one, the address.
find_offset = _define("find_offset", 2, _find_offset, _pair)
#: Number of an object's bin: descriptor, object, offset; 0xFFFFFFFF: there is none.
bin_of = _define("bin_of", 3, _bin)
#: Bytes of granules of an object: descriptor, object, bits of a word, a granule of that word.
bytes_of = _define("bytes_of", 4, _bytes)

# ---- records ---------------------------------------------------------------------------------


def _trace(single: bool) -> Generate:
    operands = (*trace.OPERANDS, *(trace.MORE_OPERANDS if single else ()))

    def generate(builder: Any, arguments: Values) -> Any:
        text = trace.assembly(_offsets(), single=single)
        given = [
            argument if letter == "l" else _narrow(builder, argument)
            for argument, letter in zip(arguments, operands, strict=True)
        ]
        kind = ir.FunctionType(ir.VoidType(), [argument.type for argument in given])
        constraints = ",".join((*operands, "~{memory}"))
        assembly = ir.InlineAsm(kind, text, constraints, side_effect=True)
        builder.call(assembly, given, attrs=("convergent",))

    return generate


#: Writes a record of lanes that call this together: a launch's descriptor, the instruction's
#: address, each lane's address, the lanes, bytes of a lane, kind | flags << 8.
trace_lanes = _define("trace_lanes", 6, _trace(False), types.none)
#: Writes a record that one lane gives for all in a mask: bytes are of all rows; also rows, and the
#: bytes between them.
trace_single = _define("trace_single", 8, _trace(True), types.none)
