"""CPU time of the launcher's samples of devices, with a library in place of the vendor's.

    python -m bench.telemetry [--driver]

The thread sleeps between samples, as in the launcher, so that caches are cold. What the driver
itself takes for its answers is measured with --driver only, on a machine with an NVIDIA GPU.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.figures import Figure, compile_program, environment, ring_session, run, values
from bench.publish import ROOT

_INTERVAL_SECONDS = 0.1
_SECONDS = 6
#: The thread as it runs in the launcher, which does nothing else meanwhile.
_MEASURE = """
import sys, time
from pathlib import Path
from pasta.backends import BACKENDS
from pasta.runtime.ring import Ring
from pasta.runtime.telemetry import DeviceSampling
(sampler,) = (each.sampler() for each in BACKENDS.built_in() if each.name == "nvidia")
sampling = DeviceSampling(sampler, float(sys.argv[2]), lambda pid: False, print)
sample_all, taken = sampling.sample_all, []
def measured():
    begin = time.thread_time()
    sample_all()
    taken.append(time.thread_time() - begin)
sampling.sample_all = measured
sampling.follow("ring", Ring(Path(sys.argv[1])))
time.sleep(0.5)
taken.clear()
begin = time.process_time()
time.sleep(float(sys.argv[3]))
print("all", time.process_time() - begin)
print("sample", sum(taken) / len(taken))
sampling.stop()
"""


def measure(driver: bool = False) -> list[Figure]:
    """CPU time of a sample at the default interval: of one device that the library in place of
    the vendor's makes up, or of the driver's."""
    with tempfile.TemporaryDirectory() as name, ring_session(64 << 20) as (session, env):
        directory = Path(name)
        run([compile_program(directory, "ring_mix", ring=True), "1000"], env)
        (ring,) = (session / "rings").iterdir()
        made_up = {"LD_LIBRARY_PATH": name, "FAKE_NVML_PROCESSES": "1:1073741824"}
        if not driver:
            _compile_library(directory)
        found = run(
            [sys.executable, "-c", _MEASURE, ring, _INTERVAL_SECONDS, _SECONDS],
            environment(**({} if driver else made_up)),
        )
    seconds = values(found)
    share = 100 * seconds["sample"] / _INTERVAL_SECONDS
    return [
        Figure("telemetry: CPU time of a sample", 1e6 * seconds["sample"], "us"),
        Figure("telemetry: share of a core", share, "%", most=0.2),
        Figure("telemetry: … with the thread's waking up", 100 * seconds["all"] / _SECONDS, "%"),
    ]


def _compile_library(directory: Path) -> None:
    source = ROOT / "tests" / "programs" / "nvidia" / "fake_nvml.c"
    compiler = shlex.split(os.environ.get("CC", "cc"))
    library = directory / "libnvidia-ml.so.1"
    subprocess.run([*compiler, "-O2", "-shared", "-fPIC", source, "-o", library], check=True)


if __name__ == "__main__":
    for figure in measure("--driver" in sys.argv[1:]):
        print(f"{figure.name}: {figure.measured}")
