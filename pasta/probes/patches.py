"""From probes to patches: the text of one function per kind of access, for the GPU.

All lanes that access memory together call the patch together. It looks their addresses up, each
lane for itself, and calls the probes of all tools, each lane for itself. A map's operation adds
up over the lanes that called it with the same key, and the lowest of them makes one atomic
addition to the words of its multiprocessor's stripe: nothing else that is shared is written.

The text is compiled by Numba (nvptx.py). Values are 64-bit patterns in int64, as in the language.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pasta.errors import ToolError
from pasta.probes.kinds import KIND
from pasta.probes.language import ProbeFunction
from pasta.probes.layout import OFFSETS, WORD, Hash, Layout, Place
from pasta.probes.maps import MapSpec
from pasta.probes.records import MAP_SHIFT
from pasta.probes.signatures import Signature, signatures

#: Kinds whose instruction is one of the whole warp: every active lane gives the same arguments.
_UNIFORM = frozenset(
    ("bulk_load", "bulk_store", "bulk_reduction", "bulk_shared", "tensor_load", "tensor_store")
)
#: Kinds that are of the warp, not of its lanes: the first active one calls the probes.
_OF_WARP = frozenset(("block_enter", "block_exit", "barrier", "call"))
#: Who writes an access record: the lanes that call, all lanes of the patch, one for all.
_WHO = ("CALLERS", "EVERYONE", "SINGLE")
#: What operations get of the access as `env`, in the lane that calls them.
_ENV = (
    "USER",  # the launch's descriptor
    "OBJECT",  # its index in the table, from 1; 0: none
    "ADDRESS",  # where the object was not looked up: its only map does
    "LATE",  # whether that is so
    "COUNTS",  # whether this lane counts: of a transfer of the whole warp, the first does
    "NUMBER",  # of this lane among those that give the same transfer
    "SHARING",  # how many give it; 0: each lane has an access of its own
    "TOGETHER",  # lanes whose accesses are of the same size
    "ALONE",  # whether no other lane of the access calls operations
    "RECORD",  # what an access record is made of, where one is written
    "LEADS",  # whether this lane does for all what is done once per warp
)
_NO_ROOM = 1  # behind a map's `unknown` word: of objects that have no bins or granules


@dataclass(frozen=True)
class PatchText:
    """A patch: name of its function, what the vendor calls it for and with."""

    name: str
    kind: str
    signature: Signature


@dataclass(frozen=True)
class Instance:
    """A probe of one tool instance, with the values of the tool's options."""

    probe: ProbeFunction
    options: Mapping[str, Any]
    prefix: str


def write(
    layout: Layout, instances: Sequence[Instance], version: str
) -> tuple[str, list[PatchText]]:
    """Text of all patches for a version of the Sanitizer's library, and what they are.

    Raises ApiError for a version that is not known, ToolError for what the GPU cannot do.
    """
    text = [_header(), _PRELUDE]
    if layout.bin_words:
        text.append(f"bin_at = bin_address({layout.bin_words})")
    if layout.object_words:
        text.append(f"at_row = row_address({layout.object_words})")
    for instance in instances:
        _check_recorded(instance, layout)
    prefixes = {instance.probe.tool: instance.prefix for instance in instances}
    for (tool, spec), place in zip(layout.maps, layout.places, strict=True):
        if tool in prefixes:
            text += _operations(prefixes[tool], spec, place, layout)
    for instance in instances:
        if _traces_whole(instance, layout):
            text += _by_leader(instance, layout)
        prefix = _prefix(instance, layout)
        text.append(instance.probe.source(instance.options, prefix, wrapping=True))
    patches = []
    for kind in dict.fromkeys(kind for each in instances for kind in each.probe.kinds):
        called = [each for each in instances if kind in each.probe.kinds]
        for number, signature in enumerate(signatures(kind, version)):
            name = f"pasta_{kind}" + (f"_{number}" if number else "")
            text.append(_patch(name, kind, signature, called, layout))
            patches.append(PatchText(name, kind, signature))
    return "\n\n".join(text) + "\n", patches


def _check_recorded(instance: Instance, layout: Layout) -> None:
    """Raises ToolError where a map whose accesses are written down adds other than 1."""
    tool = instance.probe.tool
    recorded = {spec.name for owner, spec in layout.maps if owner == tool and spec.recorded}
    if not recorded:
        return
    for node in ast.walk(ast.parse(instance.probe.source(instance.options, "", wrapping=True))):
        name = ast.unparse(node.func).partition("__")[0] if isinstance(node, ast.Call) else ""
        if name in recorded and ast.unparse(node.args[-1]) != "1":  # type: ignore[attr-defined]
            raise ToolError(
                f"tool {tool}: {name} counts by launch, and adds another amount than 1",
                remedy="on a GPU such a histogram counts accesses: leave the amount out",
            )


def _traces_whole(instance: Instance, layout: Layout) -> bool:
    """Whether a probe that runs once per warp writes records: then all lanes run it."""
    places = _places([instance], layout)
    return instance.probe.per == "warp" and any(each.where == "trace" for each in places)


def _prefix(instance: Instance, layout: Layout) -> str:
    if not _traces_whole(instance, layout):
        return instance.prefix
    return f"{instance.prefix}{instance.probe.name}_"


def _by_leader(instance: Instance, layout: Layout) -> list[str]:
    """Operations for a probe that all lanes run: but for records, the first lane does them."""
    text = []
    for op in instance.probe.ops:
        call = f"{instance.prefix}{op.name}(env, *given)"
        if layout.place_of(instance.probe.tool, op.map).where != "trace":
            call = f"if env[LEADS] != 0:\n        {call}"
        text.append(f"def {_prefix(instance, layout)}{op.name}(env, *given):\n    {call}")
    return text


def _header() -> str:
    from pasta._native import ffi, lib

    lines = ["from pasta.probes.intrinsics import *", ""]
    for struct, letter in OFFSETS:
        for name, field in ffi.typeof(struct).fields:
            lines.append(f"{letter}_{name.upper()} = {field.offset}")
    lines.append(f"RANGE = {ffi.sizeof('pasta_object_range')}")
    lines.append(f"UNIT_SHIFT = {lib.PASTA_PROBE_BASE_SHIFT}")
    for names in (_WHO, _ENV):
        lines += [f"{name} = {number}" for number, name in enumerate(names)]
    return "\n".join(lines)


_PRELUDE = '''
def stripe_of(user):
    """The launch's words for this multiprocessor."""
    slot, more = load_pair(user + L_SLOT)
    return slot + (smid() & lshr(more, 32)) * (more & 0xFFFFFFFF)


def hash_row(table, key, rows):
    """Row of a key in a table of the run: found, taken, or the last one, of all others."""
    mask = rows - 1
    row = lshr(times(key, -7046029254386353131), 40) & mask
    for _ in range(rows):
        at = table + 8 * row
        there = load_u64(at)
        if there == 0:
            there = atomic_cas_u64(at, 0, key + 1)
            if there == 0:
                there = key + 1
        if there == key + 1:
            return row
        row = (row + 1) & mask
    return rows


def find_group(user, address, together):
    """The object of each lane's address and the lanes that add together with it; where one object
    holds all near a lane's address, only the lowest of those lanes knows it."""
    active = activemask()  # one for both: what one lane knows the others must hear of
    group = match_any_sync_64(active, lshr(address, UNIT_SHIFT)) & together
    found = 0
    if is_first(group):
        found = find_whole(user, address)
    if ballot_sync(active, found) & group == 0:
        found = find(user, address)
        group = match_any_sync(activemask(), found) & together
    return found, group


def group_sum(group, amount):
    """Sum over the lanes of `group`, which all call this with their own amount."""
    total = 0
    bit = 0
    while any_sync(group, lshr(amount, bit)):
        total += popc(ballot_sync(group, lshr(amount, bit) & 1)) << bit
        bit += 1
        if bit == 64:
            break
    return total


def group_max(group, value):
    """The largest value below 64 over the lanes of `group`."""
    most = 0
    for bit in (32, 16, 8, 4, 2, 1):
        if any_sync(group, value >= most + bit):
            most += bit
    return most


def touch_word(user, object, word, epoch, bits, granule):
    """Marks granules in a word of a plane; bytes of those that were not marked in this epoch."""
    while True:
        old = load_u64_volatile(word)
        before = 0
        if lshr(old, 32) == epoch:
            before = old & 0xFFFFFFFF
        if atomic_cas_u64(word, old, (epoch << 32) | before | bits) == old:
            break
    return bytes_of(user, object, bits & ~before, granule)


def bank_ways(mask, lane, address, bytes):
    """Wavefronts for an access to shared memory: for each group of lanes that is served together,
    the most distinct words in one bank."""
    shift = 2
    width = 32
    if bytes == 8:
        shift = 3
        width = 16
    if bytes == 16:
        shift = 4
        width = 8
    served = ((1 << width) - 1) << (lane & ~(width - 1))
    group = mask & served
    unit = lshr(address, shift)
    same = match_any_sync(mask, unit & 0xFFFFFFFF) & group
    firsts = ballot_sync(mask, is_first(same))
    bank = match_any_sync(mask, unit & (width - 1)) & group & firsts
    most = group_max(group, popc(bank))
    mine = 0
    if is_first(group):
        mine = most
    return group_sum(mask, mine)


def lane_groups(mask, bytes):
    """How many groups of lanes are served one after another."""
    if bytes == 8:
        return ((mask & 0xFFFF) != 0) + ((mask >> 16) != 0)
    if bytes == 16:
        count = 0
        for i in range(4):
            count += ((mask >> (8 * i)) & 0xFF) != 0
        return count
    return 1
'''


# ---- operations of maps ----------------------------------------------------------------------


def _operations(prefix: str, spec: MapSpec, place: Place, layout: Layout) -> list[str]:
    """Both variants of a map's method: amounts that are equal in all lanes, and any."""
    parameters = [each.name for each in spec.method.parameters]
    amounts = [each.name for each in spec.method.parameters if each.amount]
    body = _BODIES[place.where](spec, place, layout)
    text = []
    if place.where == "plane":
        text.append(f"touch_{place.index} = touch_plane({place.index}, {'launch' in spec.by})")
    for suffix in ("", "_uniform") if amounts else ("",):
        sums = [f"sum_{name} = {name}" + (" * popc(group)" if suffix else "") for name in amounts]
        if not suffix and sums:
            sums.append("if env[ALONE] == 0:")
            sums += [f"    sum_{name} = group_sum(group, {name})" for name in amounts]
        lines = []
        if place.where != "plane":  # a transfer of the warp is counted once
            lines += ["if env[COUNTS] == 0:", "    return"]
        for line in body:
            indent = line[: len(line) - len(line.lstrip())]
            if line.strip() == "SUMS":
                lines += [indent + each for each in sums]
            elif line.strip() == "ADD":
                for index, name in enumerate(amounts):
                    lines.append(f"{indent}if sum_{name} != 0:")
                    lines.append(f"{indent}    atomic_add_u64(at + {WORD * index}, sum_{name})")
            else:
                lines.append(line)
        name = f"{prefix}{spec.name}__{spec.method.name}{suffix}"
        arguments = ", ".join(("env", *parameters))
        text.append(f"def {name}({arguments}):\n" + "\n".join(f"    {line}" for line in lines))
    return text


def _index(spec: MapSpec, key: str) -> str:
    return f"max(0, min({key}, {spec.limits[key] - 1}))"


def _grouped(group: str) -> list[str]:
    """`group`: the lanes that add to the same words as this one, of accesses of one size."""
    return ["group = 1", "if env[ALONE] == 0:", f"    group = {group} & env[TOGETHER]"]


_ADDS = "if env[ALONE] != 0 or is_first(group):"


def _same(key: str, bits: str = "") -> list[str]:
    """The same, by the value of `key`."""
    return _grouped(f"match_any_sync{bits}(activemask(), {key})")


def _by_index(spec: MapSpec, index: str | None) -> list[str]:
    """The same, by an index into the words of the map: `key`."""
    if index is None:
        return _grouped("activemask()")
    return [f"key = {_index(spec, index)}", *_same("key")]


def _by_key(spec: MapSpec, index: str | None, at: str) -> list[str]:
    """Adds to the words at `at`, or behind them to those of an index."""
    if index is not None:
        at += f" + {WORD * len(spec.fields)} * key"
    return [*_by_index(spec, index), "SUMS", _ADDS, f"    at = {at}", "    ADD"]


def _slot(spec: MapSpec, place: Place, layout: Layout) -> list[str]:
    key = spec.keys[0] if spec.keys else None
    return _by_key(spec, key, f"stripe_of(env[USER]) + {WORD * place.offset}")


def _plain(spec: MapSpec, place: Place, layout: Layout) -> list[str]:
    at = f"load_u64(env[USER] + L_PLAIN) + {WORD * place.offset}"
    return _by_key(spec, spec.keys[0], at)


def _at_row(layout: Layout, offset: int) -> str:
    """Address of a word of the access's object, in the launch's slot."""
    return f"at_row(env[USER], found) + {WORD * (layout.slot_words + offset)}"


def _object(spec: MapSpec, place: Place, layout: Layout) -> list[str]:
    return [
        "if env[LATE] != 0:",
        "    found, group = find_group(env[USER], env[ADDRESS], env[TOGETHER])",
        "else:",
        "    found = env[OBJECT]",
        *(f"    {line}" for line in _same("found")),
        "SUMS",
        _ADDS,
        f"    at = {_at_row(layout, place.offset)}",
        "    ADD",
    ]


def _hash_address(table: Hash, place: Place, row: str) -> str:
    stripe = (table.rows + 1) * table.words * WORD
    return (
        f"table + {table.rows * WORD + place.offset * WORD} + {table.words * WORD} * {row} "
        f"+ {stripe} * (smid() & {table.stripes - 1})"
    )


def _hash(spec: MapSpec, place: Place, layout: Layout) -> list[str]:
    table = layout.hashes[place.index]
    at = _hash_address(table, place, "row")
    if spec.type == "top_k":
        key, group = "key", _same("key", "_64")
    else:
        index = next((key for key in spec.keys if key != "pc"), None)
        key, group = "pc", _by_index(spec, index)
        if index is not None:
            at += f" + {WORD * len(spec.fields)} * key"
    return [
        f"table = load_u64(env[USER] + L_HASH + {WORD * place.index})",
        "if table == 0:",
        "    return",
        *group,
        "SUMS",
        _ADDS,
        f"    row = hash_row(table, {key}, {table.rows})",
        f"    at = {at}",
        "    ADD",
    ]


def _bins(spec: MapSpec, place: Place, layout: Layout) -> list[str]:
    unknown = WORD * place.unknown
    return [
        "bin = bin_of(env[USER], env[OBJECT], offset)",
        "if bin == 0xFFFFFFFF:",
        *(f"    {line}" for line in _without(unknown)),
        "    return",
        *_same("bin"),
        "SUMS",
        _ADDS,
        f"    at = bin_at(env[USER], bin) + {WORD * place.offset}",
        "    ADD",
    ]


def _without(unknown: int) -> list[str]:
    """Adds to the words of accesses whose object has no room, or that are to none."""
    return [
        *_same("(env[OBJECT] != 0)"),
        "SUMS",
        _ADDS,
        f"    at = stripe_of(env[USER]) + {unknown}",
        "    if env[OBJECT] != 0:",
        f"        at += {WORD * _NO_ROOM}",
        "    ADD",
    ]


def _plane(spec: MapSpec, place: Place, layout: Layout) -> list[str]:
    epoch = "load_u64(env[USER] + L_EPOCH) & 0xFFFFFFFF" if "launch" in spec.by else "1"
    at = f"stripe_of(env[USER]) + {WORD * place.offset}"
    if place.by_object:
        at = _at_row(layout, place.offset)
    unknown = WORD * place.unknown
    return [
        # at most 16 bytes, in one granule: objects begin at a multiple of 16
        "if env[SHARING] == 0:",
        f"    fresh, granule = touch_{place.index}(env[USER], env[OBJECT], offset)",
        "    if granule == 0xFFFFFFFF:",
        "        group = match_any_sync(activemask(), env[OBJECT] != 0)",
        "        if is_lowest(group):",
        f"            at = stripe_of(env[USER]) + {unknown}",
        "            if env[OBJECT] != 0:",
        f"                at += {WORD * _NO_ROOM}",
        "            atomic_add_u64(at, popc(group))",
        "    elif fresh != 0:",
        "        found = env[OBJECT]",
        f"        at = {at}",
        "        atomic_add_u64(at, bytes_of(env[USER], env[OBJECT], fresh, granule))",
        "    return",
        f"plane = load_u64(env[USER] + L_PLANES + {WORD * place.index})",
        "word = 0xFFFFFFFF",
        "range = load_u64(env[USER] + L_RANGES) + RANGE * (env[OBJECT] - 1)",
        "if env[OBJECT] != 0 and plane != 0:",
        "    word = load_u32(range + R_PLANE)",
        "if word == 0xFFFFFFFF:",
        "    if env[COUNTS] != 0:",
        f"        at = stripe_of(env[USER]) + {unknown}",
        "        if env[OBJECT] != 0:",
        f"            at += {WORD * _NO_ROOM}",
        "        atomic_add_u64(at, 1)",
        "    return",
        f"epoch = {epoch}",
        "shift = load_u8(range + R_PLANE_SHIFT)",
        "size = load_u64(range + R_SIZE)",
        "width = bytes",
        "if rows > 1:",
        "    width = bytes // rows",
        "total = 0",
        # lanes that give the same transfer share it: by rows, or by the words of its only row
        "row = 0",
        "skip = env[NUMBER]",
        "step = env[SHARING]",
        "if rows > 1:",
        "    row = env[NUMBER]",
        "    skip = 0",
        "    step = 1",
        "while row < rows:",
        "    begin = offset + row * stride",
        "    first = lshr(begin, shift)",
        "    last = lshr(min(begin + width, size) - 1, shift)",
        "    index = (first >> 5) + skip",
        "    while index <= last >> 5:",
        "        low = max(first, index << 5)",
        "        high = min(last, (index << 5) + 31)",
        "        bits = ((1 << (high - low + 1)) - 1) << (low & 31)",
        "        at = plane + 8 * (word + index)",
        "        there = load_u64_volatile(at)",
        "        if lshr(there, 32) != epoch or (bits & ~there) != 0:",
        "            total += touch_word(env[USER], env[OBJECT], at, epoch, bits, low)",
        "        index += step",
        "    row += env[SHARING]",
        "if total != 0:",
        "    found = env[OBJECT]",
        f"    atomic_add_u64({at}, total)",
    ]


def _trace(spec: MapSpec, place: Place, layout: Layout) -> list[str]:
    return [
        "user, pc, address, bytes, head, rows, stride, mask, who = env[RECORD]",
        f"head |= {place.index << (8 + MAP_SHIFT)}",
        "if who == SINGLE:",
        "    trace_single(user, pc, address, mask, bytes, head, rows, stride)",
        "else:",
        "    if who == CALLERS:",
        "        mask &= activemask()",
        "    trace_lanes(user, pc, address, mask, bytes, head)",
    ]


_BODIES: dict[str, Callable[[MapSpec, Place, Layout], list[str]]] = {
    "slot": _slot,
    "plain": _plain,
    "object": _object,
    "hash": _hash,
    "bins": _bins,
    "plane": _plane,
    "trace": _trace,
}

# ---- one patch -------------------------------------------------------------------------------

#: How a field is computed from what the patch has: text, in the order in which it is written.
_FIELDS: dict[str, str] = {
    "known": "known = int(found != 0)",
    "object": "object = found - 1",  # to compare with -1: maps go by `env`
    "leader": "leader = is_first(mask)",
    "lanes": "lanes = popc(mask)",
    "sectors": "same = match_any_sync_64(mask, lshr(address, 5))\n"
    "    sectors = popc(ballot_sync(mask, is_first(same)))",
    "ideal_sectors": "same = match_any_sync_64(mask, address)\n"
    "    ideal_sectors = (popc(ballot_sync(mask, is_first(same))) * bytes + 31) >> 5",
    "ways": "ways = bank_ways(mask, lane, address, bytes)",
    "ideal_ways": "ideal_ways = lane_groups(mask, bytes)",
    "block": "block = ctaid_x() + nctaid_x() * (ctaid_y() + nctaid_y() * ctaid_z())",
    "warp": "warp = (tid_x() + ntid_x() * (tid_y() + ntid_y() * tid_z())) >> 5",
    "sm": "sm = smid() & 255",
}
#: Of a transfer of one lane, which may be long.
_TRANSFER = {
    "sectors": "sectors = ((address & 31) + bytes + 31) >> 5",
    "ideal_sectors": "ideal_sectors = (bytes + 31) >> 5",
    "ways": "ways = (bytes + 127) >> 7",
    "ideal_ways": "ideal_ways = (bytes + 127) >> 7",
}


#: Of a copy, whose lanes may differ in their bytes.
_COPY = {
    "ideal_sectors": "same = match_any_sync_64(mask, address)\n"
    "    ideal_sectors = (group_sum(mask, bytes * is_first(same)) + 31) >> 5",
}


def looked_up(called: Sequence[Instance], layout: Layout) -> bool:
    """Whether these probes need to know in which object an address lies."""
    fields = {field for each in called for field in each.probe.fields}
    return bool(fields & {"object", "offset", "known"}) or any(
        place.where in ("object", "bins", "plane") for place in _places(called, layout)
    )


def _patch(
    name: str,
    kind: str,
    signature: Signature,
    called: Sequence[Instance],
    layout: Layout,
) -> str:
    arguments = ", ".join(("user", "pc", *(argument for argument, _ in signature.arguments)))
    fields = {field for each in called for field in each.probe.fields}
    if "launch" in fields:
        raise ToolError("access.launch is not there on the GPU", remedy='count by="launch" instead')
    lines = ["if user == 0:", "    return 0", *_arguments(kind, signature), "mask = activemask()"]
    if fields & {"lane", "ways"} or kind in _UNIFORM:
        lines.append("lane = lane_id()")
    if kind in _OF_WARP:
        lines += ["if not is_first(mask):", "    return 0"]
    if kind in _UNIFORM:  # every active lane gives the same transfer: the first one counts it
        lines += ["counted = 1 << lane", "counts = is_first(mask)"]
        lines += ["number = popc(mask & (counted - 1))", "sharing = popc(mask)"]
    elif kind == "async_copy":  # these may differ in what they fill
        lines.append("together = match_any_sync(mask, bytes)")
    # What an object is not asked for comes first: the fewer values live on, the fewer are spilled.
    located = [each for each in called if looked_up([each], layout)]
    plain = [each for each in called if each not in located]
    planes = [each for each in located if _writes((each,), layout, "plane")]
    located = [each for each in located if each not in planes] + planes
    lines += _calls(kind, plain, layout, set(), late=False)
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
        before = {field for each in plain for field in each.probe.fields}
        lines += _calls(kind, located, layout, before, late=late)
    lines.append("return 0")
    text = "\n".join(f"    {line}" for line in lines)
    return f"def {name}({arguments}):\n{text}"


def _calls(
    kind: str, called: Sequence[Instance], layout: Layout, before: set[str], *, late: bool
) -> list[str]:
    """Calls of probes, the fields they take, but those that `before` has, and `env`.

    `late`: their map looks the object up.
    """
    uniform = kind in _UNIFORM
    of_warp = kind in _OF_WARP
    known = {**_FIELDS, **(_TRANSFER if uniform else _COPY if kind == "async_copy" else {})}
    if uniform:
        known |= {"mask": "mask = counted", "leader": "leader = 1", "lanes": "lanes = 1"}
    if late:
        known["object"] = "object = 0"
    fields = {field for each in called for field in each.probe.fields}
    lines = [text for field, text in known.items() if field in fields - before]
    found = "0, 0, 0"
    if late:
        found = "0, address, 1"
    elif called and looked_up(called, layout):
        found = "found, 0, 0"
    if uniform:
        common = f"user, {found}, counts, number, sharing, counted"
        once, alone = "counts", 1
    else:
        common = f"user, {found}, 1, 0, 0, {'together' if kind == 'async_copy' else -1}"
        once, alone = "is_first(mask)", int(of_warp)
    who = ["CALLERS", "EVERYONE"]
    if uniform or KIND[kind].space == "none":
        who = ["SINGLE", "SINGLE"]
    if _writes(called, layout, "trace"):
        address = "address" if KIND[kind].space != "none" or kind == "call" else "0"
        of = "counted" if uniform else "together" if kind == "async_copy" else "mask"
        record = f"user, pc, {address}, bytes, head, rows, stride, {of}"
        lines.append(
            f"head = {KIND[kind].number} | (is_read | is_write << 1 | is_atomic << 2) << 8"
        )
        records = [f", ({record}, {each})" for each in who]
    else:
        records = ["", ""]
    for each in called:
        warp, all_lanes = each.probe.per == "warp", _traces_whole(each, layout)
        tail = f"{records[1]}, {once}" if all_lanes else records[0]
        lines.append(f"env = ({common}, {int(warp or alone)}{tail})")
        given = ", ".join((*each.probe.fields, "env"))
        call = f"{_prefix(each, layout)}{each.probe.name}({given})"
        lines += [f"if {once} != 0:", f"    {call}"] if warp and not all_lanes else [call]
    return lines


def _late(kind: str, called: Sequence[Instance], layout: Layout) -> bool:
    """Whether the object is asked for by one map alone, which then looks it up: lanes that are
    near each other together, and only for those that add."""
    if KIND[kind].space != "global" or kind in _UNIFORM or _takes_offset(called, layout):
        return False
    alone = [place.where for place in _places(called, layout)].count("object") == 1
    known = any("known" in each.probe.fields for each in called)
    return alone and not known and not any(map(_reads_object, called))


def _reads_object(called: Instance) -> bool:
    """Whether a probe does more with the object than to give it to maps."""
    nodes = list(ast.walk(ast.parse(called.probe.source(called.options, "", wrapping=True))))
    uses = sum(isinstance(node, ast.Name) and node.id == "object" for node in nodes)
    given = sum(
        isinstance(node, ast.Call) and [ast.unparse(each) for each in node.args[:2]] == _KEYED
        for node in nodes
    )
    return uses > given


#: How the call of an operation begins that has the object for its key.
_KEYED = ["env", "object"]


def _takes_offset(called: Sequence[Instance], layout: Layout) -> bool:
    """Whether probes take it, or one of their maps goes by it."""
    maps = any(_writes(called, layout, where) for where in ("bins", "plane"))
    return maps or any("offset" in each.probe.fields for each in called)


def _writes(called: Sequence[Instance], layout: Layout, where: str) -> bool:
    """Whether a map of these probes is at such a place."""
    return any(place.where == where for place in _places(called, layout))


def _places(called: Sequence[Instance], layout: Layout) -> list[Place]:
    return [layout.place_of(each.probe.tool, op.map) for each in called for op in each.probe.ops]


def _arguments(kind: str, signature: Signature) -> list[str]:
    """What the fields are made of: address, bytes, is_read, is_write, is_atomic, kind, rows."""
    number = f"kind = {KIND[kind].number}"
    plain = ["rows = 1", "stride = 0", number]
    names = {name for name, _ in signature.arguments}
    if kind in ("global", "shared", "local", "remote_shared", "matrix"):
        lines = [
            "if flags & 8 != 0:",  # a prefetch accesses nothing
            "    return 0",
            "bytes = size",
            "is_atomic = int((flags & 3) == 3 or (flags & 0x104) != 0)",
            "is_read = (flags & 1) | is_atomic",
            "is_write = (lshr(flags, 1) & 1) | is_atomic",
        ]
        if kind == "matrix":  # eight rows of 16 bytes for each matrix: the other lanes give none
            lines += ["if lane_id() >= 8 * count:", "    return 0"]
        return [*lines, *plain]
    reads = kind in ("async_copy", "bulk_load", "tensor_load", "bulk_shared")
    flags = [f"is_read = {int(reads)}", f"is_write = {int(not reads)}", "is_atomic = 0"]
    if kind == "bulk_reduction":
        flags = ["is_read = 1", "is_write = 1", "is_atomic = 1"]
    if kind == "async_copy":
        size = "bytes = size - filled" if "filled" in names else "bytes = size"
        return [size, "if address == 0 or bytes == 0:", "    return 0", *flags, *plain]
    if kind == "async_store":
        return ["bytes = size", *flags, *plain]
    if kind in ("bulk_load", "bulk_store", "bulk_reduction", "bulk_shared"):
        return ["bytes = (blocks & 0xFFFF) * 16", *flags, *plain]
    if kind in ("tensor_load", "tensor_store"):
        return [*_tensor(), "if bytes == 0:", "    return 0", *flags, number]
    return ["bytes = 0", "is_read = 0", "is_write = 0", "is_atomic = 0", *plain]


def _tensor() -> list[str]:
    return [
        "box = tensor_box(map, dim, c0, c1, c2, c3, c4)",
        "address = box[0]",
        "bytes = box[1]",
        "rows = box[2]",
        "stride = box[3]",
    ]


def symbols(patches: Iterable[PatchText]) -> list[str]:
    """Lines `patch ID NAME` of the plan."""
    return [f"patch {each.signature.instruction} {each.name}" for each in patches]
