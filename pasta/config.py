"""The validated configuration: presets and TOML files, `--set`, and command-line options.

Errors name the file, the key and the accepted values.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from pasta import paths
from pasta.backends import BACKENDS
from pasta.backends.base import Backend
from pasta.errors import ConfigError, shown
from pasta.extensions import Extension, entry_points
from pasta.frameworks import FRAMEWORKS
from pasta.settings import (
    MAX_NAME,
    CommandOption,
    S,
    Section,
    Setting,
    parse_bool,
    parse_budget,
    parse_bytes,
    parse_call_paths,
    parse_count,
    parse_milliseconds,
    parse_path,
    parse_recording_window,
    parse_regex,
    parse_unwind,
    parse_window,
    setting,
)

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

_MAX_FILE = 1 << 20
_MAX_LINES = 2000
#: Values of the setting `backend` apart from names of backends.
AUTO, NONE = "auto", "none"


def extensions() -> list[Extension]:
    """Backends, including those of packages if already loaded, and frameworks."""
    return [*BACKENDS.known(), *FRAMEWORKS.known()]


#: Values of the setting `run.passes`.
ONE_PASS, AUTO_PASSES = "1", "auto"


def parse_passes(value: object) -> str:
    """How often the program runs: "1" or "auto". Raises ValueError."""
    text = str(value)
    if isinstance(value, bool) or text not in (ONE_PASS, AUTO_PASSES):
        raise ValueError(f"{ONE_PASS} or {AUTO_PASSES}")
    return text


def _backend_choices() -> str:
    return ", ".join([AUTO, *(each.name for each in BACKENDS.known()), NONE])


def parse_backend(value: object) -> str:
    """A backend's name, "auto" or "none". Raises ValueError."""
    if isinstance(value, str) and (value in (AUTO, NONE) or BACKENDS.find(value)):
        return value
    raise ValueError(f"one of {_backend_choices()}")


class Config(Section):
    """A validated configuration. Durations are milliseconds, sizes bytes.

    Settings of backends and frameworks are in separate sections: `config.of(TorchSettings)`.
    """

    kernel = setting(
        "filter.kernel",
        parse_regex,
        None,
        "only kernels whose name matches",
        per_block=True,
        option=CommandOption("-k", "--kernel-regex", metavar="REGEX"),
    )
    exclude = setting(
        "filter.exclude",
        parse_regex,
        None,
        "exclude kernels whose name matches",
        per_block=True,
        option=CommandOption("--exclude", metavar="REGEX"),
    )
    launch_skip = setting(
        "filter.launch-skip",
        parse_count,
        0,
        "skip the first N selected launches",
        per_block=True,
        option=CommandOption("--launch-skip", "-s", metavar="N"),
    )
    launch_count: Setting[int | None] = setting(
        "filter.launch-count",
        parse_count,
        None,
        "stop after N selected launches",
        per_block=True,
        option=CommandOption("--launch-count", metavar="N"),
    )
    range = setting(
        "filter.range",
        parse_regex,
        None,
        "only activity inside ranges that match",
        per_block=True,
        option=CommandOption("--range", metavar="REGEX"),
    )
    operator = setting(
        "filter.operator",
        parse_regex,
        None,
        "only activity inside matching framework operators",
        option=CommandOption("--operator", metavar="REGEX"),
    )
    module = setting(
        "filter.module",
        parse_regex,
        None,
        "only activity inside matching framework modules, and their gradients",
        option=CommandOption("--module", metavar="REGEX"),
    )
    backend = setting(
        "backend",
        parse_backend,
        AUTO,
        f"which accelerators: {_backend_choices()}",
        shim="backend",
        option=CommandOption("--backend", metavar="NAME"),
    )
    out = setting(
        "run.out",
        parse_path,
        "pasta-out/%n-%p",
        "run directory; %n program, %p pid, %h host, %r rank, %t time, %q{ENV}",
        per_block=True,
        option=CommandOption("-o", "--output", metavar="DIR"),
    )
    root = setting(
        "run.root",
        parse_path,
        "",
        "directory for the runs of all processes and ranks of a job, on all hosts",
        option=CommandOption("--root", metavar="DIR"),
    )
    force = setting(
        "run.force",
        parse_bool,
        False,
        "replace an existing run directory",
        per_block=True,
        option=CommandOption("--force-overwrite", "-f"),
    )
    events = setting("run.events", parse_bool, True, "record events as Parquet", per_block=True)
    modules = setting(
        "run.modules", parse_bool, False, "keep images of loaded modules", per_block=True
    )
    max_size = setting(
        "run.max-size",
        parse_bytes,
        0,
        "maximum size of recorded events: 2GiB; 0: unlimited",
        option=CommandOption("--max-size", metavar="SIZE"),
    )
    rotate = setting(
        "run.rotate",
        parse_bool,
        False,
        "at run.max-size drop the oldest events instead of the newest",
        option=CommandOption("--rotate"),
    )
    duration = setting(
        "run.duration",
        parse_milliseconds,
        0,
        "stop profiling after this time: 30s, 10min; 0: never",
        shim="duration_ms",
        option=CommandOption("--duration", metavar="TIME"),
    )
    window = setting(
        "run.window",
        parse_recording_window,
        "",
        'record parts of the run only: "seconds 1/10" is the first second of every ten',
        option=CommandOption("--window", metavar="WINDOW"),
    )
    live = setting(
        "run.live",
        parse_bool,
        False,
        "show current activity while the program runs",
        option=CommandOption("--live"),
    )
    start = setting(
        "run.start",
        parse_bool,
        True,
        "off: record nothing before pasta.start() or the program starts its own profiler",
        shim="start",
        option=CommandOption("--profile-from-start", metavar="on|off"),
    )
    children = setting(
        "run.children",
        parse_bool,
        True,
        "follow child processes",
        shim="children",
        option=CommandOption(
            "--no-children", help="profile only the launched process", value=False
        ),
    )
    passes = setting(
        "run.passes",
        parse_passes,
        ONE_PASS,
        (
            "number of passes over the program; auto: two if tools need one pass with probes and "
            "one without"
        ),
        option=CommandOption("--passes", metavar="1|auto"),
    )
    uvm_plan = setting(
        "run.uvm-plan",
        parse_path,
        "",
        "managed memory plan to apply in the program, as written by the tool uvm_advisor",
        option=CommandOption("--apply-uvm-plan", metavar="FILE"),
    )
    tool_timeout = setting(
        "run.tool-timeout",
        parse_milliseconds,
        60_000,
        "time limit for each call of a tool",
        per_block=True,
    )
    telemetry_interval = setting(
        "run.telemetry-interval",
        parse_milliseconds,
        100,
        "interval between samples of devices' power, clocks, temperature and memory; 0: none",
    )
    measures_roofs = setting(
        "run.measure-roofs",
        parse_bool,
        True,
        "measure the roofs of devices once, before the program starts, if a tool needs them",
    )
    host_rate = setting(
        "host.sample-rate",
        parse_count,
        0,
        "call stack samples per second of processor time of a host thread; 0: none",
        maximum=10_000,
        option=CommandOption(
            "--perf",
            help="sample the call stacks of the host's threads, 199 times per second",
            value=199,
        ),
    )
    call_paths = setting(
        "host.call_paths",
        parse_call_paths,
        "",
        "record the call paths of launches, allocations, copies, waits, or all of them",
        shim="call_paths",
        option=CommandOption("--call-paths", metavar="WORK"),
    )
    unwind = setting(
        "host.unwind",
        parse_unwind,
        "auto",
        "how stacks are walked: auto, frame_pointers, or eh_frame, which requires libunwind",
        shim="unwind",
    )
    call_paths_every = setting(
        "host.call_paths_every",
        parse_count,
        1,
        "record the call path of every N-th launch of each kernel",
        minimum=1,
        maximum=10**9,
        shim="call_paths_every",
    )
    ring_max = setting(
        "ring.max",
        parse_bytes,
        256 << 20,
        "maximum size of the event ring of a process",
        minimum=1 << 20,
        shim="ring_max",
    )
    ring_directory = setting(
        "ring.directory", parse_path, "", "directory for event rings; default: /dev/shm"
    )
    collector = setting(
        "python.collector",
        parse_bool,
        False,
        "run tools in a separate process, never in the program",
        shim="collector",
        option=CommandOption("--collector"),
    )
    embed_delay = setting(
        "python.embed-delay",
        parse_milliseconds,
        5_000,
        "delay before Python starts in the program",
        shim="embed_delay_ms",
    )
    exit_timeout = setting(
        "python.exit-timeout",
        parse_milliseconds,
        5_000,
        "maximum time to wait for Python when the program exits",
        shim="exit_timeout_ms",
    )
    probes_memory = setting(
        "probes.memory", parse_bytes, 256 << 20, "maximum device memory for probes"
    )
    probes_trace_memory = setting(
        "probes.trace-memory",
        parse_bytes,
        64 << 20,
        "page-locked memory per context for access records in flight",
    )
    probes_code_memory = setting(
        "probes.code-memory",
        parse_bytes,
        256 << 20,
        "shared memory for the code of modules, to detect accesses that probes miss; 0: none",
    )
    probes_sm = setting(
        "probes.sm",
        parse_count,
        0,
        "architecture to compile for, such as 90; default: all",
        maximum=999,
    )
    probes_window = setting(
        "probes.window", parse_window, "", 'when probes run: "launches 100/1000"'
    )
    probes_every = setting(
        "probes.every", parse_count, 1, "probe every N-th launch of each kernel", minimum=1
    )
    probes_sample = setting(
        "probes.sample", parse_bool, False, "probe a few launches of each shape instead of all",
        option=CommandOption("--sample"),
    )  # fmt: skip
    probes_enough = setting(
        "probes.enough",
        parse_count,
        3,
        "launches of each shape (kernel, module, grid, block, shared memory) that --sample "
        "and --overhead-budget probe",
        minimum=1,
        maximum=10**6,
    )
    probes_spot_check = setting(
        "probes.spot-check",
        parse_count,
        10_000,
        "launches per shape, in the mean, after which --sample probes one more of each; the "
        "distance doubles each time; 0: none",
        maximum=10**9,
    )
    probes_step_range = setting(
        "probes.step-range", parse_regex, None, "ranges whose full name matches are steps"
    )
    probes_overhead_budget = setting(
        "probes.overhead-budget", parse_budget, 0.0,
        "probe in windows that limit the overhead: 20%",
        option=CommandOption("--overhead-budget", metavar="SHARE"),
    )  # fmt: skip

    def __init__(
        self,
        *,
        tools: Iterable[str] = (),
        tool_paths: Iterable[str] = (),
        tool_options: Mapping[str, dict[str, Any]] | None = None,
        **values: Any,
    ) -> None:
        """`values` by the names of `document`. Raises TypeError for an unknown one."""
        super().__init__()
        self.tools, self.tool_paths = list(tools), list(tool_paths)
        self.tool_options = dict(tool_options or {})
        #: Where a tool ("NAME") or an option of one ("NAME.OPTION") was given, for errors.
        self.origins: dict[str, object] = {}
        self._extensions: dict[type[Section], Section] = {}
        places = self._places() if values else {}
        if values.keys() - places.keys():
            BACKENDS.installed()
            places = self._places()
        for name, value in values.items():
            if name not in places:
                raise TypeError(f"unknown setting {name}")
            section, found = places[name]
            setattr(section, found.attribute, value)

    def of(self, section: type[S]) -> S:
        """The values of a backend's or framework's section."""
        return cast("S", self._extensions.setdefault(section, section()))

    def sections(self) -> Iterator[Section]:
        """The configuration itself, and the sections of backends and frameworks."""
        yield self
        for each in extensions():
            if each.settings.settings:
                yield self.of(each.settings)

    def document(self) -> dict[str, Any]:
        """The configuration in JSON types, as in run.json and session.json."""
        return {
            "tools": self.tools,
            "tool_paths": self.tool_paths,
            "tool_options": self.tool_options,
            **{
                name: getattr(section, each.attribute)
                for name, (section, each) in self._places().items()
            },
        }

    def unlike(self, other: Config) -> list[Setting[Any]]:
        """Settings with other values than in another configuration."""
        document, others = self.document(), other.document()
        return [
            each for name, (_, each) in self._places().items() if document[name] != others[name]
        ]

    @property
    def probes_part(self) -> bool:
        """Whether probes run in a part of the selected launches."""
        every = max(1, self.probes_every)
        return bool(
            self.probes_sample or self.probes_window or self.probes_overhead_budget or every > 1
        )

    def backends(self) -> list[Backend]:
        """The backends that record; with "auto" the built-in ones."""
        if self.backend == AUTO:
            return BACKENDS.built_in()
        return [each for each in BACKENDS.known() if each.name == self.backend]

    def listens_to(self, backend: str) -> bool:
        """Whether a backend records."""
        return any(each.name == backend for each in self.backends())

    def set(self, key: str, value: object, where: str) -> None:
        """Sets `key` (dotted, as in TOML); `where` names the source in errors."""
        section, declared = self._declared(key)
        if section and declared:
            section.assign(declared, value, where)
            if declared.parse is parse_backend:
                self._claim_options()
            return
        tool, _, option = key.removeprefix("tool.").partition(".")
        if option and "." not in option and tool not in {each.section for each in all_settings()}:
            self.tool_options.setdefault(tool, {})[option] = value
            self.origins[f"{tool}.{option}"] = where
            return
        raise ConfigError(f"{where}: unknown key {shown(key)}", remedy=suggest_key(key))

    def _declared(self, key: str) -> tuple[Section, Setting[Any]] | tuple[None, None]:
        """A setting by its key, with the section that has its value."""
        found = (place for place in self._places().values() if place[1].key == key)
        return next(found, (None, None))

    def _claim_options(self) -> None:
        """Assigns settings of a newly loaded backend, whose keys were stored as options of a
        tool."""
        for section, each in self._places().values():
            values = self.tool_options.get(each.section, {})
            option = each.key.partition(".")[2]
            if option in values:
                where = self.origins.pop(each.key, each.key)
                section.assign(each, values.pop(option), str(where))
                if not values:
                    del self.tool_options[each.section]

    def _places(self) -> dict[str, tuple[Section, Setting[Any]]]:
        """Every setting with the section that has its value, by its name in `document`."""
        return {
            each.attribute if section is self else each.name: (section, each)
            for section in self.sections()
            for each in section.settings
        }

    def load(self, source: str) -> None:
        """Adds a preset by name or a TOML file by path. Raises ConfigError."""
        path = find_preset(source)
        text = _read(path)
        document = _parsed(path, text)
        for key in ("tools", "tool-path"):
            if not _is_texts(document.get(key, [])):
                raise ConfigError(
                    f"{Origin(path, text, key)}: {key} is not a list of strings such as "
                    '["kernel_freq"]'
                )
        for tool in document.pop("tools", []):
            self.tools.append(tool)
            self.origins[tool] = Origin(path, text, "tools")
        base = path.resolve().parent
        for directory in document.pop("tool-path", []):
            self.tool_paths.append(str(base / directory))
        for key, value in _flatten(document):
            self._set_typed(key, value, path, text)

    def _set_typed(self, key: str, value: object, path: Path, text: str) -> None:
        """Sets a key from a file, where booleans must not be text. Raises ConfigError."""
        _, setting = self._declared(key)
        try:
            if setting and setting.parse is parse_bool and not isinstance(value, bool):
                raise ConfigError(f"{path}: {key} = {shown(value)} is not true or false")
            self.set(key, value, str(path))
        except ConfigError as error:
            message = error.message.removeprefix(str(path))
            place = Origin(path, text, key)
            raise ConfigError(f"{place}{message}", remedy=error.remedy) from None
        tool_option = key.removeprefix("tool.")
        if tool_option in self.origins:
            self.origins[tool_option] = Origin(path, text, key)

    def add_tools(
        self,
        tools: Iterable[str],
        directories: Iterable[str | os.PathLike[str]] = (),
        where: str = "",
    ) -> None:
        """Adds tools and directories with tools. Files become absolute paths, as collectors run in
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


def all_settings() -> list[Setting[Any]]:
    """Every setting, those of backends and frameworks last."""
    return [each for _, each in Config()._places().values()]


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_FILE + 1)
        if len(content) > _MAX_FILE:
            raise ConfigError(
                f"{path}: larger than {_MAX_FILE >> 20} MiB, so not a configuration file"
            )
        return content.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read ({error})") from None


def _parsed(path: Path, text: str) -> dict[str, Any]:
    if sys.version_info >= (3, 11):  # deferred: most launches read no TOML
        import tomllib
    else:
        import tomli as tomllib
    try:
        document: dict[str, Any] = tomllib.loads(text)
        return document
    except (ValueError, RecursionError) as error:  # also for dates and long integers
        raise ConfigError(f"{path}: not valid TOML: {error}") from None


class Origin(NamedTuple):
    """The statement in a file that sets a (dotted) key; `FILE:LINE` as text."""

    path: Path
    content: str
    key: str

    def __str__(self) -> str:
        """Finds the statement in any notation: it follows the longest valid prefix of lines without
        the key, as a prefix is valid TOML unless it ends within a statement."""
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
    """Whether a value is a list of nonempty printable texts."""
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
    """A remedy for an unknown word: similar known ones, or all."""
    from difflib import get_close_matches

    names = sorted(known)
    close = get_close_matches(word[:MAX_NAME], names, n=3)
    return f"did you mean {' or '.join(close)}?" if close else f"known names: {', '.join(names)}"


def suggest_key(key: str) -> str:
    """A remedy for an unknown key of a file or of --set."""
    known = [each.key for each in all_settings()] + ["tools", "tool-path", "tool.NAME.OPTION"]
    if key in ("tools", "tool-path"):
        return "set it with -t or --tool-path"
    remedy = suggest(key, known)
    return remedy if remedy.startswith("did") else "pasta tools --settings lists all settings"


#: Entry points of packages with presets: a preset's name, and the module with NAME.toml beside it.
PRESETS = "pasta.presets"


def preset_names(*, installed: bool = False) -> list[str]:
    """Names of the built-in presets; `installed`: and of those in packages."""
    names = {path.stem for path in paths.presets().glob("*.toml")}
    if installed:
        names.update(point.name for point in entry_points(PRESETS))
    return sorted(names)


def find_preset(source: str) -> Path:
    """Path of a preset name or TOML file. Raises ConfigError."""
    if source.endswith(".toml") or "/" in source:
        if os.path.isfile(source):
            return Path(source)
        raise ConfigError(f"{shown(source, 200)[1:-1]}: no such configuration file")
    if source in preset_names():
        return paths.presets() / f"{source}.toml"
    for point in entry_points(PRESETS):
        if point.name == source:
            return _preset_of(point)
    remedy = suggest(source, preset_names(installed=True))
    raise ConfigError(f"unknown preset {shown(source)}", remedy=remedy)


def _preset_of(point: EntryPoint) -> Path:
    """The file of a package's preset. Raises ConfigError."""
    try:
        module = point.load()
        path = Path(module.__file__).with_name(f"{point.name}.toml")
    except Exception as error:
        why = f"{point.value} cannot be loaded: {type(error).__name__}: {error}"
    else:
        if path.is_file():
            return path
        why = f"{path} does not exist"
    raise ConfigError(
        f"preset {point.name}: {why}", remedy="repair or remove the package that provides it"
    )
