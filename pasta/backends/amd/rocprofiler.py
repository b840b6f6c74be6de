"""Search for AMD's rocprofiler-sdk, and a test that it can be loaded.

rocprofiler-register, which HIP loads, aborts a program if a tool is named and the SDK cannot be
loaded. PASTA therefore names its tool only after a test load. Imports little: every launch searches
for the SDK, which most machines do not have.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from pasta import paths
from pasta.errors import MissingDependency

#: Library that the SDK loads into HIP programs; links to libpasta.so.
LIBPASTA_AMD = paths.NATIVE / "libpasta_amd.so"
#: Tools that rocprofiler-register has the SDK load, separated by colons.
TOOLS = "ROCP_TOOL_LIBRARIES"
#: Opened by programs that use AMD devices.
DEVICE = Path("/dev/kfd")
NAMED = "PASTA_ROCPROFILER_LIB"
#: The SDK that rocprofiler-register loads into a program. It searches fewer places than PASTA,
#: and aborts a program with a named tool if it finds none.
REGISTERED = "ROCPROFILER_REGISTER_LIBRARY"
KNOWN_VERSIONS = "0.5 (ROCm 6.3), 0.6 (ROCm 6.4) and 1.x (ROCm 7)"
#: Enables PC sampling and its query, as long as they are a beta.
SAMPLING = "ROCPROFILER_PC_SAMPLING_BETA_ENABLED"

_LIBRARY = "librocprofiler-sdk.so"
#: In wheels of ROCm, and in PyTorch's, below a site directory.
_WHEELS = ("_rocm_sdk_core/lib", "torch/lib")
_ROOTS = ("ROCM_PATH", "ROCM_HOME", "HIP_PATH")
_CACHE = Path("/etc/ld.so.cache")
_LOAD_SECONDS = 30
#: Variables that make a library do more than just load.
_LEFT_OUT = (TOOLS, "ROCPROFILER_LIBRARY_CTOR", "LD_PRELOAD", "PASTA_SHIM")
#: Marks an answer in the output of a process: the SDK prints to stdout too.
_ANSWER = "pasta-answer:"
_LOAD = """
import ctypes, sys
sdk = ctypes.CDLL(sys.argv[1], ctypes.RTLD_GLOBAL)
sdk.rocprofiler_set_api_table
version = [ctypes.c_uint32() for _ in range(3)]
if sdk.rocprofiler_get_version(*map(ctypes.byref, version)):
    sys.exit("it does not report its version")
answer(".".join(str(part.value) for part in version))
"""


class Rocprofiler(NamedTuple):
    """A rocprofiler-sdk that can be loaded."""

    library: Path
    version: str  # such as "1.0.0"

    @property
    def _release(self) -> tuple[int, int]:
        major, minor, _ = map(int, self.version.split("."))
        return major, minor

    @property
    def is_known(self) -> bool:
        """Whether PASTA knows this version's interface; another is not recorded."""
        return self._release[0] == 1 or self._release in ((0, 5), (0, 6))

    @property
    def counts(self) -> bool:
        """Whether counters of this version are recorded."""
        return self._release >= (1, 0)

    @property
    def samples(self) -> bool:
        """Whether PC samples of this version are recorded."""
        return self._release >= (0, 6)


def find_rocprofiler(program: str = "") -> Path | None:
    """librocprofiler-sdk.so, or None; loading is not tested.

    In this order: PASTA_ROCPROFILER_LIB, other variables of the environment, the wheels beside
    `program` and in PASTA's environment, ROCm's directories, and the loader's cache.
    """
    for name in (NAMED, REGISTERED):
        if os.environ.get(name):
            return Path(os.environ[name])
    found = (_newest(directory) for directory in _directories(program))
    return next((each for each in found if each), None) or _in_loader_cache()


def _directories(program: str) -> Iterator[Path]:
    """Directories that may contain the SDK, the likeliest first."""
    listed = os.environ.get("LD_LIBRARY_PATH", "").split(":")
    yield from (Path(each) for each in listed if each)
    for site in (*_sites_beside(program), *map(Path, paths.module_path())):
        yield from (site / wheel for wheel in _WHEELS)
    named = [Path(os.environ[name]) for name in _ROOTS if os.environ.get(name)]
    for root in (*named, *_installed()):
        yield from (root / "lib", root / "lib64")


def _sites_beside(program: str) -> Iterator[Path]:
    """Site directories of the virtual environment that contains a program, if any."""
    if "/" in program:
        yield from sorted(Path(program).parent.parent.glob("lib/python3.*/site-packages"))


def _installed() -> list[Path]:
    """/opt/rocm, then other versions, the newest first."""
    opt = Path("/opt")
    versions = sorted(opt.glob("rocm-*"), key=lambda path: _numbers(path.name), reverse=True)
    return [opt / "rocm", *versions]


def _numbers(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", text)]


def _newest(directory: Path) -> Path | None:
    """The SDK in a directory, by preference the name without a version."""
    try:
        names = [each.name for each in os.scandir(directory) if each.name.startswith(_LIBRARY)]
    except OSError:
        return None
    plain = [name for name in names if re.fullmatch(r"(\.\d+)*", name[len(_LIBRARY) :])]
    return directory / min(plain, key=lambda name: (len(name), name)) if plain else None


def _in_loader_cache() -> Path | None:
    """The SDK in the cache of ldconfig, read without a process."""
    try:
        cache = _CACHE.read_bytes()
    except OSError:
        return None
    if _LIBRARY.encode() not in cache:
        return None
    found = (Path(os.fsdecode(text)) for text in cache.split(b"\0") if text.startswith(b"/"))
    named = (path for path in found if re.fullmatch(rf"{re.escape(_LIBRARY)}(\.\d+)*", path.name))
    return next((path for path in named if path.exists()), None)


def answer_of(library: Path, program: str, seconds: float, **variables: str) -> str:
    """The text that a Python program passes to `answer(text)` after it loaded the SDK, in another
    process, which the SDK may abort. Raises OSError with the reason if there is none."""
    import subprocess  # imported here: most machines need none

    environment = {name: text for name, text in os.environ.items() if name not in _LEFT_OUT}
    define = f"answer = lambda text: print({_ANSWER!r} + text, flush=True)\n"
    command = [sys.executable, "-I", "-S", "-c", define + program, str(library)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=seconds, errors="replace",
            env={**environment, **variables}, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise OSError(f"no answer within {seconds} s") from None
    _, found, after = done.stdout.rpartition(_ANSWER)
    answer = after.partition("\n")[0].strip()
    if done.returncode or not found or not answer:
        why = done.stderr.strip().rpartition("\n")[2]
        raise OSError(why or f"status {done.returncode}")
    return answer


def load_rocprofiler(library: Path) -> Rocprofiler:
    """The SDK, after a test load in another process, which it may abort.

    Raises MissingDependency if it cannot be loaded.
    """
    try:
        version = answer_of(library, _LOAD, _LOAD_SECONDS)
        if not re.fullmatch(r"\d+\.\d+\.\d+", version):
            raise OSError(f"its version is {version!r}")
    except OSError as error:
        raise MissingDependency(
            f"{library} cannot be loaded ({error})",
            remedy=f"check it with pasta doctor, or name another with {NAMED}",
        ) from None
    return Rocprofiler(library, version)


def usable_rocprofiler(program: str = "") -> Rocprofiler | None:
    """The SDK for a program, or None if there is none. Raises MissingDependency if it cannot be
    loaded."""
    library = find_rocprofiler(program)
    return None if library is None else load_rocprofiler(library)


def refusal(found: Rocprofiler) -> str | None:
    """Why a version of the SDK is not recorded, or None."""
    if found.is_known:
        return None
    return (
        f"ROCm is not recorded: {found.library} is rocprofiler-sdk {found.version}, PASTA "
        f"supports {KNOWN_VERSIONS}; use a newer PASTA, or name another SDK with {NAMED}"
    )


def with_tool(environment: Mapping[str, str], tool: Path | None) -> dict[str, str]:
    """An environment in which the SDK loads PASTA's tool after the user's tools; None: without
    it."""
    result = dict(environment)
    ours = str(LIBPASTA_AMD)
    before = result.get(TOOLS, "").split(":")
    if tool is None and ours not in before:
        return result
    listed = [each for each in before if each and each != ours]
    if tool is not None:
        listed.append(str(tool))
    # of several tools, the SDK loads only those followed by a colon
    result[TOOLS] = listed[0] if len(listed) == 1 else "".join(f"{each}:" for each in listed)
    if not listed:
        del result[TOOLS]
    return result
