"""Code for a vendor or framework is only in its folders."""

from __future__ import annotations

import re
import subprocess

import pytest

from tests.support.places import ROOT

VENDORS = re.compile(
    r"(?i:nvidia|cuda|cupti|pynvml|compute.sanitizer|\bamd|rocm|rocprof|refacc)|\bcu[A-Z]|\bhip[A-Z]"
)
FRAMEWORKS = re.compile(r"torch(?!run)|aten::|\bjax|\bxla", re.IGNORECASE)
#: Files that may name vendors, with the reason; a trailing slash means all files of a folder.
VENDORS_IN = {
    "pasta/backends/": "their folders",
    "pasta/frameworks/jax/": "JAX's devices are vendors'",
    "pasta/frameworks/torch/": "PyTorch's devices are vendors'",
    "pasta/sass/": "SASS is NVIDIA's instruction set, and its disassembler is NVIDIA's",
    "pasta/_native/__init__.py": "lists what is built",
    "pasta/testing.py": "events of tests are the reference accelerator's unless they say otherwise",
    "pasta/processors/tensors.py": "names PyTorch's method Module.cuda()",
    "pasta/report/exports/memory_snapshot.py": "names the module of PyTorch that reads it",
    "pasta/report/exports/trace/": "the format has CUDA's names for calls of any vendor",
    "tools/allocator.py": "a remedy names PyTorch's variable",
    "tools/copies.py": "remedies name the functions to call",
    "tools/counters.py": "names the setting that it needs",
    "tools/kernel_freq.py": "remedies name the functions to call",
    "tools/memory_timeline.py": "a remedy names PyTorch's variable",
    "tools/pc_samples.py": "names the setting that it needs",
}
FRAMEWORKS_IN = {
    "pasta/frameworks/": "their folders, and the list of them",
    "pasta/backends/amd/": "PyTorch's wheels bring the SDK",
    "pasta/config.py": "an example in a docstring",
    "pasta/report/exports/trace/": "the format is torch.profiler's",
    "pasta/report/exports/memory_snapshot.py": "the format is PyTorch's",
    "tools/allocator.py": "remedies name functions of the program's framework",
    "tools/event_trace.py": "writes that format",
    "tools/kernel_freq.py": "remedies name functions of the program's framework",
    "tools/memory_timeline.py": "remedies name functions of the program's framework",
    "tools/operators.py": "remedies name functions of the program's framework",
    "tools/tensors.py": "remedies name functions of the program's framework",
}


def lines(*folders: str) -> list[tuple[str, int, str]]:
    """Lines of the Python files tracked by git: path, number, text."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", *folders]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        pytest.skip("not a checkout")
    paths = [path for path in done.stdout.split("\0") if path.endswith(".py")]
    return [
        (path, number, text)
        for path in paths
        for number, text in enumerate((ROOT / path).read_text().splitlines(), 1)
    ]


@pytest.mark.parametrize(
    ("names", "allowed"),
    [(VENDORS, VENDORS_IN), (FRAMEWORKS, FRAMEWORKS_IN)],
    ids=["vendors", "frameworks"],
)
def test_vendor_names_occur_only_in_their_folders(
    names: re.Pattern[str], allowed: dict[str, str]
) -> None:
    found = [line for line in lines("pasta", "tools") if names.search(line[2])]
    places = tuple(allowed)
    assert [line for line in found if not line[0].startswith(places)] == []
    unused = [place for place in places if not any(path.startswith(place) for path, _, _ in found)]
    assert unused == []
