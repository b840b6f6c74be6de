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
#: Items of `env`, by which the calling lane passes the access to operations.
ENV = (
    "USER",  # the launch's descriptor
    "OBJECT",  # its index in the table, from 1; 0: none
    "ADDRESS",  # if LATE
    "LATE",  # whether the operation looks up the object: no other uses it
    "COUNTS",  # whether this lane counts: only the first one of a transfer does
    "NUMBER",  # of this lane among those of one transfer
    "SHARING",  # number of lanes of that transfer; 0: each lane has its own access
    "TOGETHER",  # lanes whose accesses have equal sizes
    "SIZE",  # bytes of the access if lanes may differ in them and OBJECT or LATE is set; 0
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
    user, lines, mask = "user = launch_of(user)", _arguments(kind, signature), "mask = activemask()"
    rows = _leave(_NO_ROW) if kind == "matrix" else []
    led = kind in _FLAGGED and _only_leader(called, layout)
    if led:  # one test for all lanes that do nothing: a branch takes as long as an addition
        idle = f"(user == 0) | ({_IS_PREFETCH}) | (is_first(mask) == 0)"
        begin = [*rows, user, mask, *_leave(idle)]
    else:
        begin = [user, *_leave("user == 0")]
        prefetch = _leave(_IS_PREFETCH) if kind in _FLAGGED else []
        lines = [*prefetch, *rows, *lines, mask]
    if fields & {"lane", "ways"} or kind in _UNIFORM:
        lines.append("lane = lane_id()")
    guard = _guard(called, layout)
    # the descriptor, which would be saved while the guard runs, is found after it
    lines = [*lines, *guard, *begin] if guard else [*begin, *lines]
    if fields & {"value", "value_high", "has_value"}:
        lines += _value(kind)
    if kind in _PER_WARP:
        lines += _leave("not is_first(mask)")
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
    lines += _calls(kind, plain, layout, set(), late=False, led=led)
    if located:
        late = _late(kind, located, layout)
        given = KIND[kind].space == "global"
        if not given:
            lines.append("found, offset = 0, address")
        elif _takes_offset(located, layout):
            lines.append("found, offset = find_offset(user, address)")
        elif not late:
            lines.append("found = find(user, address)")
        lines += ["bytes = again(bytes)"] if plain else []
        if _differ(kind, located, layout):  # found again at less cost than kept
            lines.append("together = equal_lanes(mask, bytes)")
        before = {field for each in plain for field in each.probe.fields}
        lines += _calls(kind, located, layout, before, late=late)
    lines.append("return 0")
    text = "\n".join(f"    {line}" for line in lines)
    return f"def {name}({arguments}):\n{text}"


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
    first = each.probe.definitions(each.options, prefix, wrapping=True)[-1].body[0]
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
        lines += _leave(ast.unparse(test))
    return [*lines, "mask = activemask()"]


def _calls(
    kind: str,
    called: Sequence[Instance],
    layout: Layout,
    before: set[str],
    *,
    late: bool,
    led: bool = False,
) -> list[str]:
    """Lines that compute `env` and the fields of probes, except those in `before`, and calls.

    `late`: the only map that uses the object looks it up. `led`: other lanes than the first have
    left.
    """
    uniform = kind in _UNIFORM
    per_warp = kind in _PER_WARP
    known = {**_FIELDS, **(_TRANSFER if uniform else _COPY if kind == "async_copy" else {})}
    if uniform:
        known |= {"mask": "mask = counted", "leader": "leader = 1", "lanes": "lanes = 1"}
    if late:
        known["object"] = "object = 0"
    fields = {field for each in called for field in each.probe.fields}
    recorded = any(place.writes_records for place in _places(called, layout))
    together = "together" if _differ(kind, called, layout) else "-1"
    if recorded and kind in TIMED:
        fields.add("time")
    lines = [text for field, text in known.items() if field in fields - before]
    found, size = "0, 0, 0", "0"
    if called and need_object(called, layout):
        found = "0, address, 1" if late else "found, 0, 0"
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
        guarded = warp and not (all_lanes or led)
        lines += [f"if {once} != 0:", f"    {call}"] if guarded else [call]
    return lines


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


def _late(kind: str, called: Sequence[Instance], layout: Layout) -> bool:
    """Whether one map alone uses the object and looks it up: once for lanes with close addresses,
    and only for lanes that add."""
    if KIND[kind].space != "global" or kind in _UNIFORM or _takes_offset(called, layout):
        return False
    alone = sum(place.finds_object for place in _places(called, layout)) == 1
    known = any("known" in each.probe.fields for each in called)
    return alone and not known and not any(map(_reads_object, called))


def _reads_object(called: Instance) -> bool:
    """Whether a probe uses the object other than as a key of maps."""
    nodes = list(ast.walk(ast.parse(called.probe.source(called.options, "", wrapping=True))))
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
#: A prefetch accesses nothing.
_IS_PREFETCH = "flags & 8 != 0"
#: A matrix has eight rows of 16 bytes: other lanes have none.
_NO_ROW = "lane_id() >= 8 * count"


def _leave(test: str) -> list[str]:
    return [f"if {test}:", "    return 0"]


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
        return [size, *_leave("address == 0 or bytes == 0"), *flags, *plain]
    if kind == "async_store":
        return ["bytes = size", *flags, *plain]
    if kind in ("bulk_load", "bulk_store", "bulk_reduction", "bulk_shared"):
        return ["bytes = (blocks & 0xFFFF) * 16", *flags, *plain]
    if kind in ("tensor_load", "tensor_store"):
        return [*_tensor(), *_leave("bytes == 0"), *flags, number]
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
