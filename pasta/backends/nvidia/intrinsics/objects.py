"""The object that contains an address, and the address of its words.

Hand-written PTX: a patch has fourteen free registers, and 64-bit values take two.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from pasta.backends.nvidia.intrinsics.define import (
    I32,
    I64,
    Generate,
    Intrinsic,
    Values,
    emit_ptx,
    fill_in,
    narrow,
    tuple_of,
    wide,
    with_offsets,
)
from pasta.backends.nvidia.structs import constants

#: The bucket of ADDRESS in the first cluster, `base` of those that end at `at`; p: it has none.
_FIRST_CLUSTER = """.reg .pred p;
.reg .b64 base, at, last;
.reg .b32 low, high, middle, left;
LOAD.v4.b32 {left, middle, low, high}, [LAUNCH];
mov.b64 at, {low, high};
cvt.u64.u32 base, left;
shl.b64 base, base, BASE_SHIFT;
sub.u64 base, ADDRESS, base;
shr.u32 left, middle, 8;
and.b32 middle, middle, 255;
shr.u64 base, base, middle;
cvt.u64.u32 last, left;
setp.gt.u64 p, base, last;"""
#: The entry `low` of that bucket.
_ENTRY = """cvt.u32.u64 low, base;
mad.wide.s32 at, low, -4, at;
ld.global.b32 low, [at+-4];"""
#: The entry of the part that ADDRESS is in, by that of its bucket.
_PART = """sub.u32 middle, middle, PARTS_SHIFT;
shr.u64 base, ADDRESS, middle;
cvt.u32.u64 high, base;
and.b32 high, high, LAST_PART;
xor.b32 low, low, PARTS;
add.u32 low, low, high;
mad.wide.s32 at, low, -4, at;
ld.global.b32 low, [at+-4];"""
#: The entry of the bucket of ADDRESS, or of its part; 0: not in the first cluster.
_BUCKET = f"""{{
{_FIRST_CLUSTER}
mov.b32 $0, 0;
@p bra done${{:uid}};
{_ENTRY}
mov.b32 $0, low;
setp.lt.s32 p, low, PARTS;
@p bra done${{:uid}};
{_PART}
mov.b32 $0, low;
done${{:uid}}:
}}"""
#: The object of ADDRESS by its bucket: OBJECT. Several objects: continues at `ranges`.
_BY_BUCKET = f"""{{
{_ENTRY}
setp.lt.s32 p, low, 0;
@p bra one${{:uid}};
setp.lt.u32 p, low, PARTS;
@p bra ranges${{:uid}};
{_PART}
setp.ge.s32 p, low, 0;
@p bra ranges${{:uid}};
one${{:uid}}:
and.b32 OBJECT, low, 0x7fffffff;
WHOLE
bra done${{:uid}};
}}"""
#: The object of ADDRESS: OBJECT. All lanes read: few bytes, as these displace from L1 the
#: registers that the library's trampoline saves there. ptxas places a block before those to which
#: it branches: nothing branches back into the usual path, which is first.
_FIND = """{
FIRST_CLUSTER
@p bra other${:uid};
BY_BUCKET
other${:uid}:
ld.global.b64 at, [LAUNCH+L_TABLE];
setp.eq.u64 p, at, 0;
@p bra miss${:uid};
ld.global.b32 left, [at+T_CLUSTERS];
next${:uid}:
setp.eq.u32 p, left, 0;
@p bra miss${:uid};
ld.global.b64 base, [at+T_CLUSTER];
ld.global.v2.b32 {middle, high}, [at+T_CLUSTER+C_SHIFT];
sub.u64 base, ADDRESS, base;
shr.u64 base, base, middle;
cvt.u64.u32 last, high;
sub.u32 left, left, 1;
add.u64 at, at, CLUSTER;
setp.gt.u64 p, base, last;
@p bra next${:uid};
ld.global.b64 at, [at+T_CLUSTER+C_BUCKETS-CLUSTER];
BY_BUCKET
ranges${:uid}:
shr.u32 high, low, MORE_SHIFT;
and.b32 low, low, FIRST_RANGE;
setp.eq.u32 p, high, MANY;
add.u32 high, high, low;
@!p bra few${:uid};
ld.global.b64 last, [LAUNCH+L_TABLE];
ld.global.b32 high, [last+T_COUNT];
few${:uid}:
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
}""".replace("FIRST_CLUSTER", _FIRST_CLUSTER).replace("BY_BUCKET", _BY_BUCKET)
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
    "LOAD": "ld.global",
}
_NO_OFFSET = {"WHOLE": "", "PART": "", "MISS": "", "LAUNCH": "$1", "ADDRESS": "$2", "OBJECT": "$0"}
#: Address of the words of $3 in a stripe of the rows $1, $2, of which the row is the index.
_ROW_AT = """{
.reg .b32 stripe, bytes, mask;
mov.u32 stripe, %clock;
mov.b64 {bytes, mask}, $2;
and.b32 stripe, stripe, mask;
mul.lo.u32 stripe, stripe, bytes;
mad.lo.u32 stripe, $3, BYTES, stripe;
cvt.u64.u32 $0, stripe;
add.u64 $0, $0, $1;
}"""
#: Address of the words of $2 in a stripe of the launch's rows.  The row is the index,
#: or is found or claimed by the hash of the object's number; objects without a row are counted
#: behind all slots, or in the row of all others.
_AT_ROW = """{
.reg .pred p;
.reg .b64 words;
.reg .b32 row, stripe, bytes, mask;
mov.b32 row, $2;
ld.global.v2.b64 {$0, words}, [$1+L_ROWS];
mov.u32 stripe, %clock;
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
ld.global.b64 $0, [$1+L_ROWS];
ld.global.b32 bytes, [$1+L_STRIPE_BYTES];
ld.global.b32 mask, [$1+L_STRIPE_MASK];
mov.u32 stripe, %clock;
place${:uid}:
and.b32 stripe, stripe, mask;
mul.lo.u32 stripe, stripe, bytes;
mad.lo.u32 stripe, row, BYTES, stripe;
cvt.u64.u32 words, stripe;
add.u64 $0, $0, words;
done${:uid}:
}"""

#: Address of byte $2 of the launch's words, in a stripe.
_IN_SLOT = """{
.reg .b64 wide;
.reg .b32 at, stripe;
mov.u32 stripe, %clock;
and.b32 stripe, stripe, STRIPE_MASK;
cvt.u32.u64 at, $1;
and.b32 at, at, ARRAY_MASK;
mul.lo.u32 at, at, BEYOND;
mad.lo.u32 at, stripe, STRIPE, at;
add.u32 at, at, $2;
add.u32 at, at, ARRAY;
cvt.u64.u32 wide, at;
add.u64 $0, $1, wide;
}"""


def _bucket(builder: Any, arguments: Values) -> Any:
    text = fill_in(_BUCKET, {**_NO_OFFSET, "LOAD": "ld.global"})
    return builder.sext(emit_ptx(builder, text, "=&r,l,l", arguments, I32), I64)


def _rows(builder: Any, arguments: Values) -> Any:
    kind = ir.FunctionType(ir.LiteralStructType([I64, I64]), [I64])
    text = with_offsets("ld.global.v2.b64 {$0, $1}, [$2+L_ROWS];")
    assembly = ir.InlineAsm(kind, text, "=l,=l,l", side_effect=True)
    return tuple_of(builder, builder.call(assembly, arguments))


def _find(load: str) -> Generate:
    text = fill_in(_FIND, {**_NO_OFFSET, "LOAD": load})
    return lambda builder, arguments: wide(
        builder, emit_ptx(builder, text, "=&r,l,l", arguments, I32)
    )


def _find_offset(builder: Any, arguments: Values) -> Any:
    kind = ir.FunctionType(ir.LiteralStructType([I32, I64]), [I64, I64])
    text = fill_in(_FIND, _OFFSET)
    assembly = ir.InlineAsm(kind, text, "=&r,=&l,l,l", side_effect=True)
    return tuple_of(builder, builder.call(assembly, arguments))


def slot_text(stripe: int, stripes: int) -> str:
    """PTX of `slot_address`: $0, from $1 and $2."""
    launch = constants()["LAUNCH"]
    array = constants()["SLOTS"] * launch
    numbers = {
        "STRIPE_MASK": stripes - 1,
        "ARRAY_MASK": array - 1,
        "BEYOND": stripe * stripes // launch - 1,  # for each byte of the launches before this one
        "STRIPE": stripe,
        "ARRAY": array,
    }
    return fill_in(_IN_SLOT, {name: str(number) for name, number in numbers.items()})


def slot_address(stripe: int, stripes: int) -> Any:
    """An intrinsic that returns the address of a launch's words in a stripe, of which
    there are `stripes` copies of `stripe` bytes: descriptor, offset in bytes → address.

    It loads nothing: where few warps run, a load takes longer than the rest of a patch.
    """
    text = slot_text(stripe, stripes)

    def generate(builder: Any, arguments: Values) -> Any:
        given = [arguments[0], narrow(builder, arguments[1])]
        return emit_ptx(builder, text, "=l,l,r", given, I64)

    return Intrinsic("in_slot", 2, generate)


def row_address(words: int) -> Any:
    """An intrinsic that returns the address of an object's row: descriptor, object → address.

    Add the bytes of the slot's words before the rows, and of the row's before the one meant.
    """
    text = fill_in(_AT_ROW, {"BYTES": str(8 * words)})

    def generate(builder: Any, arguments: Values) -> Any:
        given = [arguments[0], narrow(builder, arguments[1])]
        return emit_ptx(builder, text, "=&l,l,r,~{memory}", given, I64)

    return Intrinsic("at_row", 2, generate)


def direct_row_address(words: int) -> Any:
    """The same by `rows_of`, for rows that are indices: rows, stripes, object → address."""
    text = fill_in(_ROW_AT, {"BYTES": str(8 * words)})

    def generate(builder: Any, arguments: Values) -> Any:
        given = [*arguments[:2], narrow(builder, arguments[2])]
        return emit_ptx(builder, text, "=&l,l,l,r", given, I64)

    return Intrinsic("direct_row", 3, generate)


#: Where the rows of a launch's objects are, and their stripes; those are negative if an object's
#: row is its index.
rows_of = Intrinsic("rows_of", 1, _rows)
#: The bucket of an address, by a launch's descriptor; negative: an object, whose index are the low
#: 31 bits, fills it. Otherwise `find` finds the object. Apart, because the time of a patch depends
#: on how far it jumps.
bucket_of = Intrinsic("bucket_of", 2, _bucket)
#: The object of an address, by a launch's descriptor: its index in the table of objects from 1; 0:
#: none.
find = Intrinsic("find", 2, _find("ld.global"))
#: The same after `bucket_of`: ptxas keeps nothing for it, because it reads memory in another way.
find_apart = Intrinsic("find_apart", 2, _find("ld.global.nc"))
#: As `find`, and the offset in the object; without one, the address.
find_offset = Intrinsic("find_offset", 2, _find_offset)
