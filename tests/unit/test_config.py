"""Settings: every way in goes through one table, and errors name file, key and remedy."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pasta import paths
from pasta.cli import preload
from pasta.config import Config, all_settings, find_preset, preset_names
from pasta.errors import ConfigError, ToolError
from pasta.frameworks.torch import TorchSettings
from pasta.plugins import load_tools
from pasta.settings import parse_bytes, parse_interval, parse_milliseconds, parse_names
from tests.campaigns import configurations
from tests.support.packages import install_metadata


@pytest.mark.parametrize(
    ("text", "value"),
    [("4096", 4096), ("4KiB", 4096), ("1 MiB", 1 << 20), ("1.5GiB", 3 << 29), ("2MB", 2_000_000)],
)
def test_sizes(text: object, value: int) -> None:
    assert parse_bytes(text) == value


@pytest.mark.parametrize(
    ("text", "value"), [("500ms", 500), ("10s", 10_000), (2, 2000), ("1min", 60_000)]
)
def test_durations(text: object, value: int) -> None:
    assert parse_milliseconds(text) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("SQ_WAVES", "SQ_WAVES"),
        (" SQ_WAVES, GRBM_COUNT ,SQ_WAVES,", "SQ_WAVES,GRBM_COUNT"),
        (["A", "B:x[0]"], "A,B:x[0]"),
        ("", ""),
    ],
)
def test_names(text: object, value: str) -> None:
    assert parse_names(text) == value


@pytest.mark.parametrize("text", ["A B", "A\nsession=/tmp", "A;B", ["A,B"]])
def test_invalid_names(text: object) -> None:
    with pytest.raises(ValueError, match="names such as"):
        parse_names(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [("100us", "100us"), (" 2 ms ", "2ms"), ("65536 cycles", "65536cycles"), ("", "")],
)
def test_intervals(text: object, value: str) -> None:
    assert parse_interval(text) == value


@pytest.mark.parametrize("text", ["0us", "100", "1.5ms", "-1us", "100us\nx", "1s"])
def test_invalid_intervals(text: object) -> None:
    with pytest.raises(ValueError, match="an interval such as"):
        parse_interval(text)


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        (f"ring.max={'9' * 400}", "is not a size such as 4096"),
        ("ring.max=1000GIB", None),
        ("ring.max=4KiB", "ring.max = '4KiB' is not within 1MiB to 1EiB"),
        ("ring.max=99999999999GiB", "is not within 1MiB to 1EiB"),
        ("run.duration=99999999999min", "is not within 0s to 1e+09s"),
        ("probes.every=0", "is not within 1 to 1000000000000000000"),
        ("probes.window=seconds 0.0000000001/1", 'is not "launches 100/1000"'),
        (f"run.out={'x' * 300}", "is not a path of at most 3,500 bytes, 200 in each name"),
        (f"run.out={'a/' * 2500}", "is not a path of at most"),
        ("run.out=a\nb", "is not a path"),
        ("filter.kernel=a{99999999999}", "is not a regular expression (the repetition"),
        (f"filter.kernel={'(' * 3000}{')' * 3000}", "is not a regular expression"),
        ("filter.kernel=[[:alpha:]]", None),
    ],
)
def test_values_have_bounds(assignment: str, message: str | None) -> None:
    config = Config()
    if message is None:
        config.set_text(assignment)
        return
    with pytest.raises(ConfigError) as error:
        config.set_text(assignment)
    assert message in str(error.value)
    assert len(str(error.value)) < 500


@pytest.mark.slow
def test_no_configuration_gives_a_traceback() -> None:
    """A few seconds of `python -m tests.campaigns configurations`."""
    arguments = argparse.Namespace(count=420, commands=0, seed=3)
    assert [row.what for row in configurations.run(arguments) if row.failed] == []


@given(st.text())
def test_no_text_makes_a_parser_crash(text: str) -> None:
    for setting in all_settings():
        try:
            setting.parse(text)
        except ValueError as error:
            assert str(error), setting.key


def test_keys_and_names_are_unique() -> None:
    settings = all_settings()
    assert len({each.key for each in settings}) == len(settings)
    assert len(Config().document()) == len(settings) + len(("tools", "tool_paths", "tool_options"))


def test_a_configuration_goes_through_json() -> None:
    config = Config(tools=["copies"], ring_max=1 << 20)
    config.set_text("torch.frames=7")
    config.set_text("amd.counters=SQ_WAVES")
    again = Config(**json.loads(json.dumps(config.document())))
    assert again.document() == config.document()
    assert again.of(TorchSettings).frames == 7
    assert again.document()["amd_counters"] == "SQ_WAVES"
    with pytest.raises(TypeError, match="unknown setting nowhere_none"):
        Config(nowhere_none=1)


def test_toml_sets_and_nested_tables(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(
        'tools = ["copies"]\ntool-path = ["tools"]\n[filter]\nkernel = "gemm"\nlaunch-count = 5\n'
        '[ring]\nmax = "64MiB"\n[tool.copies]\ntop = 3\n'
    )
    config = Config()
    config.load(str(file))
    assert config.tools == ["copies"]
    assert config.tool_paths == [str(tmp_path / "tools")]
    assert (config.kernel, config.launch_count, config.ring_max) == ("gemm", 5, 64 << 20)
    assert config.tool_options == {"copies": {"top": 3}}


def test_set_and_its_shorthand_for_tool_options() -> None:
    config = Config()
    config.set_text("run.events=false")
    config.set_text("tool.kernel_freq.top=5")
    config.set_text("copies.top=6")
    assert config.events is False
    assert config.tool_options == {"kernel_freq": {"top": "5"}, "copies": {"top": "6"}}


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("ring.mx=1", "unknown key 'ring.mx': did you mean ring.max?"),
        ("ring.max=much", "ring.max = 'much' is not a size"),
        ("filter.kernel=(", "filter.kernel = '(' is not a regular expression"),
        ("filter.launch-skip=-1", "is not a whole number, 0 or more"),
        ("run.events=maybe", "is not true or false"),
        ("ring.max", "not of the form key=value"),
        ("=1", "not of the form key=value"),
    ],
)
def test_a_wrong_assignment_is_named(assignment: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        Config().set_text(assignment)
    assert message in str(error.value)
    assert "--set" in str(error.value)


def test_wrong_toml_names_file_and_key(tmp_path: Path) -> None:
    file = tmp_path / "wrong.toml"
    file.write_text("[ring]\nmax = -3\n")
    with pytest.raises(ConfigError, match=r"wrong\.toml:2: ring\.max = -3 is not a size"):
        Config().load(str(file))
    file.write_text("tools = 3\n")
    with pytest.raises(ConfigError, match=r"wrong\.toml:1: tools is not a list of strings"):
        Config().load(str(file))
    file.write_text("a = = b")
    with pytest.raises(ConfigError, match="not valid TOML"):
        Config().load(str(file))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("\n# x\n[run]\nlive = 'yes'", ":4: run.live = 'yes' is not true or false"),
        ("[run]\nevents = 1", ":2: run.events = 1 is not true or false"),
        ("[run]\nout = [1]", ":2: run.out = [1] is not a path"),
        ("run.out = 1", ":1: run.out = 1 is not a path"),
        ("run = {force = true, out = 1}", ":1: run.out = 1 is not a path"),
        ("'ring.max' = 'x'", ":1: ring.max = 'x' is not a size"),
        ('[filter]\nkernel = """\na\n"""\nrange = "("', ":2: filter.kernel = "),
        ('[filter]\nexclude = """a"""\n\nrange = \\\n', ": not valid TOML: "),
        ("tool-path = [\n1,\n]", ":1: tool-path is not a list of strings"),
        ("x = 1\n", ":1: unknown key 'x': pasta tools --settings"),
        ("\n\ntols = ['copies']", ":3: unknown key 'tols': did you mean tools?"),
        ("tool-paths = []", ":1: unknown key 'tool-paths': did you mean tool-path"),
        ("backand = 'amd'", ":1: unknown key 'backand': did you mean backend?"),
        ("a = " + "[" * 5000, ": not valid TOML: "),
        ("a = " + "9" * 5000, ": not valid TOML: "),
        ("ring.max = 0x" + "f" * 9000, ":1: ring.max = a number too long to show is not a size"),
        ("a" + ".a" * 3000 + " = 1", ":1: unknown key "),
    ],
)
def test_wrong_toml_names_file_and_line(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "wrong.toml"
    file.write_text(text)
    with pytest.raises(ConfigError) as error:
        Config().load(str(file))
    assert str(error.value).startswith(f"{file}{message}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("\ntools = ['kernel_frek']", ":2: there is no tool 'kernel_frek': did you mean kernel_fr"),
        ("[tool.copies]\n\ntop = 'x'", ":3: tool copies: top = 'x' is not accepted: use an int"),
        (
            "event_trace.operators = 'yes'\ntools = ['event_trace']",
            ":1: tool event_trace: operators = 'yes' is not accepted: use true or false",
        ),
        ("copies.tip = 1", ":1: tool copies has no option 'tip': did you mean top?"),
        ("copys.top = 1", ":1: there is no tool 'copys': did you mean copies?"),
        ("[filtr]\nkernel = 'x'", ":2: unknown key 'filtr.kernel': did you mean filter.kernel"),
    ],
)
def test_wrong_tools_and_options_name_file_and_line(tmp_path, text: str, message: str) -> None:
    file = tmp_path / "wrong.toml"
    file.write_text(text)
    config = Config()
    config.load(str(file))
    config.add_tools(["copies"], where="-t")
    with pytest.raises(ToolError) as error:
        load_tools(config.tools, config.tool_options, config.tool_paths, config.origins)
    assert str(error.value).startswith(f"{file}{message}")


def test_unknown_preset_and_missing_file() -> None:
    with pytest.raises(ConfigError, match=r"unknown preset 'copyes': did you mean copies"):
        find_preset("copyes")
    with pytest.raises(ConfigError, match="no such configuration file"):
        find_preset("nowhere/x.toml")


def test_presets_of_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "their_presets"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "theirs.toml").write_text('# Theirs.\ntools = ["copies"]\n')
    install_metadata(
        tmp_path,
        "their-presets",
        "[pasta.presets]\ntheirs = their_presets\nlost = their_presets\nbroken = nothing_here\n"
        "copies = their_presets\n",
    )
    monkeypatch.syspath_prepend(tmp_path)
    config = Config()
    config.load("theirs")
    assert config.tools == ["copies"]
    assert {"theirs", "lost", "broken"} <= set(preset_names(installed=True))
    assert "theirs" not in preset_names()
    assert find_preset("copies") == paths.presets() / "copies.toml"  # PASTA's own come first
    with pytest.raises(ConfigError, match=r"preset lost: .*/lost\.toml does not exist"):
        find_preset("lost")
    with pytest.raises(ConfigError, match="preset broken: nothing_here cannot be loaded"):
        find_preset("broken")
    with pytest.raises(ConfigError, match="did you mean theirs"):
        find_preset("their")


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_loads(name: str) -> None:
    config = Config()
    config.load(name)
    assert config.tools


@pytest.mark.parametrize(
    ("options", "rate"),
    [
        (["--perf"], 199),
        (["--perf", "--set", "host.sample-rate=999"], 999),
        (["--set", "host.sample-rate=999", "--perf"], 999),
    ],
)
def test_a_flag_gives_way_to_a_value(options: list[str], rate: int) -> None:
    config, _ = preload.configure(preload.parse([*options, "program"]))
    assert config.host_rate == rate
