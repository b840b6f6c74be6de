"""AMD devices for `pasta doctor`: from the kernel driver, with the SDK's services on each.

The driver's files: https://docs.kernel.org/gpu/amdgpu (KFD topology). The SDK's functions as
rocprofiler-sdk 0.5 and 1.x document them (agent.h, counters.h, pc_sampling.h).
"""

from __future__ import annotations

import grp
import json
import os
from dataclasses import dataclass, field
from pathlib import Path

from pasta.backends.amd.rocprofiler import SAMPLING, answer_of
from pasta.errors import MissingDependency

TOPOLOGY = Path("/sys/class/kfd/kfd/topology/nodes")
_LIST_SECONDS = 60

# Runs in another process, which the SDK may abort. Agents begin with their size, a 64-bit id and a
# 32-bit type, 2 for GPUs. Sampling configurations begin with their size in newer versions; in older
# ones with method and unit, which is never 0.
_LIST = """
import ctypes, json, sys
C = ctypes
sdk = C.CDLL(sys.argv[1], C.RTLD_GLOBAL)

class Handle(C.Structure):
    _fields_ = [("handle", C.c_uint64)]

class Agent(C.Structure):
    _fields_ = [("size", C.c_uint64), ("id", Handle), ("type", C.c_uint32)]

class Counter(C.Structure):
    _fields_ = [("id", Handle), ("name", C.c_char_p), ("description", C.c_char_p),
                ("block", C.c_char_p), ("expression", C.c_char_p), ("flags", C.c_uint64)]

GPU, VERSION_0 = 2, 1
METHODS = {1: "stochastic", 2: "host trap"}
UNITS = {1: "instructions", 2: "cycles", 3: "us"}
P = C.c_void_p
gpus = []

@C.CFUNCTYPE(C.c_int, C.c_int, C.POINTER(C.POINTER(Agent)), C.c_size_t, P)
def on_agents(version, agents, count, user):
    for agent in agents[:count]:
        if agent.contents.type == GPU:
            gpus.append({"id": agent.contents.id.handle, "counters": [], "sampling": []})
    return 0

status = sdk.rocprofiler_query_available_agents(VERSION_0, on_agents, C.c_size_t(24), None)
if status:
    sys.exit(f"rocprofiler_query_available_agents failed with {status}")

@C.CFUNCTYPE(C.c_int, Handle, C.POINTER(Handle), C.c_size_t, P)
def on_counters(agent, counters, count, user):
    for counter in counters[:count]:
        info = Counter()
        if not sdk.rocprofiler_query_counter_info(counter, VERSION_0, C.byref(info)) and info.name:
            gpu["counters"].append(info.name.decode(errors="replace"))
    return 0

@C.CFUNCTYPE(C.c_int, P, C.c_size_t, P)
def on_sampling(configurations, count, user):
    at = configurations
    for _ in range(count):
        size = C.c_uint64.from_address(at).value
        begin, step = (at + 8, size) if 0 < size < 1 << 16 else (at, 32)
        method, unit = (C.c_uint32 * 2).from_address(begin)
        least, most = (C.c_uint64 * 2).from_address(begin + 8)
        way = METHODS.get(method, str(method))
        gpu["sampling"].append([way, least, most, UNITS.get(unit, "?")])
        at += step
    return 0

for gpu in gpus:
    agent = Handle(gpu.pop("id"))
    if hasattr(sdk, "rocprofiler_iterate_agent_supported_counters"):
        sdk.rocprofiler_iterate_agent_supported_counters(agent, on_counters, None)
    if hasattr(sdk, "rocprofiler_query_pc_sampling_agent_configurations"):
        sdk.rocprofiler_query_pc_sampling_agent_configurations(agent, on_sampling, None)
answer(json.dumps(gpus))
"""


@dataclass(frozen=True)
class Device:
    """A GPU as the kernel driver reports it."""

    node: int
    architecture: str  # such as "gfx942"
    name: str
    bytes: int  # of its memory; 0 if it has none or this is unknown


@dataclass(frozen=True)
class Offer:
    """Services of the SDK on one GPU."""

    counters: list[str] = field(default_factory=list)
    #: Method, shortest and longest interval, and their unit.
    sampling: list[tuple[str, int, int, str]] = field(default_factory=list)


def devices(topology: Path = TOPOLOGY) -> list[Device]:
    """GPUs in the order of their nodes; none without a readable driver."""
    nodes = [path for path in topology.glob("[0-9]*") if path.name.isdigit()]
    found = []
    for path in sorted(nodes, key=lambda path: int(path.name)):
        values = _properties(path / "properties")
        if values.get("simd_count", 0):
            banks = sorted(path.glob("mem_banks/[0-9]*/properties"))
            memory = sum(_properties(bank).get("size_in_bytes", 0) for bank in banks)
            architecture = _architecture(values.get("gfx_target_version", 0))
            found.append(Device(int(path.name), architecture, _line(path / "name"), memory))
    return found


def _properties(path: Path) -> dict[str, int]:
    """Values by name, from a driver's file of lines "name value"."""
    try:
        pairs = (line.split() for line in path.read_text().splitlines())
    except OSError:  # a device of another container
        return {}
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}


def _line(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _architecture(version: int) -> str:
    """90402 is gfx942, 90010 gfx90a: major, minor and stepping, the last two in hexadecimal."""
    major, minor, stepping = version // 10000, version // 100 % 100, version % 100
    return f"gfx{major}{minor:x}{stepping:x}" if version else "unknown"


def groups_of(paths: list[Path]) -> list[str]:
    """Groups whose members can open the files, except the groups of this process."""
    mine = {*os.getgroups(), os.getegid()}
    wanted = {path.stat().st_gid for path in paths if not os.access(path, os.R_OK | os.W_OK)}
    return sorted(_group(number) for number in wanted - mine)


def _group(number: int) -> str:
    try:
        return grp.getgrgid(number).gr_name
    except KeyError:
        return str(number)


def offers(library: Path) -> list[Offer]:
    """Services of the SDK on each GPU. Raises MissingDependency if the query fails."""
    try:
        found = json.loads(answer_of(library, _LIST, _LIST_SECONDS, **{SAMPLING: "1"}))
        return [Offer(gpu["counters"], [tuple(each) for each in gpu["sampling"]]) for gpu in found]
    except (OSError, ValueError, KeyError) as error:
        raise MissingDependency(f"{library} does not report its services ({error})") from None
