"""Settings: each is declared once, with its key, parser, default, bounds and help.

    class RingSettings(Section):
        ring_max = setting("ring.max", parse_bytes, 256 << 20, "maximum size of the event ring",
                           minimum=1 << 20, shim="ring_max")

A `Section` holds the values of the settings that its class declares; a value reads as an attribute
of the parser's type. The configuration is a section (pasta/config.py), and every backend and
framework may have another one. Files, `--set`, command-line options, `pasta tools --settings`,
docs/settings.md and what libpasta reads all come from these declarations.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable
from typing import Any, ClassVar, Generic, Protocol, TypeVar, overload

from pasta.errors import ConfigError, shown
from pasta.quantities import BYTES, NANOSECONDS, scaled

T = TypeVar("T")
S = TypeVar("S", bound="Section")

#: Bytes by unit; a letter alone is binary.
_SIZES = {**BYTES, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
#: Milliseconds by unit; seconds without one.
_MILLISECONDS = {unit: NANOSECONDS[unit] // 10**6 for unit in ("ms", "s", "min", "")}
#: Upper bounds: larger values are rejected here, so that no other code handles them.
MAX_COUNT = 10**18
MAX_BYTES = 2**60
MAX_MILLISECONDS = 10**12
MAX_PATH, MAX_NAME, MAX_TEXT = 3500, 200, 10_000
_MIN_PERIOD, _MAX_PERIOD = 1e-6, 10**9
#: Shortest recording window.
_MIN_RECORDED_SECONDS = 0.01
_TRUE, _FALSE = {"true", "yes", "on", "1"}, {"false", "no", "off", "0"}


# ---- parsers of TOML values and texts; the ValueError describes the accepted values --------------


def parse_bytes(value: object) -> int:
    """Bytes from a number or a text such as "256MiB". Raises ValueError."""
    found = scaled(_text(value), _SIZES)
    if found is None:
        raise ValueError('a size such as 4096, "4KiB" or "256MiB"')
    return found


def parse_milliseconds(value: object) -> int:
    """Milliseconds from seconds or a text such as "500ms". Raises ValueError."""
    found = scaled(_text(value), _MILLISECONDS)
    if found is None:
        raise ValueError('a duration such as 2, "500ms" or "10s"')
    return found


def parse_bool(value: object) -> bool:
    """Truth from a boolean or one of true/false, yes/no, on/off. Raises ValueError."""
    text = _text(value).lower()
    if text not in _TRUE | _FALSE:
        raise ValueError("true or false")
    return text in _TRUE


def parse_count(value: object) -> int:
    """A whole number, 0 or more. Raises ValueError."""
    if isinstance(value, bool) or not re.fullmatch(r"\d{1,20}", _text(value), re.ASCII):
        raise ValueError("a whole number, 0 or more")
    return int(_text(value))


def parse_recording_window(value: object) -> str:
    """Part of the run that is recorded, as "seconds 1/10" or "steps 1/10". Raises ValueError."""
    problem = ValueError('"seconds 1/10", of at least 0.01 seconds, or "steps 1/100"')
    try:
        window = parse_window(value)
    except ValueError:
        raise problem from None
    unit, _, numbers = window.partition(" ")
    # in shorter ones profiling would switch all the time
    short = unit == "seconds" and float(numbers.split("/")[0]) < _MIN_RECORDED_SECONDS
    if unit == "launches" or short:
        raise problem
    return window


def native_window(window: str) -> str:
    """A window that `parse_window` returned, for libpasta: unit, length and period; seconds in
    ns."""
    unit, _, numbers = window.partition(" ")
    scale = 10**9 if unit == "seconds" else 1
    length, period = (round(float(number) * scale) for number in numbers.split("/"))
    return f"{unit} {length} {period}"


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
    if not parts or not _MIN_PERIOD <= float(parts[1]) <= float(parts[2]) < _MAX_PERIOD:
        raise ValueError('"launches 100/1000", "steps 1/100" or "seconds 1/60"')
    return f"{parts[0]} {parts[1]}/{parts[2]}"


def parse_budget(value: object) -> float:
    """A share above 0 from a number or a text such as "20%". A text above 1 needs the sign: "20" is
    hardly meant as 2000 %. Raises ValueError."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(%?)\s*", _text(value), re.ASCII)
    share = float(match[1]) / (100 if match[2] else 1) if match else 0.0
    meant = share <= 1 or not isinstance(value, str) or "%" in value
    if not meant or not 0.001 <= share <= 1000:
        raise ValueError('a share such as "20%" or 0.2, at least 0.1%')
    return share


def parse_names(value: object) -> str:
    """Comma-separated names, from a text or a list. Raises ValueError."""
    texts = value if isinstance(value, list) else _text(value).split(",")
    names = [_text(text).strip() for text in texts]
    if sum(map(len, names)) > MAX_TEXT or not all(
        re.fullmatch(r"[\w:.\[\]]+", name, re.ASCII) for name in names if name
    ):
        raise ValueError('names such as "SQ_WAVES,GRBM_COUNT"')
    return ",".join(dict.fromkeys(name for name in names if name))


#: Values of the setting `host.call_paths`, and what each records the stacks of.
CALL_PATHS = ("launches", "allocations", "copies", "waits")
#: Values of the setting `host.unwind`.
UNWIND = ("auto", "frame_pointers", "eh_frame")


def parse_call_paths(value: object) -> str:
    """Work whose call paths are recorded: some of CALL_PATHS, or "all". Raises ValueError."""
    texts = value if isinstance(value, list) else _text(value).split(",")
    names = [name for name in (_text(text).strip() for text in texts) if name]
    if names == ["all"]:
        return ",".join(CALL_PATHS)
    if not set(names) <= set(CALL_PATHS):
        raise ValueError(f'some of {", ".join(CALL_PATHS)}, or "all"')
    return ",".join(name for name in CALL_PATHS if name in names)


def parse_unwind(value: object) -> str:
    """How stacks are walked: one of UNWIND. Raises ValueError."""
    if _text(value) not in UNWIND:
        raise ValueError(f"one of {', '.join(UNWIND)}")
    return _text(value)


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
        raise ValueError("a regular expression (not a string)")
    if len(value) > MAX_TEXT or not set(value).isdisjoint("\0\n"):
        raise ValueError(f"a regular expression of one line, at most {MAX_TEXT:,} characters")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # future changes of character sets
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
    """A value as text; empty for huge integers, which Python does not convert."""
    return "" if isinstance(value, int) and value.bit_length() > 1000 else str(value)


_UPPER_BOUNDS: dict[Callable[[object], Any], int] = {
    parse_bytes: MAX_BYTES,
    parse_count: MAX_COUNT,
    parse_milliseconds: MAX_MILLISECONDS,
}


# ---- declarations --------------------------------------------------------------------------------


class CommandOption:
    """The command-line option of a setting: its names; errors show the first.

    With a `metavar` it takes a value; without one, it is a flag that sets `value`. `help` defaults
    to the help of the setting.
    """

    def __init__(
        self, *names: str, metavar: str | None = None, help: str = "", value: object = True
    ) -> None:
        self.names, self.metavar, self.help, self.value = names, metavar, help, value


class Setting(Generic[T]):
    """One declared setting; reads as its value on an instance of its section.

    `key`: its place in TOML. `minimum`, `maximum`: bounds. `shim`: the key by which libpasta reads
    it. `option`: its option of `pasta-preload`. `per_block`: `pasta.profile` may change it.
    """

    def __init__(
        self,
        key: str,
        parse: Callable[[object], T],
        default: T,
        help: str,
        minimum: int,
        maximum: int | None,
        shim: str,
        option: CommandOption | None,
        per_block: bool,
    ) -> None:
        self.key, self.parse, self.default, self.help = key, parse, default, help
        first, dot, _ = key.partition(".")
        #: The key's part before the first dot; empty for a key without one.
        self.section = first if dot else ""
        #: The key as an identifier, by which run.json has the settings of extensions.
        self.name = key.replace(".", "_").replace("-", "_")
        self.minimum = minimum
        self.maximum = maximum if maximum is not None else _UPPER_BOUNDS.get(parse)
        self.shim, self.option, self.per_block = shim, option, per_block
        self.attribute = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self.attribute = name

    @overload
    def __get__(self, section: None, owner: type) -> Setting[T]: ...
    @overload
    def __get__(self, section: Section, owner: type) -> T: ...
    def __get__(self, section: Section | None, owner: type) -> Setting[T] | T:
        if section is None:
            return self
        value: T = section._values.get(self.attribute, self.default)
        return value

    def __set__(self, section: Section, value: T) -> None:
        section._values[self.attribute] = value

    def parsed(self, value: object) -> T:
        """The parsed value, within bounds. Raises ValueError with a description of accepted
        values."""
        found: Any = self.parse(value)
        low, high = self.minimum, self.maximum
        if high is not None and found is not None and not low <= found <= high:
            raise ValueError(f"within {self.written(low)} to {self.written(high)}")
        return found  # type: ignore[no-any-return]

    def written(self, value: object) -> str:
        """A value in the notation of users."""
        if self.parse is parse_milliseconds and isinstance(value, int):
            return f"{value / 1000:g}s"
        for letter, power in (("EiB", 60), ("GiB", 30), ("MiB", 20), ("KiB", 10)):
            if self.parse is parse_bytes and isinstance(value, int) and value:
                multiple, rest = divmod(value, 1 << power)
                if not rest:
                    return f"{multiple}{letter}"
        if isinstance(value, bool):
            return str(value).lower()
        return "" if value is None else str(value)


def setting(
    key: str,
    parse: Callable[[object], T],
    default: T,
    help: str,
    *,
    minimum: int = 0,
    maximum: int | None = None,
    shim: str = "",
    option: CommandOption | None = None,
    per_block: bool = False,
) -> Setting[T]:
    """Declares a setting in the body of a `Section`."""
    return Setting(key, parse, default, help, minimum, maximum, shim, option, per_block)


class Section:
    """Values of the settings that its class declares; durations are milliseconds, sizes bytes."""

    settings: ClassVar[tuple[Setting[Any], ...]] = ()

    def __init_subclass__(cls) -> None:
        own = (each for each in vars(cls).values() if isinstance(each, Setting))
        cls.settings = (*cls.settings, *own)

    def __init__(self, **values: Any) -> None:
        unknown = values.keys() - {each.attribute for each in self.settings}
        if unknown:
            raise TypeError(f"unknown settings: {', '.join(sorted(unknown))}")
        self._values = dict(values)

    def assign(self, setting: Setting[Any], value: object, where: str) -> None:
        """Parses and sets a value of a declared setting. Raises ConfigError."""
        try:
            self._values[setting.attribute] = setting.parsed(value)
        except ValueError as error:
            raise ConfigError(f"{where}: {setting.key} = {shown(value)} is not {error}") from None

    def check(self) -> None:
        """Raises ConfigError for values that exclude each other."""

    def for_shim(self) -> dict[str, object]:
        """Values that libpasta reads, by its keys."""
        found: dict[str, object] = {}
        for each in self.settings:
            value = getattr(self, each.attribute)
            if each.shim:
                found[each.shim] = int(value) if isinstance(value, bool) else value
        return found


class Sections(Protocol):
    """A configuration, as backends and frameworks see it."""

    def of(self, section: type[S]) -> S:
        """The values of a section."""
