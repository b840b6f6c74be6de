"""The probe language: rejected code with its errors, and semantics."""

from __future__ import annotations

import ast
import random
import subprocess
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pasta.errors import ProbeError, ToolError
from pasta.plugins import load_tools
from pasta.probes import ProbeFunction, maps_of, probes_of
from pasta.probes.kinds import FIELDS
from pasta.tool import Tool

HEAD = """\
import os
from pasta.probes import Bitmap, Counter, Histogram, PerPC, TopK, Trace, probe
from pasta.tool import Result, Tool, option

LIMIT = 3
RATIO = 0.5

@probe.function
def half(x):
    return x // 2

@probe.function
def endless(x):
    return endless(x)

@probe.function
def nothing(x):
    if x:
        return 1

class Probed(Tool):
    '''A tool.'''
    size = option("4KiB", kind="bytes", help="a size")
    times = option(2, help="of a loop")
    mode = option("fast", help="a mode")
    n = Counter(by="launch", fields=("reads", "writes"))
    one = Counter(by=("object", "kernel"))
    heat = Histogram(by="object", bin=size)
    pcs = PerPC()
    top = TopK(4)
    bits = Bitmap()
    def result(self):
        return Result(summary="")
"""
_numbers = iter(range(1_000_000))


def load(path: Path, text: str) -> Tool:
    file = path / f"probed{next(_numbers)}.py"
    file.write_text(text)
    (tool,) = load_tools([str(file)])
    return tool


def probe_of(path: Path, body: str, decorator: str = "@probe.memory") -> ProbeFunction:
    parameters = "access, maps, options" if "options" in body else "access, maps"
    text = f"{HEAD}    {decorator}\n    def seen({parameters}):\n"
    tool = load(path, text + textwrap.indent(body, " " * 8) + "\n")
    (probe,) = probes_of(tool)
    return probe


FIRST = HEAD.count("\n") + 3  # line of the body's first line


@pytest.mark.parametrize(
    ("body", "line", "what", "remedy"),
    [
        ("x = access.adress", 0, "access has no field adress", "did you mean address"),
        ("maps.m.add()", 0, "there is no map m", "the maps are n, one, heat"),
        ("maps.hear.add()", 0, "there is no map hear", "did you mean heat"),
        ("maps.n.touch()", 0, "the map n has no method touch", "maps.n.add(…)"),
        ("maps.n.add()", 0, "n has no amount to add", "maps.n.add(reads=0, writes=0)"),
        ("maps.n.add(1, 2, 3)", 0, "too many arguments", "maps.n.add(reads=0, writes=0)"),
        ("maps.n.add(read=1)", 0, "n does not take read here", "reads=0"),
        ("maps.n.add(1, reads=1)", 0, "n does not take reads here", "reads=0"),
        ("maps.n.add(*access)", 0, "too many arguments", "reads=0"),
        ("maps.one.add()", 0, "one needs object", "maps.one.add(object, amount=1)"),
        ("maps.one.add(access.pc)", 0, "object is access.pc", "pass access.object"),
        ("maps.heat.add(access.object)", 0, "heat needs offset", "add(object, offset, amount=1)"),
        ("maps.pcs.add(access.pc, -1)", 0, "the amount -1 is negative", "unsigned"),
        ("x = maps.n.add(reads=1)", 0, "returns no value", "write it as a statement"),
        ("x = maps.n", 0, "maps.n is not an integer", "call a method"),
        ("access.pc", 0, "access.pc has no effect", "assign it, or remove it"),
        ("half(3)", 0, "half(…) has no effect", "call a method of a map"),
        ("x = access", 0, "access alone is not an integer", "a field of it"),
        ("x = 1.5", 0, "1.5 is a float", "integers"),
        ("x = 'a'", 0, "'a' is a str", "integers"),
        ("x = RATIO", 0, "RATIO is a float", "integers"),
        ("x = LIMITS", 0, "LIMITS is not defined", "integer constants of the module"),
        ("x = print", 0, "print is not defined", "integer constants of the module"),
        ("x = size", 0, "size is not defined", "options.NAME"),
        ("x = 1 << 63 << 1\ny = 9223372036854775808", 1, "more than 64 bits", "signed"),
        ("x = access.pc / 2", 0, "/ does not return an integer", "divide with //"),
        ("x = access.pc ** 2", 0, "** does not return an integer", "multiply"),
        ("x = access.pc // 0", 0, "division by zero", "another divisor"),
        ("x = 1 << 64", 0, "a shift by 64", "0 to 63"),
        ("x = [1]", 0, "[1] is not in the probe language", "use integers"),
        ("x = (lambda: 1)()", 0, "is not in the probe language", "@probe.function"),
        ("x = [i for i in range(3)]", 0, "is not in the probe language", "use integers"),
        ("x = access.pc in (1, 2)", 0, "is not a comparison of integers", "use =="),
        ("x = len(access)", 0, "len is not in the probe language", "@probe.function"),
        ("x = os.getpid()", 0, "os.getpid is not in the probe language", "@probe.function"),
        ("x = os.sep", 0, "os.sep is a str", "integers"),
        ("x = access.pc.bit_length()", 0, "access.pc.bit_length is not", "@probe.function"),
        ("x = min(1)", 0, "min(1)", "2 to 8 arguments"),
        ("x = half(1, 2)", 0, "half(1, 2)", "pass half 1 arguments"),
        ("x = half(x=1)", 0, "half(x=1)", "plain arguments"),
        ("x, y = 1, 2", 0, "only local names", "one name at a time"),
        ("maps.n = 2", 0, "only local names", "one name at a time"),
        ("access = 2", 0, "access is assigned", "another name"),
        ("min = 2", 0, "min is assigned", "another name"),
        ("a__b = 2", 0, "the name a__b", "two underscores"),
        ("y = x\nx = 1", 0, "x may be unassigned", "on every path"),
        ("if access.pc:\n    x = 1\nmaps.pcs.add(x)", 2, "x may be unassigned", "on every path"),
        ("for i in range(3):\n    x = i\ny = x", 2, "x may be unassigned", "on every path"),
        ("while access.pc:\n    pass", 0, "while has no bound", "for i in range(N)"),
        ("for i in range(access.lanes):\n    pass", 0, "is not constant", "a constant N"),
        ("n = 3\nfor i in range(n):\n    pass", 1, "bound n is not constant", "a constant N"),
        ("for i in (1, 2):\n    pass", 0, "a loop over (1, 2)", "range(N)"),
        ("for i in range(9):\n    pass\nelse:\n    x = 1", 3, "else of a loop", "after the loop"),
        ("for i in range(1, 9, 0):\n    pass", 0, "step is 0", "another step"),
        (
            "for i in range(64):\n    for j in range(65):\n        pass",
            0,
            "more than 4,096 iterations",
            "reduce their bounds",
        ),
        (
            "for i in range(LIMIT * 2000):\n    pass",
            0,
            "more than 4,096 iterations",
            "reduce their bounds",
        ),
        ("return 1", 0, "a probe cannot return a value", "return alone"),
        ("return\nx = 1", 1, "unreachable", "remove it"),
        (
            "try:\n    pass\nfinally:\n    pass",
            0,
            "try: is not in the probe language",
            "use assignments",
        ),
        ("import os", 0, "import os is not in the probe language", "use assignments"),
        ("def f(): pass", 0, "is not in the probe language", "use assignments"),
        ("x = endless(1)", None, "endless calls itself", "a loop"),
        ("x = nothing(1)", None, "nothing may return no value", "end it with return"),
        ("x = options.siz", 0, "the tool has no option siz", "did you mean size"),
        ("x = options.mode", 0, "the option mode is a str", "integers"),
        ("x = options", 0, "options alone is not an integer", "an option"),
        ("x = access.ways", 0, "global, local", "@probe.shared_memory"),
        (
            "maps.bits.touch(access.object)",
            0,
            "must take access as its only argument",
            "maps.bits.touch(access)",
        ),
        # a GPU uses these as indices into memory of the run
        ("maps.heat.add(access.object, 5)", 0, "offset is 5", "pass access.offset"),
        (
            "maps.heat.add(access.object, access.offset + 1)",
            0,
            "offset is access.offset + 1",
            "pass access.offset",
        ),
    ],
)
def test_rejected_probes(
    tmp_path: Path, body: str, line: int | None, what: str, remedy: str
) -> None:
    with pytest.raises(ProbeError) as caught:
        probe_of(tmp_path, body)
    error = caught.value
    assert what in error.message
    assert remedy in (error.remedy or "")
    assert str(error).startswith(f"{error.file}:{error.line}: ")
    if line is not None:
        assert error.line == FIRST + line


@pytest.mark.parametrize(
    ("decorator", "body", "what"),
    [
        ("@probe.memory(per='warp')", "x = access.lane", "differs between lanes"),
        ("@probe.barrier", "x = access.address", "barrier has no access.address"),
        ("@probe.on('global', 'call')", "x = access.object", "call has no access.object"),
        ("@probe.on('globl')", "x = 1", "'globl' is not a kind of access"),
        ("@probe.memory(per='block')", "x = 1", "per = 'block'"),
    ],
)
def test_rejected_fields_for_the_kinds(
    tmp_path: Path, decorator: str, body: str, what: str
) -> None:
    with pytest.raises(ProbeError, match=what):
        probe_of(tmp_path, body, decorator)


@pytest.mark.parametrize(
    ("parameters", "what"),
    [
        ("access", r"takes the parameters \(access, maps, options\)"),
        ("access, maps, options, more", "takes the parameters"),
        ("access, maps=None", "takes the parameters"),
        ("*access", "takes the parameters"),
        ("access, min", "the parameter min"),
        ("self, access, maps", "seen has the parameter self, .*: leave it out"),
    ],
)
def test_invalid_parameters(tmp_path: Path, parameters: str, what: str) -> None:
    with pytest.raises(ProbeError, match=what):
        load(tmp_path, f"{HEAD}    @probe.memory\n    def seen({parameters}): pass\n")


def test_probe_without_source_is_rejected() -> None:
    text = f"{HEAD}    @probe.memory\n    def seen(access, maps): pass\n"
    with pytest.raises(
        ProbeError, match="the source of seen is not available: define it in a file"
    ):
        exec(text, {"__name__": "nowhere"})


def test_loop_bound_by_an_option_is_checked_per_instance(tmp_path: Path) -> None:
    tool = load(
        tmp_path,
        f"{HEAD}    @probe.memory\n    def seen(access, maps, options):\n"
        "        for i in range(options.times * 8):\n            maps.pcs.add(access.pc)\n",
    )
    type(tool)({"times": 512})
    with pytest.raises(ProbeError, match="more than 4,096 iterations"):
        type(tool)({"times": 513})


def test_loading_a_tool_with_probes_imports_no_slow_module(tmp_path: Path) -> None:
    file = tmp_path / "fast.py"
    file.write_text(
        f"{HEAD}    @probe.memory\n    def seen(access, maps): maps.bits.touch(access)\n"
    )
    code = (
        "import sys; from pasta.plugins import load_tools;"
        f"(tool,) = load_tools([{str(file)!r}]);"
        "assert 'probes' in tool.needed() and tool.needs_compiled;"
        "print([m for m in ('numpy', 'numba', 'pyarrow') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# ---- meaning


def recorded(probe: ProbeFunction, fields: dict[str, int], options: dict[str, Any]) -> list[Any]:
    """Calls of ops made by the translated function."""
    calls: list[Any] = []

    def op(name: str) -> Any:
        def called(env: str, *arguments: int) -> None:
            assert env == "env"
            calls.append((name, *(int(each) for each in arguments)))

        return called

    function = probe.make({each.name: op(each.name) for each in probe.ops}, options)
    function(*(fields[name] for name in probe.fields), "env")
    return calls


BODY = """\
'''Has
  a docstring.'''
offset = access.offset % (access.lanes + 1)
count = total = 0
for i in range(options.times, options.times + 4):
    if i == LIMIT:
        continue
    if access.lane > i and not access.leader:
        count += 1
        total += half(i) << i
    elif access.lane == i:
        break
maps.n.add(reads=count, writes=total)
flag = access.address > 1000 or access.known
maps.one.add(access.object, flag + min(offset, 3, LIMIT) - (-offset // 7))
maps.heat.add(access.object, access.offset, amount=access.bytes)
maps.top.add(~offset if flag else abs(access.offset - 50), 2)
if access.is_write:
    return
maps.bits.touch(access)
maps.pcs.add(access.pc, access.address // (offset - 2) + access.offset % (count - 1))
"""


def test_probe_semantics_match_python(tmp_path: Path) -> None:
    probe = probe_of(tmp_path, BODY, "@probe.global_memory")
    calls: list[Any] = []
    signatures = {
        "n": lambda reads=0, writes=0: (reads, writes),
        "one": lambda object, amount=1: (object, amount),
        "heat": lambda object, offset, amount=1: (object, offset, amount),
        "top": lambda key, amount=1: (key, amount),
        "pcs": lambda pc, amount=1: (pc, amount),
    }
    maps = SimpleNamespace()
    for name, signature in signatures.items():

        def add(*given: int, _name: str = name, _signature: Any = signature, **named: int) -> None:
            calls.append((f"{_name}__add", *(int(each) for each in _signature(*given, **named))))

        setattr(maps, name, SimpleNamespace(add=add))

    def touch(access: Any) -> None:
        names = ("object", "offset", "bytes", "rows", "stride")
        calls.append(("bits__touch", *(getattr(access, name) for name in names)))

    maps.bits = SimpleNamespace(touch=touch)
    native: Any = vars(sys.modules["pasta.probes.language"])  # the function itself, from its file
    file = Path(probe.file)
    module = next(
        each for each in sys.modules.values() if getattr(each, "__file__", None) == str(file)
    )
    native = vars(module)["Probed"].__dict__["seen"].function
    for seed in range(300):
        draw = random.Random(seed)
        fields = {name: draw.randrange(-3, 100) for name in FIELDS}
        options = {"times": draw.randrange(3), "size": 4096}
        try:
            calls.clear()
            native(SimpleNamespace(**fields), maps, SimpleNamespace(**options))
        except ZeroDivisionError:
            continue
        got = [(name.replace("_uniform", ""), *rest) for name, *rest in
               recorded(probe, fields, options)]  # fmt: skip
        assert got == calls


def test_line_numbers_and_file_match_the_source(tmp_path: Path) -> None:
    probe = probe_of(tmp_path, "x = 1\nmaps.pcs.add(access.pc, x)", "@probe.global_memory")

    def fails(*_: int) -> None:
        raise RuntimeError

    function = probe.make({op.name: fails for op in probe.ops})
    with pytest.raises(RuntimeError) as caught:
        function(0, "env")
    frame = caught.traceback[1]
    assert (str(frame.path), frame.lineno + 1) == (probe.file, FIRST + 1)
    assert probe.line == FIRST - 2


def ops_of(path: Path, body: str, decorator: str = "@probe.memory") -> set[str]:
    return {op.name for op in probe_of(path, body, decorator).ops}


@pytest.mark.parametrize(
    ("amount", "uniform"),
    [
        ("1", True),
        ("access.bytes * 2 + LIMIT", True),
        ("half(access.lanes) if access.is_read else 2", True),
        ("access.lane", False),
        ("access.bytes + access.known", False),
        ("1 if access.leader else 2", False),
        ("half(access.lane)", False),
        ("max(access.lanes, access.lane)", False),
    ],
)
def test_uniform_amounts_are_detected(tmp_path: Path, amount: str, uniform: bool) -> None:
    expected = {"pcs__add_uniform" if uniform else "pcs__add"}
    decorator = "@probe.global_memory"
    assert ops_of(tmp_path, f"maps.pcs.add(access.pc, {amount})", decorator) == expected
    body = f"x = {amount}\nif access.lane > 3:\n    maps.pcs.add(access.pc, x)"
    assert ops_of(tmp_path, body, decorator) == expected


@pytest.mark.parametrize(
    "body",
    [
        "x = 1\nif access.lane:\n    x = 2\nmaps.pcs.add(access.pc, x)",
        "x = 1\nfor i in range(3):\n    maps.pcs.add(access.pc, x)\n    x = x + access.lane",
        "for i in range(9):\n    if access.lane == i:\n        break\n    x = 1\n"
        "    maps.pcs.add(access.pc, i)",
        "x = 0\nfor i in range(9):\n    if access.lane == i:\n        continue\n    x += 1\n"
        "maps.pcs.add(access.pc, x)",
        "y = x = 1\nif access.leader:\n    y = 2\nz = y + x\nmaps.pcs.add(access.pc, z)",
    ],
)
def test_divergent_assignments_are_not_uniform(tmp_path: Path, body: str) -> None:
    assert ops_of(tmp_path, body, "@probe.global_memory") == {"pcs__add"}


@pytest.mark.parametrize(
    "body",
    [
        "if access.lane:\n    return\nx = 2\nmaps.pcs.add(access.pc, x)",
        "x = 1\nif access.is_read:\n    x = 2\nmaps.pcs.add(access.pc, x)",
        "for i in range(9):\n    if access.lanes == i:\n        break\n"
        "    maps.pcs.add(access.pc, i)",
    ],
)
def test_convergent_assignments_are_uniform(tmp_path: Path, body: str) -> None:
    assert ops_of(tmp_path, body, "@probe.global_memory") == {"pcs__add_uniform"}


def test_probes_and_maps_are_inherited_and_can_be_replaced(tmp_path: Path) -> None:
    text = f"""{HEAD}
    @probe.memory
    def first(access, maps):
        maps.pcs.add(access.pc)
    @probe.memory
    def second(access, maps):
        maps.pcs.add(access.pc)

class Derived(Probed):
    pcs = PerPC("a", "b")
    second = None
    @probe.memory
    def first(access, maps):
        maps.pcs.add(access.pc, a=1)
"""
    file = tmp_path / "derived.py"
    file.write_text(text)
    base, derived = load_tools([str(file)])
    assert [probe.name for probe in probes_of(base)] == ["first", "second"]
    assert [probe.name for probe in probes_of(derived)] == ["first"]
    assert maps_of(derived)["pcs"].fields == ("a", "b")


def test_trace_requires_its_handler(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match="needs the method on_accesses"):
        load(tmp_path, f"{HEAD}    t = Trace()\n")
    with pytest.raises(ToolError, match="has no effect alone"):
        load(tmp_path, f"{HEAD}    def on_accesses(self, accesses): pass\n")


# ---- arithmetic, compiled


def wrapped(value: int) -> int:
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


OPERATIONS: dict[str, Any] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "//": lambda a, b: a // b if b else 0,
    "%": lambda a, b: a % b if b else 0,
    "<<": lambda a, b: a << (b & 63),
    ">>": lambda a, b: a >> (b & 63),
    "&": lambda a, b: a & b,
    "|": lambda a, b: a | b,
    "^": lambda a, b: a ^ b,
    "<": lambda a, b: int(a < b),
    "==": lambda a, b: int(a == b),
    "and": lambda a, b: a and b,
    "or": lambda a, b: a or b,
}
FIELDS_USED = ("address", "offset", "bytes", "lane")


def expression(draw: random.Random, depth: int) -> tuple[str, Any]:
    """Text of an expression, and a function of the fields that computes it."""
    if depth == 0 or draw.random() < 0.1:
        if draw.random() < 0.3:
            literal = draw.choice([0, 1, 2, 7, 63, 64, 1 << 40, (1 << 63) - 1])
            return str(literal), lambda fields: literal
        name = draw.choice(FIELDS_USED)
        return f"access.{name}", lambda fields: fields[name]
    what = draw.choice([*OPERATIONS, "-u", "~", "not", "if", "min", "abs"])
    a, run_a = expression(draw, depth - 1)
    if what in ("-u", "~", "not", "abs"):
        text = f"abs({a})" if what == "abs" else f"({what.rstrip('u')} {a})"
        unary = {
            "-u": lambda x: -x, "~": lambda x: ~x, "not": lambda x: int(not x), "abs": abs,
        }[what]  # fmt: skip
        return text, lambda fields: wrapped(unary(run_a(fields)))
    b, run_b = expression(draw, depth - 1)
    if what == "if":
        c, run_c = expression(draw, depth - 1)
        return (
            f"({a} if {b} else {c})",
            lambda fields: run_a(fields) if run_b(fields) else run_c(fields),
        )
    if what == "min":
        return f"min({a}, {b})", lambda fields: min(run_a(fields), run_b(fields))
    if what in ("//", "%", "<<", ">>") and b.isdigit():
        b, run_b = f"access.{FIELDS_USED[0]}", lambda fields: fields[FIELDS_USED[0]]
    operation = OPERATIONS[what]
    return f"({a} {what} {b})", lambda fields: wrapped(operation(run_a(fields), run_b(fields)))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_compiled_arithmetic_wraps_at_64_bits(tmp_path: Path, seed: int) -> None:
    import numba

    from pasta.probes import warp

    draw = random.Random(seed)
    expressions = [expression(draw, 4) for _ in range(25)]
    body = "\n".join(f"maps.top.add({text})" for text, _ in expressions)
    probe = probe_of(tmp_path, body, "@probe.global_memory")
    jit = numba.njit(error_model="numpy")
    names = {name: getattr(warp, name).dispatcher for name in ("plus", "minus", "times")}
    for op in probe.ops:
        names[op.name] = jit(lambda env, key, amount: env.append(key))
    for each in probe.definitions(wrapping=True):
        exec(ast.unparse(each), names)
        names[each.name] = jit(names[each.name])
    function = names["seen"]
    values = [0, 1, -1, 2, -3, 63, 64, 1 << 40, (1 << 63) - 1, -(1 << 63)]
    for _ in range(60):
        fields = {name: draw.choice(values) for name in FIELDS_USED}
        found = numba.typed.List.empty_list(numba.int64)
        function(*(fields[name] for name in probe.fields), found)
        for (text, run), value in zip(expressions, found, strict=True):
            assert value == run(fields), (text, fields)
