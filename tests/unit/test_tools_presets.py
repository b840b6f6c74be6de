"""Each built-in preset names tools that exist, with options they accept."""

from __future__ import annotations

from pathlib import Path

import pytest

from pasta.backends.nvidia import Nvidia, NvidiaSettings
from pasta.config import Config, preset_names
from pasta.errors import ToolError
from pasta.plugins import built_in_names, load_tools
from pasta.runtime.passes import narrowed, split

OURS = [
    "kernel_freq",
    "event_trace",
    "memory_timeline",
    "copies",
    "operators",
    "tensors",
    "pc_samples",
    "counters",
    "utilization",
    "collectives",
    "telemetry",
    "object_lifetimes",
    "code_check",
    "allocator",
]


@pytest.mark.parametrize("preset", [*OURS, "all", "events"])
def test_preset_is_accepted(preset: str) -> None:
    config = Config()
    config.load(preset)
    tools = load_tools(config.tools, config.tool_options, config.tool_paths)
    assert tools
    if preset in OURS:
        (tool,) = tools
        assert tool.name == preset
        written = config.tool_options[preset]
        defaults = {name: option.default for name, option in tool.options().items()}
        assert {name: getattr(tool, name) for name in written} == {
            name: defaults[name] for name in written
        }


def test_preset_of_tensor_stalls_runs_the_program_twice() -> None:
    config = Config()
    config.load("tensor_stalls")
    tools = load_tools(config.tools, config.tool_options, config.tool_paths)
    assert [tool.name for tool in tools] == ["pc_samples", "tensor_stalls"]
    assert (config.passes, config.modules) == ("auto", True)
    defaults = {name: option.default for name, option in tools[1].options().items()}
    assert config.tool_options["tensor_stalls"] == {
        name: defaults[name] for name in config.tool_options["tensor_stalls"]
    }
    for mode, kept in (("accesses", "tensor_stalls"), ("stalls", "pc_samples")):
        config.tool_options["tensor_stalls"]["mode"] = mode
        tools = load_tools(config.tools, config.tool_options, config.tool_paths)
        _, narrow = narrowed(config, tools)
        assert [tool.name for tool in narrow] == [kept]
    with pytest.raises(ToolError, match="do not allow"):
        load_tools(["tensor_stalls"], {"tensor_stalls": {"mode": "kernel_replay"}}, [])


def test_the_pass_with_accesses_does_not_ask_for_what_the_other_one_records(tmp_path: Path) -> None:
    config = Config()
    config.load("tensor_stalls")
    settings = config.of(NvidiaSettings)
    settings.pc_sampling, settings.uvm = "1024cycles", True
    tools = load_tools(config.tools, config.tool_options, config.tool_paths)
    passes = split(config, tools, tmp_path)
    times, accesses = (each.config.of(NvidiaSettings) for each in passes)
    assert (times.pc_sampling, times.uvm) == ("1024cycles", True)
    assert (accesses.pc_sampling, accesses.counters, accesses.uvm) == ("", "", False)


@pytest.mark.parametrize(
    ("mode", "interval"), [("continuous", "32768cycles"), ("serialized", "4096cycles")]
)
def test_the_default_interval_of_samples_suits_their_mode(mode: str, interval: str) -> None:
    config = Config()
    settings = config.of(NvidiaSettings)
    settings.pc_sampling_mode = mode
    Nvidia().adapt(config, {"pc_sample"})
    assert settings.pc_sampling == interval


def test_a_tool_of_both_passes_is_reason_enough_for_two(tmp_path: Path) -> None:
    config = Config()
    config.load("uvm_advisor")
    config.tool_options["uvm_advisor"]["advised"] = 3
    tools = load_tools(config.tools, config.tool_options, config.tool_paths)
    times, accesses = split(config, tools, tmp_path)
    assert [each.config.tools for each in (times, accesses)] == [["uvm_advisor"]] * 2
    for each in (times, accesses):
        assert [tool.name for tool in each.tools] == ["uvm_advisor"]
        assert each.config.tool_options["uvm_advisor"]["advised"] == 3
    assert times.config.of(NvidiaSettings).uvm and not accesses.config.of(NvidiaSettings).uvm
    assert not config.of(NvidiaSettings).uvm
    others = Config()
    others.add_tools(["kernel_freq", "access_count"])
    tools = load_tools(others.tools, others.tool_options, others.tool_paths)
    assert not any(each.config.of(NvidiaSettings).uvm for each in split(others, tools, tmp_path))


def test_each_tool_has_a_preset() -> None:
    assert set(OURS) <= set(preset_names()) & set(built_in_names())


def test_preset_all_omits_tools_that_need_settings_or_keep_every_access() -> None:
    config = Config()
    config.load("all")
    others = {"mem_trace", "record_accesses", "uvm_advisor", "counters", "pc_samples"}
    others |= {
        "host_samples",
        "instructions",
        "block_schedule",
        "pc_dependency",
        "tensor_stalls",
        "values",
    }
    assert sorted(config.tools) == sorted(set(built_in_names()) - others)
