"""A Trace map's operation on the GPU: a warp writes one access record to page-locked memory.

Hand-written PTX, as all code of patches with many live values.  shim/backends/nvidia/trace.c
describes how chunks reach the host, and the bounded waits of warps; pasta_probes.h has the layout.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pasta.probes.kinds import DELTAS, FULL, ROWS, STRIDE

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Operands: 0 user, 1 pc, 2 address, 3 mask, 4 bytes, 5 kind and flags as in the record; if one
#: lane writes for all: 6 rows, 7 bytes between them.
OPERANDS = ("l", "l", "l", "r", "r", "r")
MORE_OPERANDS = ("r", "l")

#: The enums of pasta_probes.h.
CONSTANTS = {
    "STRIPES": 128, "WAYS": 8, "SLOT": 32, "HEAD": 64, "OVER": 1 << 31,
    "STRIDED": STRIDE, "DELTAS": DELTAS, "FULL": FULL, "ROWS": ROWS,
}  # fmt: skip

# The form of the addresses: `form`, `stride`, `base`, and in `each` the bytes of a lane's own.
_LANES = """
brev.b32 t, $3;
clz.b32 first, t;
mov.b64 {t, u}, $2;
shfl.sync.idx.b32 t, t, first, 31, $3;
shfl.sync.idx.b32 u, u, first, 31, $3;
mov.b64 base, {t, u};
sub.s64 delta, $2, base;
sub.u32 t, $3, 1;
and.b32 t, t, $3;
mov.b32 form, STRIDED;
mov.b32 each, 0;
mov.b64 stride, 0;
setp.eq.u32 p, t, 0;
@p bra formed${:uid};
brev.b32 t, t;
clz.b32 t, t;
cvt.u32.u64 u, delta;
shfl.sync.idx.b32 u, u, t, 31, $3;
sub.u32 t, t, first;
setp.ne.u32 p, t, 1;
@p div.s32 u, u, t;
cvt.s64.s32 stride, u;
mov.u32 t, %laneid;
sub.u32 t, t, first;
mul.wide.s32 at, u, t;
setp.eq.s64 p, at, delta;
vote.sync.all.pred p, p, $3;
mul.wide.s32 at, u, first;
@p sub.s64 base, base, at;
@p bra formed${:uid};
mov.b64 stride, 0;
cvt.u32.u64 t, delta;
cvt.s64.s32 at, t;
setp.eq.s64 p, at, delta;
vote.sync.all.pred p, p, $3;
selp.b32 form, DELTAS, FULL, p;
selp.b32 each, 4, 8, p;
formed${:uid}:
popc.b32 t, $3;
mad.lo.u32 t, t, each, HEAD+SLOT-1;
and.b32 total, t, -SLOT;
"""
_SINGLE = """
mov.b64 base, $2;
mov.b64 stride, $7;
div.u32 size, $4, $6;
setp.eq.u32 p, $6, 1;
selp.b32 form, STRIDED, ROWS, p;
@p mov.b64 stride, 0;
mov.b32 total, HEAD;
"""

# Adds `change` to `done` of `place`, after all writes; the last lane notifies the host.
_DONE = """
mul.wide.u32 at, place, 8;
add.u64 at, at, ring;
atom.release.sys.global.add.u64 w, [at+Q_DONE], change;
add.u64 w, w, change;
mov.b64 {t, u}, w;
setp.ne.u32 p, t, u;
@p bra LABEL${:uid};
mov.b64 w, 0;
st.relaxed.gpu.global.b64 [at+Q_DONE], w;
ld.global.b64 at, [ring+Q_CONTROL];
mul.wide.u32 w, place, 4;
add.u64 at, at, w;
fence.acq_rel.sys;
st.relaxed.sys.global.b32 [at+P_READY], t;
LABEL${:uid}:
"""

# The lowest lane reserves `slot`; 0: the record is dropped.
_LOWEST = """
mov.b64 slot, 0;
mov.u32 t, %laneid;
setp.ne.u32 p, t, first;
@p bra reserved${:uid};
"""
_RESERVE = """
mov.u32 t, %smid;
and.b32 stripe, t, STRIPES-1;
again${:uid}:
mul.wide.u32 at, stripe, 32;
add.u64 at, at, ring;
cvt.u64.u32 w, total;
atom.relaxed.gpu.global.add.u64 w, [at+Q_CURSOR], w;
mov.b64 {used, number}, w;
ld.global.b32 most, [ring+Q_CHUNK_BYTES];
add.u32 t, used, total;
setp.le.u32 p, t, most;
@p bra placed${:uid};
setp.le.u32 p, used, most;
@p bra close${:uid};
other${:uid}:
ld.relaxed.gpu.global.b64 w, [at+Q_CURSOR];
mov.b64 {t, u}, w;
setp.ne.u32 p, u, number;
@p bra again${:uid};
setp.ge.u32 p, t, OVER;
@p bra over${:uid};
nanosleep.u32 200;
bra other${:uid};
close${:uid}:
setp.eq.u32 p, number, 0;
@p bra opening${:uid};
and.b32 place, number, WAYS-1;
mad.lo.u32 place, stripe, WAYS, place;
mov.b32 t, 0;
mov.b64 change, {t, used};
CLOSE_CHUNK
add.u32 number, number, 1;
and.b32 place, number, WAYS-1;
mad.lo.u32 place, stripe, WAYS, place;
ld.global.b64 at, [ring+Q_CONTROL];
mul.wide.u32 w, place, 4;
add.u64 w, w, at;
mov.b32 used, OVER;
wait${:uid}:
ld.acquire.sys.global.b32 t, [w+P_OPEN];
setp.eq.u32 p, t, number;
@p bra opened${:uid};
ld.relaxed.sys.global.b32 t, [at+P_BEAT];
setp.eq.u32 p, t, OVER;
@p bra give_up${:uid};
setp.eq.u32 p, t, used;
@p bra same${:uid};
mov.b32 used, t;
mov.u64 change, %globaltimer;
same${:uid}:
nanosleep.u32 1000;
ld.global.b64 limit, [ring+Q_PATIENCE];
add.u64 limit, limit, change;
mov.u64 slot, %globaltimer;
setp.lt.u64 p, slot, limit;
@p bra wait${:uid};
give_up${:uid}:
sub.u32 number, number, 1;
over${:uid}:
mov.b32 t, OVER;
mov.b64 w, {t, number};
mul.wide.u32 at, stripe, 32;
add.u64 at, at, ring;
st.relaxed.gpu.global.b64 [at+Q_CURSOR], w;
mov.b64 w, 1;
red.relaxed.gpu.global.add.u64 [ring+Q_DROPPED], w;
mov.b64 slot, 0;
bra reserved${:uid};
opened${:uid}:
mov.b64 w, {total, number};
mul.wide.u32 at, stripe, 32;
add.u64 at, at, ring;
st.release.gpu.global.b64 [at+Q_CURSOR], w;
mov.b32 used, 0;
placed${:uid}:
and.b32 place, number, WAYS-1;
mad.lo.u32 place, stripe, WAYS, place;
ld.global.b32 t, [ring+Q_CHUNK_SHIFT];
cvt.u64.u32 w, place;
shl.b64 w, w, t;
ld.global.b64 slot, [ring+Q_DATA];
add.u64 slot, slot, w;
cvt.u64.u32 w, used;
add.u64 slot, slot, w;
reserved${:uid}:
"""

_SHARE = """
mov.b64 {t, u}, slot;
shfl.sync.idx.b32 t, t, first, 31, $3;
shfl.sync.idx.b32 u, u, first, 31, $3;
mov.b64 slot, {t, u};
mov.u32 t, %lanemask_lt;
and.b32 t, t, $3;
popc.b32 rank, t;
popc.b32 count, $3;
"""
_ALONE = """
mov.b32 rank, 0;
mov.b32 count, 1;
"""

# The first lanes write the record together, 16 bytes each, so that it is one write to the host.
_WRITE = """
setp.eq.u64 p, slot, 0;
@p bra done${:uid};
mov.b32 part, rank;
head${:uid}:
setp.gt.u32 p, part, 3;
@p bra written${:uid};
mov.b64 w, stride;
mov.b64 at, base;
setp.eq.u32 p, part, 2;
@p mov.b64 w, $1;
@p ld.global.b64 at, [$0+L_EPOCH];
setp.eq.u32 p, part, 3;
@p mov.u32 t, %ctaid.z;
@p mov.u32 u, %nctaid.y;
@p mul.lo.u32 t, t, u;
@p mov.u32 u, %ctaid.y;
@p add.u32 t, t, u;
@p mov.u32 u, %nctaid.x;
@p mul.wide.u32 w, t, u;
@p mov.u32 u, %ctaid.x;
@p cvt.u64.u32 at, u;
@p add.u64 w, w, at;
setp.eq.u32 p, part, 0;
@p mov.u32 t, %tid.z;
@p mov.u32 u, %ntid.y;
@p mul.lo.u32 t, t, u;
@p mov.u32 u, %tid.y;
@p add.u32 t, t, u;
@p mov.u32 u, %ntid.x;
@p mul.lo.u32 t, t, u;
@p mov.u32 u, %tid.x;
@p add.u32 t, t, u;
@p shr.u32 t, t, 5;
@p shl.b32 t, t, 16;
@p or.b32 t, t, COUNT_OF_ROWS;
@p mov.b64 at, {ROW_BYTES, t};
@p mov.u32 t, %smid;
@p shl.b32 t, t, 8;
@p or.b32 t, t, form;
@p shl.b32 t, t, 16;
@p or.b32 t, t, $5;
@p mov.b64 w, {$3, t};
mad.wide.u32 change, part, 16, slot;
st.global.v2.b64 [change], {w, at};
add.u32 part, part, count;
bra head${:uid};
written${:uid}:
"""
_ADDRESSES = """
setp.eq.u32 p, each, 0;
@p bra complete${:uid};
mad.wide.u32 at, rank, each, slot;
setp.eq.u32 p, each, 8;
@p st.global.b64 [at+HEAD], $2;
sub.s64 w, $2, base;
cvt.u32.u64 t, w;
@!p st.global.b32 [at+HEAD], t;
complete${:uid}:
bar.warp.sync $3;
setp.ne.u32 p, rank, 0;
@p bra done${:uid};
"""
_COMMIT = """
cvt.u64.u32 change, total;
"""
_REGISTERS = """
.reg .pred p;
.reg .b64 ring, base, delta, stride, at, w, change, limit, slot;
.reg .b32 t, u, first, form, each, total, stripe, used, number, most, place;
.reg .b32 rank, count, part, size;
ld.global.b64 ring, [$0+L_TRACE];
setp.eq.u64 p, ring, 0;
@p bra done${:uid};
"""


def assembly(offsets: Mapping[str, int], *, single: bool) -> str:
    """Inline assembly for lanes with an address each, or for one lane that writes for all.

    `offsets`: of the fields of structs, as `structs.constants` names them.
    """
    parts = [
        _REGISTERS,
        _SINGLE if single else _LANES + _LOWEST,
        _RESERVE.replace("CLOSE_CHUNK", _DONE.replace("LABEL", "opening")),
        _ALONE if single else _SHARE,
        _WRITE.replace("COUNT_OF_ROWS", "$6" if single else "1").replace(
            "ROW_BYTES", "size" if single else "$4"
        ),
        "" if single else _ADDRESSES,
        _COMMIT,
        _DONE.replace("LABEL", "done"),
    ]
    text = "\n".join(line for part in parts for line in part.split("\n") if line)
    values = {**CONSTANTS, **offsets}
    text = re.sub(r"\b[A-Z][A-Z_]+\b", lambda name: str(values[name[0]]), text)
    return "{\n" + text + "\n}"
