"""Memory instructions of the functions of a CUDA module, read with nvdisasm.

Opcodes are those of CUDA Binary Utilities 13.5, "Instruction Set Reference"; their form on
sm_80 to sm_120 was compared with the source PTX (tests/data/sass).
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import struct
import subprocess
import tempfile
import threading
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import IO, Any, Final, cast

from pasta.errors import MissingDependency, PastaError
from pasta.probes.kinds import KINDS
from pasta.sass.toolkit import find_cuda_file

#: Space of each access kind; None if it accesses no memory.
SPACES: Final[dict[str, str | None]] = {
    kind.name: None if kind.space == "none" else kind.space for kind in KINDS
}

#: Further kinds of instructions, which probes cannot name.
GENERIC: Final = "generic"  # load, store or atomic whose space is known at run time only
TEXTURE: Final = "texture"  # texture and surface instructions: global memory
TENSOR_CORE: Final = "tensor_core"  # wgmma, tcgen05: shared memory read through descriptors
SHARED_FILL: Final = "shared_fill"  # st.bulk: a range of shared memory set to zero
PREFETCH: Final = "prefetch"  # into a cache; no data reaches the program
UNKNOWN: Final = "unknown"  # an unknown opcode with an address operand

_WHEEL = "nvidia-cuda-nvdisasm"
_SCHEMA = 1
_READ, _WRITE, _ATOMIC = 1, 2, 4
_UPDATE = _READ | _WRITE | _ATOMIC

_OPCODES: Final[dict[str, tuple[str, int]]] = {
    "LDG": ("global", _READ),
    "LDGMC": ("global", _READ),  # multimem.ld_reduce
    "STG": ("global", _WRITE),
    "ATOMG": ("global", _UPDATE),
    "RED": ("global", _UPDATE),  # up to sm_89
    "REDG": ("global", _UPDATE),
    "LDS": ("shared", _READ),
    "STS": ("shared", _WRITE),
    "ATOMS": ("shared", _UPDATE),
    "LDL": ("local", _READ),
    "STL": ("local", _WRITE),
    "LD": (GENERIC, _READ),
    "ST": (GENERIC, _WRITE),
    "ATOM": (GENERIC, _UPDATE),
    "LDGSTS": ("async_copy", _READ),
    "LDSM": ("matrix", _READ),
    "STSM": ("matrix", _WRITE),
    "STAS": ("async_store", _WRITE),
    "REDAS": ("async_store", _UPDATE),
    "UTMALDG": ("tensor_load", _READ),
    "UTMASTG": ("tensor_store", _WRITE),
    "UTMAREDG": ("tensor_store", _UPDATE),
    "UBLKPF": (PREFETCH, 0),
    "UTMAPF": (PREFETCH, 0),
    "UMEMSETS": (SHARED_FILL, _WRITE),
    "TEX": (TEXTURE, _READ),
    "TLD": (TEXTURE, _READ),
    "TLD4": (TEXTURE, _READ),
    "TXD": (TEXTURE, _READ),
    "SULD": (TEXTURE, _READ),
    "SUST": (TEXTURE, _WRITE),
    "SUATOM": (TEXTURE, _UPDATE),
    "SURED": (TEXTURE, _UPDATE),
    "UTCCP": (TENSOR_CORE, _READ),
    "BAR": ("barrier", 0),
    "CALL": ("call", 0),
    "EXIT": ("block_exit", 0),
}
#: Bulk copies and reductions: destination and source are the first two modifiers.
_BULK: Final[dict[tuple[str, str], tuple[str, int]]] = {
    ("UBLKCP", "S.G"): ("bulk_load", _READ),
    ("UBLKCP", "G.S"): ("bulk_store", _WRITE),
    ("UBLKCP", "S.S"): ("bulk_shared", _READ | _WRITE),
    ("UBLKRED", "G.S"): ("bulk_reduction", _UPDATE),
    ("UBLKRED", "S.S"): ("bulk_shared", _UPDATE),
}
#: Have an address operand and move no data of the program: constants, mbarriers, caches, tensor
#: memory.
_NO_ACCESS = re.compile(
    r"U?LDC|LDCU|SYNCS|ARRIVES|QSPC|CCTL[LT]?|UTMACCTL|UTMACMDFLUSH|UTCBAR|UTCATOMSWS|UTCSHIFT|"
    r"UGETNEXTWORKID|LDTM?|STTM?|TXQ|TMML|SUQUERY|BRXU?|JMXU?"
)
_MMA = re.compile(r"(?:[A-Z]GMMA|UTC[A-Z0-9]*MMA)$")
_WIDTH = re.compile(r"(?:B?F|U|S)?(8|16|32|64|128|256)(?:(?:x|_V)(\d+))?$")
#: One address for each row of a matrix: 16 bytes in every shape of ldmatrix and stmatrix.
_MATRIX_ROW = 16
_SIZED = frozenset({"global", "shared", "local", GENERIC, "async_copy", "async_store"})


class SassError(PastaError):
    """A module cannot be disassembled."""


@dataclass(frozen=True)
class Opcode:
    """An opcode with its modifiers, and its effect on memory.

    `kind` is an access kind of pasta_trace.h, or one of the constants above. `bytes` is the size
    of one lane's access (matrix: the row at one address), None if the code does not specify it.
    """

    text: str
    kind: str
    reads: bool = False
    writes: bool = False
    atomic: bool = False
    bytes: int | None = None

    @property
    def space(self) -> str | None:
        """global, shared or local; None without an access or if unknown."""
        if self.kind in (TENSOR_CORE, SHARED_FILL):
            return "shared"
        return "global" if self.kind == TEXTURE else SPACES.get(self.kind)


@dataclass(frozen=True)
class Instruction:
    """An instruction, `offset` bytes into its function; file and line are known with -lineinfo."""

    offset: int
    opcode: Opcode
    predicated: bool = False
    file: str | None = None
    line: int | None = None

    @property
    def kind(self) -> str:
        """Kind of the opcode."""
        return self.opcode.kind


@dataclass(frozen=True)
class Function:
    """The memory, barrier, call and exit instructions of a kernel or device function.

    A function is a code section: device functions that the compiler placed in the section of their
    kernel belong to it. `name` is mangled, `bytes` is the section's code with its padding, `calls`
    are functions in other sections that it calls by name; `indirect`: it calls through a register.
    """

    name: str
    bytes: int
    instructions: tuple[Instruction, ...]
    calls: frozenset[str] = frozenset()
    indirect: bool = False


@lru_cache(maxsize=4096)
def classify(text: str) -> Opcode | None:
    """The effect of an opcode with its modifiers; None if it is not counted."""
    root, *modifiers = text.split(".")
    if root in ("UBLKCP", "UBLKRED"):
        found = _BULK.get((root, ".".join(modifiers[:2])), (UNKNOWN, 0))
    elif root in ("CCTL", "CCTLL") and modifiers[-1:] in (["PF1"], ["PF2"]):
        found = (PREFETCH, 0)
    elif _MMA.match(root):
        found = (TENSOR_CORE, _READ)
    elif root in _OPCODES:
        found = _OPCODES[root]
    else:
        return None
    kind, flags = found
    return Opcode(
        text,
        kind,
        reads=bool(flags & _READ),
        writes=bool(flags & _WRITE),
        atomic=bool(flags & _ATOMIC),
        bytes=_bytes_per_lane(kind, modifiers),
    )


def _bytes_per_lane(kind: str, modifiers: Iterable[str]) -> int | None:
    if kind == "matrix":
        return _MATRIX_ROW
    if kind not in _SIZED:
        return None
    for modifier in modifiers:
        if width := _WIDTH.match(modifier):
            return int(width[1]) * int(width[2] or 1) // 8
    return 4


# ---- the listing ---------------------------------------------------------------------------

_LINE = re.compile(
    # 1 offset, 2 predicate, 3 opcode, 4 operands
    r"^[ \t]+/\*([0-9a-f]{4,})\*/[ \t]+(?:\{[ \t]*)?(?:@(!?U?P\w+)[ \t]+)?([A-Z][\w.]*)([^\n]*)$"
    r'|^[ \t]*//## File "([^"\n]*)", line (\d+)'  # 5 file, 6 line
    r'|^[ \t]*\.section[ \t]+"?\.text\.([^",\n]+)'  # 7 section
    r"|^[ \t]*\.type[ \t]+([^,\n]+),@function",  # 8 symbol
    re.MULTILINE,
)
#: An operand that is an address: not c[…], whose bracket follows a letter, nor gdesc[…].
_ADDRESS = re.compile(r"[ \t,](?:desc)?\[")
_TARGET = re.compile(r"[ \t]*`\(([^)\n]+)\)")
_CHUNK = 1 << 22


class _Section:
    """A function while its lines are read."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.instructions: list[Instruction] = []
        self.end = 0
        self.symbols: set[str] = set()
        self.targets: set[str] = set()
        self.indirect = False

    def function(self) -> Function:
        calls = frozenset(self.targets - self.symbols)
        return Function(self.name, self.end, tuple(self.instructions), calls, self.indirect)


def parse(listing: IO[str], functions: Collection[str] | None = None) -> Iterator[Function]:
    """Functions in the output of `nvdisasm -c -g`, each after its last line.

    `functions`: mangled names of functions to yield; None: all.
    """
    wanted = None if functions is None else frozenset(functions)
    section: _Section | None = None
    file: str | None = None
    line: int | None = None
    for text in _whole_lines(listing):
        for match in _LINE.finditer(text):
            group = match.lastindex
            if group == 4:
                if section is None:
                    continue
                section.end = int(match[1], 16) + 16
                opcode = _opcode(match[3], match[4])
                # @!PT is never true: padding around some hardware hazards.
                if opcode is None or match[2] in ("!PT", "!UPT"):
                    continue
                section.instructions.append(
                    Instruction(section.end - 16, opcode, match[2] is not None, file, line)
                )
                if opcode.kind == "call":
                    target = _TARGET.match(match[4])
                    if target:
                        section.targets.add(target[1])
                    else:
                        section.indirect = True
            elif group == 6:
                file, line = match[5], int(match[6])
            elif group == 7:
                if section is not None:
                    yield section.function()
                name = match[7]
                section = _Section(name) if wanted is None or name in wanted else None
                file = line = None
            elif section is not None:
                section.symbols.add(match[8])
    if section is not None:
        yield section.function()


def _opcode(text: str, operands: str) -> Opcode | None:
    found = classify(text)
    if found is None and _ADDRESS.search(operands) and not _NO_ACCESS.fullmatch(text.split(".")[0]):
        return Opcode(text, UNKNOWN)
    return found


def _whole_lines(stream: IO[str]) -> Iterator[str]:
    rest = ""
    while chunk := stream.read(_CHUNK):
        end = chunk.rfind("\n") + 1
        if end:
            yield rest + chunk[:end]
            rest = chunk[end:]
        else:
            rest += chunk
    yield rest


# ---- nvdisasm ------------------------------------------------------------------------------


def find_nvdisasm() -> Path | None:
    """nvdisasm: PASTA_NVDISASM, the wheels, a CUDA toolkit, or PATH, in that order."""
    named = os.environ.get("PASTA_NVDISASM")
    if named:
        return Path(named)
    wheels = ("cu[0-9]*/bin/nvdisasm", "cuda_nvdisasm/bin/nvdisasm")
    return find_cuda_file(wheels, "bin/nvdisasm", program=True)


def disassemble(
    cubin: bytes | Path,
    functions: Collection[str] | None = None,
    *,
    cache: Path | None = None,
    timeout: float = 600,
) -> list[Function]:
    """Functions of a module, all or those with the mangled names `functions`.

    `cache` is a directory of listings by the hash of the module, created if missing. Names that the
    module lacks are ignored. Raises MissingDependency without nvdisasm, SassError if it cannot read
    the module within `timeout` seconds.
    """
    image = cubin if isinstance(cubin, bytes) else cubin.read_bytes()
    kept = _Cache(cache, image) if cache else None
    known = kept.load(functions) if kept else None
    if known is not None:
        return known
    program = find_nvdisasm()
    if program is None:
        raise MissingDependency("nvdisasm was not found", remedy=f"pip install {_WHEEL}")
    listed = _run(program, image, functions, timeout)
    if kept:
        kept.store(listed, functions)
    return listed


def _run(
    program: Path, image: bytes, functions: Collection[str] | None, timeout: float
) -> list[Function]:
    command = [str(program), "-c", "-g", "-ndf"]
    if functions is not None:
        symbols = _function_symbols(image)
        indices = [str(symbols[name]) for name in sorted(set(functions)) if name in symbols]
        if not indices:
            return []
        # the run time of nvdisasm grows with its output; command lines are limited
        if len(indices) <= 1024:
            command += ["-fun", ",".join(indices)]
    with tempfile.TemporaryDirectory(prefix="pasta-") as scratch:
        path = Path(scratch, "module.cubin")
        path.write_bytes(image)
        with open(Path(scratch, "stderr"), "w+", errors="replace") as stderr:
            try:
                process = subprocess.Popen(
                    [*command, str(path)],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=stderr,
                    text=True,
                    encoding="utf-8",
                    errors="surrogateescape",
                )
            except OSError as error:
                raise MissingDependency(
                    f"{program} cannot be run ({error.strerror})",
                    remedy=f"pip install {_WHEEL}, or set PASTA_NVDISASM to nvdisasm",
                ) from error
            late = threading.Event()

            def stop() -> None:
                late.set()
                process.kill()

            timer = threading.Timer(timeout, stop)
            timer.daemon = True
            timer.start()
            try:
                with process:
                    listed = list(parse(cast("IO[str]", process.stdout), functions))
            finally:
                timer.cancel()
            if late.is_set():
                raise SassError(f"nvdisasm took more than {timeout:g} s for a module")
            if process.returncode:
                stderr.seek(0)
                lines = stderr.read().replace(str(path), "the module").strip().splitlines()
                raise SassError(
                    f"nvdisasm cannot read a module: {lines[0] if lines else process.returncode}",
                    remedy=f"pip install -U {_WHEEL}",
                )
    return listed


def _function_symbols(image: bytes) -> dict[str, int]:
    """Indices of functions in the symbol table of a 64-bit little-endian ELF file, by name.

    Raises SassError for other files."""
    if image[:6] != b"\x7fELF\x02\x01":
        raise SassError("a module is no 64-bit ELF file, so nvdisasm cannot read it")
    symbols: dict[str, int] = {}
    try:
        (headers,) = struct.unpack_from("<Q", image, 0x28)
        entry, count = struct.unpack_from("<HH", image, 0x3A)
        # 65,280 sections or more: the count is in the first header
        count = count or struct.unpack_from("<Q", image, headers + 0x20)[0]
        sections = [
            struct.unpack_from("<IIQQQQII", image, headers + entry * i) for i in range(count)
        ]
        for _, kind, _, _, offset, size, link, _ in sections:
            if kind != 2:  # SHT_SYMTAB
                continue
            strings = sections[link][4]
            table = image[offset : offset + size - size % 24]
            for index, (name, info, *_) in enumerate(struct.iter_unpack("<IBBHQQ", table)):
                if info & 15 == 2:  # STT_FUNC
                    end = image.index(b"\0", strings + name)
                    text = image[strings + name : end].decode("utf-8", "surrogateescape")
                    symbols[text] = index
    except (struct.error, IndexError, ValueError) as error:
        raise SassError("the symbol table of a module cannot be read") from error
    return symbols


# ---- cache ---------------------------------------------------------------------------------


class _Cache:
    """Cached listings of one module: a header line, then a line for each function.

    Opcodes are stored as text and classified when read, so that a newer PASTA applies to old
    listings.
    """

    def __init__(self, directory: Path, image: bytes) -> None:
        self.path = directory / f"{hashlib.sha256(image).hexdigest()}.jsonl"

    def load(self, functions: Collection[str] | None) -> list[Function] | None:
        """The requested listings, or None if one of them is not cached."""
        kept = self._read(functions)
        if kept is None:
            return None
        asked, listed = kept
        if asked is not None and (functions is None or not asked.issuperset(functions)):
            return None
        return listed

    def store(self, listed: list[Function], functions: Collection[str] | None) -> None:
        """Adds the listings of `functions` to the cached ones."""
        asked = None if functions is None else set(functions)
        if asked is not None and (kept := self._read(None)) is not None:
            if kept[0] is None:
                return
            listed = [*listed, *(old for old in kept[1] if old.name not in asked)]
            asked |= kept[0]
        self.path.parent.mkdir(parents=True, exist_ok=True)
        names = None if asked is None else sorted(asked)
        # atomically: another process may read it at any time
        with tempfile.NamedTemporaryFile(
            "w", dir=self.path.parent, prefix=f".{self.path.stem}.", delete=False
        ) as file:
            try:
                file.write(json.dumps({"schema": _SCHEMA, "functions": names}) + "\n")
                file.writelines(_line_of(function) + "\n" for function in listed)
                file.close()
                os.replace(file.name, self.path)
            except BaseException:
                os.unlink(file.name)
                raise

    def _read(
        self, functions: Collection[str] | None
    ) -> tuple[frozenset[str] | None, list[Function]] | None:
        """Requested names (None: all) and their listings; None if nothing is cached."""
        wanted = None if functions is None else frozenset(functions)
        try:
            with open(self.path) as file:
                header = json.loads(next(file))
                if header["schema"] != _SCHEMA:
                    return None
                names = header["functions"]
                listed = [
                    function
                    for line in file
                    if (function := _function_of(json.loads(line), wanted))
                ]
        except (FileNotFoundError, StopIteration, ValueError, KeyError, TypeError, IndexError):
            return None
        return None if names is None else frozenset(names), listed


def _line_of(function: Function) -> str:
    files = list(dict.fromkeys(i.file for i in function.instructions if i.file is not None))
    place = {file: index for index, file in enumerate(files)}
    rows = [
        [i.offset, i.opcode.text, int(i.predicated)]
        + ([] if i.file is None else [place[i.file], i.line])
        for i in function.instructions
    ]
    return json.dumps(
        {
            "name": function.name,
            "bytes": function.bytes,
            "calls": sorted(function.calls),
            "indirect": function.indirect,
            "files": files,
            "instructions": rows,
        },
        separators=(",", ":"),
    )


def _function_of(kept: dict[str, Any], wanted: frozenset[str] | None) -> Function | None:
    if wanted is not None and kept["name"] not in wanted:
        return None
    files = kept["files"]
    instructions = tuple(
        Instruction(
            offset,
            classify(text) or Opcode(text, UNKNOWN),
            bool(predicated),
            *([files[source[0]], source[1]] if source else ()),
        )
        for offset, text, predicated, *source in kept["instructions"]
    )
    return Function(
        kept["name"], kept["bytes"], instructions, frozenset(kept["calls"]), kept["indirect"]
    )
