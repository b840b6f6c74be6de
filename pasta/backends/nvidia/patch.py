"""One patch: arguments of the vendor's library, fields of the access, calls of the probes.

Fields are computed in an order that keeps few values live: a patch has fourteen free registers, and
each further one is saved and restored at every access.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pasta.backends.nvidia.layout import Layout
from pasta.backends.nvidia.places import Place
from pasta.backends.nvidia.signatures import Signature
from pasta.errors import ToolError
from pasta.probes.kinds import KIND, MAX_VALUE, TIMED
from pasta.probes.language import ProbeFunction

#: Kinds whose instruction is executed once per warp: all active lanes pass the same arguments.
_UNIFORM = frozenset(
    ("bulk_load", "bulk_store", "bulk_reduction", "bulk_shared", "tensor_load", "tensor_store")
)
#: Kinds that concern the warp, not its lanes: the first active lane calls the probes.
_PER_WARP = frozenset(("block_enter", "block_exit", "barrier", "call"))
#: Writers of an access record: the calling lanes, all lanes of the patch, one lane for all.
WRITERS = ("CALLERS", "EVERYONE", "SINGLE")
#: Ways in which an operation uses the object: other operations use it, too; no other does, and a
#: bucket of the launch's table had it, or had not.
WAYS = ("SHARED", "USUAL", "OTHER")
#: Items of `env`, by which the calling lane passes the access to operations.
ENV = (
    "USER",  # the launch's descriptor
    "OBJECT",  # its index in the table, from 1; 0: none
    "WAY",  # see WAYS
    "COUNTS",  # whether this lane counts: only the first one of a transfer does
    "NUMBER",  # of this lane among those of one transfer
    "SHARING",  # number of lanes of that transfer; 0: each lane has its own access
    "TOGETHER",  # lanes whose accesses have equal sizes
    "SIZE",  # bytes of the access if lanes may differ in them and OBJECT is set; 0
    "ALONE",  # whether no other lane of the access calls operations
    "RECORD",  # contents of an access record, if one is written
    "LEADS",  # whether this lane executes what runs once per warp
)
#: Text that computes a field from variables of the patch, in the order of computation.
_FIELDS: dict[str, str] = {
    "known": "known = int(found != 0)",
    "object": "object = found - 1",  # for comparisons with -1: maps use `env`
    "leader": "leader = is_first(mask)",
    "lanes": "lanes = popc(mask)",
    "warp_bytes": "warp_bytes = bytes * popc(mask)",
    "sectors": "same = match_any_sync_64(mask, lshr(address, 5))\n"
    "    sectors = popc(ballot_sync(mask, is_first(same)))",
    "ideal_sectors": "same = match_any_sync_64(mask, address)\n"
    "    ideal_sectors = (popc(ballot_sync(mask, is_first(same))) * bytes + 31) >> 5",
    "ways": "ways = bank_ways(mask, lane, address, bytes)",
    "ideal_ways": "ideal_ways = lane_groups(mask, bytes)",
    "block": "block = ctaid_x() + nctaid_x() * (ctaid_y() + nctaid_y() * ctaid_z())",
    "warp": "warp = (tid_x() + ntid_x() * (tid_y() + ntid_y() * tid_z())) >> 5",
    "sm": "sm = smid() & 255",
    "epoch": "epoch = load_u64(user + L_EPOCH)",
    "time": "time = global_time()",
}
#: Fields of a transfer by one lane, which may be long.
_TRANSFER = {
    "warp_bytes": "warp_bytes = bytes",
    "sectors": "sectors = ((address & 31) + bytes + 31) >> 5",
    "ideal_sectors": "ideal_sectors = (bytes + 31) >> 5",
    "ways": "ways = (bytes + 127) >> 7",
    "ideal_ways": "ideal_ways = (bytes + 127) >> 7",
}


#: Fields of an asynchronous copy, whose lanes may differ in bytes.
_COPY = {
    "warp_bytes": "warp_bytes = copied_bytes(mask, bytes)",
    "ideal_sectors": "same = match_any_sync_64(mask, address)\n"
    "    ideal_sectors = (group_sum(mask, bytes * is_first(same)) + 31) >> 5",
}


@dataclass(frozen=True)
class Instance:
    """A probe of one tool instance, with the values of the tool's options."""

    probe: ProbeFunction
    options: Mapping[str, Any]
    prefix: str


def traces_whole(instance: Instance, layout: Layout) -> bool:
    """Whether a probe that runs once per warp writes records: then all lanes run it."""
    places = _places([instance], layout)
    return instance.probe.per == "warp" and any(each.writes_records for each in places)


def prefix_of(instance: Instance, layout: Layout) -> str:
    """Prefix of the names of a probe's functions, and of the operations that it calls."""
    if not traces_whole(instance, layout):
        return instance.prefix
    return f"{instance.prefix}{instance.probe.name}_"


def need_object(called: Sequence[Instance], layout: Layout) -> bool:
    """Whether these probes use the object of an address."""
    fields = {field for each in called for field in each.probe.fields}
    return bool(fields & {"object", "offset", "known"}) or any(
        place.needs_object for place in _places(called, layout)
    )


def patch_text(
    name: str,
    kind: str,
    signature: Signature,
    called: Sequence[Instance],
    layout: Layout,
) -> str:
    """Text of the function for a kind of access that calls these probes. Raises ToolError."""
    arguments = ", ".join(("user", "pc", *(argument for argument, _ in signature.arguments)))
    fields = {field for each in called for field in each.probe.fields}
    if "launch" in fields:
        raise ToolError("access.launch is not known on the GPU", remedy='count by="launch" instead')
    lines, guard = _arguments(kind, signature), _guard(called, layout)
    led = kind in _FLAGGED and _only_leader(called, layout)
    begin = _begin(kind, led=led)
    # the descriptor, which would be saved while the guard runs, is found after it
    first = guard or kind == "async_copy"  # of which lanes leave by their bytes
    lines = [*lines, *guard, *begin] if first else [*begin, *lines]
    if fields & {"lane", "ways"} or kind in _UNIFORM:
        lines.append("lane = lane_id()")
    if fields & {"value", "value_high", "has_value"}:
        lines += _value(kind)
    if kind in _PER_WARP:
        lines += _leave_if("not is_first(mask)")
    if kind in _UNIFORM:  # all active lanes have the same transfer: the first counts it
        lines += ["counted = 1 << lane", "counts = is_first(mask)"]
        lines += ["number = popc(mask & (counted - 1))", "sharing = popc(mask)"]
    # Probes without an object come first: fewer live values, fewer spills.
    located = [each for each in called if need_object([each], layout)]
    plain = [each for each in called if each not in located]
    if _differ(kind, plain, layout):
        lines.append("together = equal_lanes(mask, bytes)")  # lanes may differ in bytes
    shared = [each for each in located if _shares(each, layout)]
    located = [each for each in located if each not in shared] + shared
    lines += _calls(kind, plain, layout, set(), led=led)
    before = {field for each in plain for field in each.probe.fields}
    way = "SHARED"
    if located:
        if KIND[kind].space != "global":
            lines.append("found, offset = 0, address")
        elif _takes_offset(located, layout):
            lines.append("found, offset = find_offset(user, address)")
        elif not _only(kind, located, layout):
            lines.append("found = find(user, address)")
        else:
            # Two ways with all of their instructions in a row: a patch takes as long as it jumps.
            found = ["bytes = again(bytes)", "found = low & 0x7FFFFFFF"]
            found += _calls(kind, located, layout, before, way="USUAL")
            lines += ["low = bucket_of(user, address)", "if low < 0:"]
            lines += [f"    {line}" for text in [*found, "return 0"] for line in text.split("\n")]
            lines.append("found = find_apart(user, address)")
            way = "OTHER"
        lines += ["bytes = again(bytes)"] if plain or way == "OTHER" else []
        if _differ(kind, located, layout):  # found again at less cost than kept
            lines.append("together = equal_lanes(mask, bytes)")
        lines += _calls(kind, located, layout, before, way=way)
    lines.append("return 0")
    text = "\n".join(f"    {line}" for line in lines)
    return f"def {name}({arguments}):\n{text}"


def _begin(kind: str, *, led: bool) -> list[str]:
    """Lines that find the launch's descriptor, let lanes leave that have nothing to do, and set
    `mask` to the others; `led`: all but the first leave. One test: a branch takes as long as an
    addition. A prefetch accesses nothing; a matrix has eight rows of 16 bytes."""
    user, mask = "user = launch_of(user)", "mask = activemask()"
    idle = ["user == 0"]
    if led:
        idle.append("some(before(mask) | flags & 8)")
        if kind == "matrix":
            mask += " & first_lanes(8 * count)"
            idle.append("some(mask) == 0")
        return [mask, user, *_leave_if(*idle)]
    if kind in _FLAGGED:
        idle.append("flags & 8 != 0")
    elif kind == "async_copy":
        idle += ["address == 0", "bytes == 0"]
    rows = _leave_if("lane_id() >= 8 * count") if kind == "matrix" else []
    return [user, *_leave_if(*idle), *rows, mask]


#: Fields for which all lanes of an access compare addresses.
_COMPARED = {"sectors", "ideal_sectors", "ways"}


def _only_leader(called: Sequence[Instance], layout: Layout) -> bool:
    """Whether only the first lane of a warp has something to do."""
    return not any(
        each.probe.per == "lane"
        or _COMPARED & {*each.probe.fields}
        or need_object([each], layout)
        or traces_whole(each, layout)
        for each in called
    )


#: Fields that a guard may test because they cost next to nothing.
_CHEAP = {"block", "warp", "sm", "address", "bytes"}
#: Fields of the whole access, which would be wrong once a guard has let some of its lanes leave.
_OF_LANES = {"leader", "lanes", "warp_bytes", "sectors", "ideal_sectors", "ways", "ideal_ways"}


def _guard(called: Sequence[Instance], layout: Layout) -> list[str]:
    """Lines that leave the patch before its lookups, if the only probe begins with
    `if TEST: return` and the test needs none. Parts of a test with `or` are tested in turn."""
    if len(called) != 1 or traces_whole(called[0], layout):
        return []
    (each,) = called
    prefix = prefix_of(each, layout)
    first = each.probe.definitions(each.options, prefix)[-1].body[0]
    if not isinstance(first, ast.If) or first.orelse or not isinstance(first.body[0], ast.Return):
        return []
    any_of = isinstance(first.test, ast.BoolOp) and isinstance(first.test.op, ast.Or)
    lines: list[str] = []
    for test in first.test.values if any_of else [first.test]:  # type: ignore[attr-defined]
        names = {node.id for node in ast.walk(test) if isinstance(node, ast.Name)}
        fields = names & {*each.probe.fields}
        if not fields <= _CHEAP or _OF_LANES & {*each.probe.fields}:
            return []
        lines += [_FIELDS[field] for field in sorted(fields) if field in _FIELDS]
        lines += _leave_if(ast.unparse(test))
    return lines


def _calls(
    kind: str,
    called: Sequence[Instance],
    layout: Layout,
    before: set[str],
    *,
    led: bool = False,
    way: str = "SHARED",
) -> list[str]:
    """Lines that compute `env` and the fields of probes, except those in `before`, and calls.

    `led`: other lanes than the first have left. `way`: one of WAYS.
    """
    uniform = kind in _UNIFORM
    per_warp = kind in _PER_WARP
    known = {**_FIELDS, **(_TRANSFER if uniform else _COPY if kind == "async_copy" else {})}
    if uniform:
        known |= {"mask": "mask = counted", "leader": "leader = 1", "lanes": "lanes = 1"}
    fields = {field for each in called for field in each.probe.fields}
    recorded = any(place.writes_records for place in _places(called, layout))
    together = "together" if _differ(kind, called, layout) else "-1"
    if recorded and kind in TIMED:
        fields.add("time")
    lines = [text for field, text in known.items() if field in fields - before]
    found, size = "0, SHARED", "0"
    if called and need_object(called, layout):
        found = f"found, {way}"
        size = "bytes" if kind == "async_copy" else "0"
    if uniform:
        common = f"user, {found}, counts, number, sharing, counted, {size}"
        once, alone = "counts", 1
    else:
        common = f"user, {found}, 1, 0, 0, {together}, {size}"
        once, alone = "is_first(mask)", int(per_warp)
    who = ["CALLERS", "EVERYONE"]
    if uniform or KIND[kind].space == "none":
        who = ["SINGLE", "SINGLE"]
    if recorded:
        address = "time" if kind in TIMED else "address"
        of = "counted" if uniform else "mask" if together == "-1" else together
        record = f"user, pc, {address}, bytes, head, rows, stride, {of}"
        lines.append(
            f"head = {KIND[kind].number} | (is_read | is_write << 1 | is_atomic << 2) << 8"
        )
        records = [f", ({record}, {each})" for each in who]
    else:
        records = ["", ""]
    for each in called:
        warp, all_lanes = each.probe.per == "warp", traces_whole(each, layout)
        tail = f"{records[1]}, {once}" if all_lanes else records[0]
        lines.append(f"env = ({common}, {int(warp or alone)}{tail})")
        given = ", ".join((*each.probe.fields, "env"))
        call = f"{prefix_of(each, layout)}{each.probe.name}({given})"
        if warp and not (all_lanes or led):
            condition = "" if uniform else _condition(each)
            if condition:
                # before the lane's number is read, which takes longer than most tests: ptxas would
                # exchange them if the mask were known
                lines.append(f"if {condition}:")
                once = "is_first(activemask())"
            guarded = [f"if {once} != 0:", f"    {call}"]
            lines += [f"    {line}" for line in guarded] if condition else guarded
        else:
            lines.append(call)
    return lines


def _condition(called: Instance) -> str:
    """The test of a probe that is nothing but `if TEST: ...`, if the test needs fields only; ""."""
    body = called.probe.definitions(called.options, "")[-1].body
    if len(body) != 1 or not isinstance(body[0], ast.If) or body[0].orelse:
        return ""
    names = {node.id for node in ast.walk(body[0].test) if isinstance(node, ast.Name)}
    return ast.unparse(body[0].test) if names <= {*called.probe.fields} else ""


def _differ(kind: str, called: Sequence[Instance], layout: Layout) -> bool:
    """Whether TOGETHER is needed: lanes may differ in bytes, which these probes count or record."""
    if kind != "async_copy":
        return False
    return any(
        place.writes_records
        or (each.probe.per == "lane" and "bytes" in each.probe.fields and place.needs_together)
        for each in called
        for place in _places([each], layout)
    )


def _only(kind: str, called: Sequence[Instance], layout: Layout) -> bool:
    """Whether one map alone uses the object, and lanes that find it in another way than others can
    call the probes apart from them."""
    places = _places(called, layout)
    alone = sum(place.finds_object for place in places) == 1
    fields = {field for each in called for field in each.probe.fields}
    together = fields & {"known", "warp_bytes", *_COMPARED} or any(
        place.writes_records for place in places
    )
    apart = not (together or kind in _UNIFORM or _differ(kind, called, layout))
    return alone and apart and not any(map(_reads_object, called))


def _reads_object(called: Instance) -> bool:
    """Whether a probe uses the object other than as a key of maps."""
    nodes = list(ast.walk(ast.parse(called.probe.source(called.options, ""))))
    uses = sum(isinstance(node, ast.Name) and node.id == "object" for node in nodes)
    given = sum(
        isinstance(node, ast.Call) and [ast.unparse(each) for each in node.args[:2]] == _KEYED
        for node in nodes
    )
    return uses > given


#: First arguments of an operation whose key is the object.
_KEYED = ["env", "object"]


def _takes_offset(called: Sequence[Instance], layout: Layout) -> bool:
    """Whether probes, or their maps, use the offset in the object."""
    maps = any(place.needs_offset for place in _places(called, layout))
    return maps or any("offset" in each.probe.fields for each in called)


def _shares(called: Instance, layout: Layout) -> bool:
    """Whether lanes share the work of a map of this probe."""
    return any(place.shares_transfers for place in _places([called], layout))


def _places(called: Sequence[Instance], layout: Layout) -> list[Place[Any]]:
    return [layout.place_of(each.probe.tool, op.map) for each in called for op in each.probe.ops]


#: Kinds with flags.
_FLAGGED = ("global", "shared", "local", "remote_shared", "matrix")


def _leave_if(*tests: str) -> list[str]:
    """Lines with which lanes leave if any test is true."""
    return [f"if {' | '.join(f'({test})' for test in tests)}:", "    return 0"]


def _arguments(kind: str, signature: Signature) -> list[str]:
    """Lines that set address, bytes, is_read, is_write, is_atomic, kind, rows and stride."""
    number = f"kind = {KIND[kind].number}"
    plain = ["rows = 1", "stride = 0", number]
    names = {name for name, _ in signature.arguments}
    if kind in _FLAGGED:
        return [
            "bytes = size",
            "is_atomic = int((flags & 3) == 3 or (flags & 0x104) != 0)",
            "is_read = (flags & 1) | is_atomic",
            "is_write = (lshr(flags, 1) & 1) | is_atomic",
            *plain,
        ]
    reads = kind in ("async_copy", "bulk_load", "tensor_load", "bulk_shared")
    flags = [f"is_read = {int(reads)}", f"is_write = {int(not reads)}", "is_atomic = 0"]
    if kind == "bulk_reduction":
        flags = ["is_read = 1", "is_write = 1", "is_atomic = 1"]
    if kind == "async_copy":
        size = "bytes = (size - filled) & 31" if "filled" in names else "bytes = size"
        return [size, *flags, *plain]
    if kind == "async_store":
        return ["bytes = size", *flags, *plain]
    if kind in ("bulk_load", "bulk_store", "bulk_reduction", "bulk_shared"):
        return ["bytes = (blocks & 0xFFFF) * 16", *flags, *plain]
    if kind in ("tensor_load", "tensor_store"):
        return [*_tensor(), *_leave_if("bytes == 0"), *flags, number]
    return ["bytes = 0", "is_read = 0", "is_write = 0", "is_atomic = 0", *plain]


def _value(kind: str) -> list[str]:
    """Lines that set the value of an access: what is stored, or what memory has before the access,
    which a load or atomic will find."""
    stored = ["from_ = address"]
    if kind == "global":
        stored += ["if is_write & ~is_atomic != 0:", "    from_ = data"]
    return [
        *stored,
        "value, value_high = value_at(from_, bytes)",
        f"has_value = int(bytes <= {MAX_VALUE} and from_ != 0)",
    ]


def _tensor() -> list[str]:
    return [
        "box = tensor_box(map, dim, c0, c1, c2, c3, c4)",
        "address = box[0]",
        "bytes = box[1]",
        "rows = box[2]",
        "stride = box[3]",
    ]
