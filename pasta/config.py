"""What the user asked for: presets and TOML files, `--set`, and command-line options, validated.

Every setting is declared once in `SETTINGS`; files, `--set` and the options of `pasta-preload`
all go through it.  Errors name the file, the key and what is accepted.
"""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pasta import paths
from pasta.errors import ConfigError, shown

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9,
          "K": 2**10, "M": 2**20, "G": 2**30, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}  # fmt: skip
_TIMES = {"ms": 1, "s": 1000, "min": 60_000, "": 1000}
_LONGEST_PERIOD = 10**9
_SHORTEST_PERIOD = 1e-6
#: Bounds of settings; what is larger is a slip, and nothing downstream needs to care about it.
MAX_COUNT = 10**18
MAX_BYTES = 2**60
MAX_MILLISECONDS = 10**12
MAX_PATH, MAX_NAME, MAX_TEXT = 3500, 200, 10_000
_MAX_FILE = 1 << 20
_MAX_LINES = 2000
BACKENDS = ("auto", "nvidia", "amd", "refacc", "none")
_YES, _NO = {"true", "yes", "on", "1"}, {"false", "no", "off", "0"}


def parse_bytes(value: object) -> int:
    """Bytes from a number or a text such as "256MiB". Raises ValueError."""
    match = re.fullmatch(r"\s*(\d{1,20}(?:\.\d{1,20})?)\s*([A-Za-z]*)\s*", _text(value), re.ASCII)
    if not match or match[2].upper() not in _UNITS:
        raise ValueError('a size such as 4096, "4KiB" or "256MiB"')
    unit = _UNITS[match[2].upper()]
    return int(float(match[1]) * unit) if "." in match[1] else int(match[1]) * unit


def parse_milliseconds(value: object) -> int:
    """Milliseconds from seconds or a text such as "500ms". Raises ValueError."""
    match = re.fullmatch(r"\s*(\d{1,20}(?:\.\d{1,20})?)\s*(ms|s|min|)\s*", _text(value), re.ASCII)
    if not match:
        raise ValueError('a duration such as 2, "500ms" or "10s"')
    return int(float(match[1]) * _TIMES[match[2]])


def parse_bool(value: object) -> bool:
    """Truth from a boolean or one of true/false, yes/no, on/off. Raises ValueError."""
    text = _text(value).lower()
    if text not in _YES | _NO:
        raise ValueError("true or false")
    return text in _YES


def parse_count(value: object) -> int:
    """A whole number, 0 or more. Raises ValueError."""
    if isinstance(value, bool) or not re.fullmatch(r"\d{1,20}", _text(value), re.ASCII):
        raise ValueError("a whole number, 0 or more")
    return int(_text(value))


def parse_window(value: object) -> str:
    """Part of the run in which probes run, as "launches 100/1000". Raises ValueError."""
    match = re.fullmatch(
        r"\s*(?:(launches|steps)\s+(\d+)\s*/\s*(\d+)"
        r"|(seconds)\s+(\d+(?:\.\d+)?)\s*/\s*(\d+(?:\.\d+)?))?\s*",
        _text(value),
        re.ASCII,
    )
    if match and not match[0].strip():
        return ""
    parts = [part for part in match.groups() if part] if match else []
    if not parts or not _SHORTEST_PERIOD <= float(parts[1]) <= float(parts[2]) < _LONGEST_PERIOD:
        raise ValueError('"launches 100/1000", "steps 1/100" or "seconds 1/60"')
    return f"{parts[0]} {parts[1]}/{parts[2]}"


def parse_budget(value: object) -> float:
    """A share above 0 from a number or a text such as "20%". Raises ValueError."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(%?)\s*", _text(value), re.ASCII)
    share = float(match[1]) / (100 if match[2] else 1) if match else 0.0
    if not 0.001 <= share <= 1000:
        raise ValueError('a share such as "20%" or 0.2, at least 0.1%')
    return share


def parse_backend(value: object) -> str:
    """A backend: one of BACKENDS. Raises ValueError."""
    if value not in BACKENDS:
        raise ValueError("one of " + ", ".join(BACKENDS))
    return str(value)


def parse_names(value: object) -> str:
    """Names separated by commas, from such a text or a list. Raises ValueError."""
    texts = value if isinstance(value, list) else _text(value).split(",")
    names = [_text(text).strip() for text in texts]
    if sum(map(len, names)) > MAX_TEXT or not all(
        re.fullmatch(r"[\w:.\[\]]+", name, re.ASCII) for name in names if name
    ):
        raise ValueError('names such as "SQ_WAVES,GRBM_COUNT"')
    return ",".join(dict.fromkeys(name for name in names if name))


def parse_interval(value: object) -> str:
    """An interval between samples such as "100us", or nothing. Raises ValueError."""
    match = re.fullmatch(
        r"\s*(?:([1-9]\d{0,8})\s*(us|ms|cycles|instructions)\s*)?", _text(value), re.ASCII
    )
    if not match:
        raise ValueError('an interval such as "100us" or "65536 cycles"')
    return f"{match[1]}{match[2]}" if match[1] else ""


def parse_regex(value: object) -> str | None:
    """A regular expression, or None for the empty text. Raises ValueError."""
    if not isinstance(value, str):
        raise ValueError("a regular expression (it is no text)")
    if len(value) > MAX_TEXT or not set(value).isdisjoint("\0\n"):
        raise ValueError(f"a regular expression of one line, at most {MAX_TEXT:,} characters")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of sets that may mean something else one day
            re.compile(value)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"a regular expression ({error})") from None
    return value or None


def parse_path(value: object) -> str:
    """A path without control characters. Raises ValueError."""
    if not isinstance(value, str) or any(character < " " for character in value):
        raise ValueError("a path")
    try:
        encoded = os.fsencode(value)
    except UnicodeEncodeError:
        raise ValueError("a path") from None
    if len(encoded) > MAX_PATH or any(len(name) > MAX_NAME for name in encoded.split(b"/")):
        raise ValueError(f"a path of at most {MAX_PATH:,} bytes, {MAX_NAME} in each name")
    return value


def _text(value: object) -> str:
    """A value as text; Python refuses to write integers of thousands of digits."""
    return "" if isinstance(value, int) and value.bit_length() > 1000 else str(value)


@dataclass(frozen=True)
class Setting:
    """One setting: its place in TOML, the parser of its value and its meaning."""

    key: str
    attribute: str
    parse: Callable[[object], Any]
    help: str
    least: int = 0
    most: int | None = None

    def parsed(self, value: object) -> Any:
        """The value in its type and within bounds. Raises ValueError: what is accepted."""
        found = self.parse(value)
        most = self.most if self.most is not None else _MOST.get(self.parse)
        if most is not None and found is not None and not self.least <= found <= most:
            raise ValueError(f"within {self.bound(self.least)} to {self.bound(most)}")
        return found

    def bound(self, value: int) -> str:
        """A bound as a user writes it."""
        if self.parse is parse_milliseconds:
            return f"{value / 1000:g}s"
        for letter, power in (("EiB", 60), ("GiB", 30), ("MiB", 20), ("KiB", 10)):
            if self.parse is parse_bytes and value and value % (1 << power) == 0:
                return f"{value >> power}{letter}"
        return str(value)


_MOST: dict[Callable[[object], Any], int] = {
    parse_bytes: MAX_BYTES,
    parse_count: MAX_COUNT,
    parse_milliseconds: MAX_MILLISECONDS,
}

SETTINGS: tuple[Setting, ...] = (
    Setting("filter.kernel", "kernel", parse_regex, "only kernels whose name matches"),
    Setting("filter.exclude", "exclude", parse_regex, "no kernels whose name matches"),
    Setting("filter.launch-skip", "launch_skip", parse_count, "skip the first N selected launches"),
    Setting("filter.launch-count", "launch_count", parse_count, "stop after N selected launches"),
    Setting("filter.range", "range", parse_regex, "only activity inside ranges that match"),
    Setting("backend", "backend", parse_backend, "which accelerators: " + ", ".join(BACKENDS)),
    Setting("run.out", "out", parse_path, "run directory; %n %p %h %r %t %q{ENV} are replaced"),
    Setting("run.root", "root", parse_path, "directory that the runs of all processes go to"),
    Setting("run.force", "force", parse_bool, "replace an existing run directory"),
    Setting("run.events", "events", parse_bool, "record events as Parquet"),
    Setting("run.modules", "modules", parse_bool, "keep the images of loaded modules"),
    Setting("run.max-size", "max_size", parse_bytes, "most bytes of recorded events; 0: any"),
    Setting("run.rotate", "rotate", parse_bool, "at run.max-size drop the oldest, not the newest"),
    Setting("run.duration", "duration", parse_milliseconds, "stop profiling after it; 0: never"),
    Setting("run.live", "live", parse_bool, "show what happens while the program runs"),
    Setting("run.start", "start", parse_bool, "profile from the start, not from pasta.start()"),
    Setting("run.children", "children", parse_bool, "follow child processes"),
    Setting("run.tool-timeout", "tool_timeout", parse_milliseconds, "longest call of a tool"),
    Setting("ring.max", "ring_max", parse_bytes, "cap of the event ring of one process", 1 << 20),
    Setting("ring.directory", "ring_directory", parse_path, "where rings live; default: /dev/shm"),
    Setting("python.collector", "collector", parse_bool, "always consume in a process of its own"),
    Setting("python.embed-delay", "embed_delay", parse_milliseconds, "time before Python starts"),
    Setting("python.exit-timeout", "exit_timeout", parse_milliseconds, "longest wait at its exit"),
    Setting("probes.memory", "probes_memory", parse_bytes, "device memory that probes may take"),
    Setting(
        "probes.trace-memory", "probes_trace_memory", parse_bytes,
        "page-locked memory of each context for access records on their way",
    ),
    Setting(
        "probes.code-memory", "probes_code_memory", parse_bytes,
        "shared memory for modules' code, which tells what probes cannot see; 0: none",
    ),
    Setting(
        "probes.sm", "probes_sm", parse_count, "architecture to compile for: 90; default: all",
        most=999,
    ),
    Setting("probes.window", "probes_window", parse_window, 'when they run: "launches 100/1000"'),
    Setting(
        "probes.every", "probes_every", parse_count, "probe every N-th launch of each kernel",
        least=1,
    ),
    Setting("probes.step-range", "probes_step_range", parse_regex, "whole names of steps' ranges"),
    Setting("probes.overhead-budget", "probes_overhead_budget", parse_budget, "20%: picks windows"),
    Setting("torch.follow", "torch_follow", parse_bool, "follow PyTorch where a tool asks for it"),
    Setting("torch.stacks", "torch_stacks", parse_bool, "the Python stack of every operator"),
    Setting(
        "torch.frames", "torch_frames", parse_count, "innermost frames of a stack that count",
        most=10_000,
    ),
    Setting("torch.modules", "torch_modules", parse_bool, "which nn.Module runs"),
    Setting("torch.kineto", "torch_kineto", parse_bool, "show PASTA's records in torch.profiler"),
    Setting("amd.counters", "amd_counters", parse_names, "hardware counters: SQ_WAVES,GRBM_COUNT"),
    Setting("amd.pc_sampling", "amd_pc_sampling", parse_interval, "between samples: 100us"),
    Setting("nvidia.empty", "nvidia_empty", parse_bool, "subscribe, record nothing"),
)  # fmt: skip
_BY_KEY = {setting.key: setting for setting in SETTINGS}
_SECTIONS = {key.partition(".")[0] for key in _BY_KEY if "." in key}


@dataclass
class Config:
    """A validated configuration. Durations are milliseconds, sizes bytes."""

    tools: list[str] = field(default_factory=list)
    tool_paths: list[str] = field(default_factory=list)
    tool_options: dict[str, dict[str, Any]] = field(default_factory=dict)
    kernel: str | None = None
    exclude: str | None = None
    launch_skip: int = 0
    launch_count: int | None = None
    range: str | None = None
    backend: str = "auto"
    out: str = "pasta-out/%n-%p"
    root: str = ""
    force: bool = False
    events: bool = True
    modules: bool = False
    start: bool = True
    children: bool = True
    tool_timeout: int = 60_000
    ring_max: int = 256 << 20
    ring_directory: str = ""
    collector: bool = False
    embed_delay: int = 5_000
    live: bool = False
    max_size: int = 0
    rotate: bool = False
    duration: int = 0
    exit_timeout: int = 5_000
    probes_memory: int = 256 << 20
    probes_trace_memory: int = 64 << 20
    probes_code_memory: int = 256 << 20
    probes_sm: int = 0
    probes_window: str = ""
    probes_every: int = 1
    probes_step_range: str | None = None
    probes_overhead_budget: float = 0.0
    torch_follow: bool = True
    torch_stacks: bool = True
    torch_frames: int = 64
    torch_modules: bool = True
    torch_kineto: bool = True
    amd_counters: str = ""
    amd_pc_sampling: str = ""
    nvidia_empty: bool = False

    def __post_init__(self) -> None:
        #: Where a tool ("NAME") or an option of one ("NAME.OPTION") was given, for errors.
        self.origins: dict[str, object] = {}

    def listens_to(self, backend: str) -> bool:
        """Whether events of a backend are wanted: "nvidia", "amd" or "refacc"."""
        return self.backend in ("auto", backend)

    def set(self, key: str, value: object, where: str) -> None:
        """Sets `key` (dotted, as in TOML); `where` names the source in errors."""
        setting = _BY_KEY.get(key)
        if setting:
            self._assign(setting, value, where)
            return
        tool, _, option = key.removeprefix("tool.").partition(".")
        if option and "." not in option and tool not in _SECTIONS:
            self.tool_options.setdefault(tool, {})[option] = value
            self.origins[f"{tool}.{option}"] = where
            return
        raise ConfigError(f"{where}: unknown key {shown(key)}", remedy=suggest_key(key))

    def _assign(self, setting: Setting, value: object, where: str) -> None:
        try:
            setattr(self, setting.attribute, setting.parsed(value))
        except ValueError as error:
            raise ConfigError(f"{where}: {setting.key} = {shown(value)} is not {error}") from None

    def load(self, source: str) -> None:
        """Adds a preset by name or a TOML file by path. Raises ConfigError."""
        path = find_preset(source)
        text = _read(path)
        document = _parsed(path, text)
        for key in ("tools", "tool-path"):
            if not _is_texts(document.get(key, [])):
                raise ConfigError(
                    f"{_Place(path, text, key)}: {key} is not a list of texts"
                    ' such as ["kernel_freq"]'
                )
        for tool in document.pop("tools", []):
            self.tools.append(tool)
            self.origins[tool] = _Place(path, text, "tools")
        base = path.resolve().parent
        for directory in document.pop("tool-path", []):
            self.tool_paths.append(str(base / directory))
        for key, value in _flatten(document):
            self._set_typed(key, value, path, text)

    def _set_typed(self, key: str, value: object, path: Path, text: str) -> None:
        """A key of a file, where booleans are no texts. Raises ConfigError."""
        setting = _BY_KEY.get(key)
        try:
            if setting and setting.parse is parse_bool and not isinstance(value, bool):
                raise ConfigError(f"{path}: {key} = {shown(value)} is not true or false")
            self.set(key, value, str(path))
        except ConfigError as error:
            message = error.message.removeprefix(str(path))
            place = _Place(path, text, key)
            raise ConfigError(f"{place}{message}", remedy=error.remedy) from None
        tool_option = key.removeprefix("tool.")
        if tool_option in self.origins:
            self.origins[tool_option] = _Place(path, text, key)

    def add_tools(
        self,
        tools: Iterable[str],
        directories: Iterable[str | os.PathLike[str]] = (),
        where: str = "",
    ) -> None:
        """Adds tools and directories with tools: files by absolute paths, as collectors run in
        another directory."""
        given = [(_absolute(tool), self.origins.get(tool)) for tool in self.tools]
        given += [(_absolute(tool), f"{where} {tool}" if where else None) for tool in tools]
        self.tools = list(dict.fromkeys(tool for tool, _ in given))
        for tool, origin in given:
            if origin:
                self.origins.setdefault(tool, origin)
        self.tool_paths.extend(os.path.abspath(path) for path in directories)

    def set_text(self, assignment: str) -> None:
        """Applies one `--set key=value`. Raises ConfigError."""
        key, equals, value = assignment.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"--set {shown(assignment)}: not of the form key=value")
        self.set(key.strip(), value.strip(), f"--set {shown(assignment, 200)[1:-1]}")


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_FILE + 1)
        if len(content) > _MAX_FILE:
            raise ConfigError(f"{path}: larger than {_MAX_FILE >> 20} MiB, so no configuration")
        return content.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read ({error})") from None


def _parsed(path: Path, text: str) -> dict[str, Any]:
    if sys.version_info >= (3, 11):  # here: most launches read no TOML
        import tomllib
    else:
        import tomli as tomllib
    try:
        document: dict[str, Any] = tomllib.loads(text)
        return document
    except (ValueError, RecursionError) as error:  # ValueError also of dates and long integers
        raise ConfigError(f"{path}: not valid TOML: {error}") from None


@dataclass(frozen=True)
class _Place:
    """The statement of a file that gives a (dotted) key; `FILE:LINE` as text."""

    path: Path
    content: str
    key: str

    def __str__(self) -> str:
        """The first lines of a file are valid TOML unless they end within a statement: it is the
        statement after the longest valid beginning without the key, whatever its notation."""
        lines = self.content.splitlines(keepends=True)
        before = 0
        for count in range(1, len(lines) + 1 if len(lines) <= _MAX_LINES else 0):
            try:
                document = _parsed(self.path, "".join(lines[:count]))
            except ConfigError:
                continue
            if self.key in document or any(self.key == found for found, _ in _flatten(document)):
                return f"{self.path}:{before + 1}"
            before = count
        return str(self.path)


def _absolute(tool: str) -> str:
    file, colon, name = tool.partition(":")
    return f"{os.path.abspath(file)}{colon}{name}" if file.endswith(".py") else tool


def _is_texts(value: object) -> bool:
    """Whether a value is a list of texts, none of them empty or with control characters."""
    return isinstance(value, list) and all(
        isinstance(item, str) and item.isprintable() and item for item in value
    )


def _flatten(table: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
    left = list(table.items())[::-1]
    while left:
        key, value = left.pop()
        if isinstance(value, dict):
            left += [(f"{key}.{name}", inner) for name, inner in value.items()][::-1]
        else:
            yield key, value


def suggest(word: str, known: Iterable[str]) -> str:
    """A remedy for an unknown word: the known ones that are like it, or all of them."""
    from difflib import get_close_matches

    names = sorted(known)
    close = get_close_matches(word[:MAX_NAME], names, n=3)
    return f"did you mean {' or '.join(close)}?" if close else f"known are {', '.join(names)}"


def suggest_key(key: str) -> str:
    """A remedy for an unknown key of a file or of --set."""
    known = [*_BY_KEY, "tools", "tool-path", "tool.NAME.OPTION"]
    if key in ("tools", "tool-path"):
        return "give it as -t or --tool-path"
    remedy = suggest(key, known)
    return remedy if remedy.startswith("did") else "pasta tools --settings lists all settings"


def preset_names() -> list[str]:
    """Names of the built-in presets."""
    return sorted(path.stem for path in paths.presets().glob("*.toml"))


def find_preset(source: str) -> Path:
    """Path of a preset name or TOML file. Raises ConfigError."""
    if source.endswith(".toml") or "/" in source:
        if os.path.isfile(source):
            return Path(source)
        raise ConfigError(f"{shown(source, 200)[1:-1]}: no such configuration file")
    if source in preset_names():
        return paths.presets() / f"{source}.toml"
    raise ConfigError(f"unknown preset {shown(source)}", remedy=suggest(source, preset_names()))
