"""`pasta-preload`: run a program and profile it.

Imports little: what is here runs before every target, also before one that uses no accelerator.
"""

from __future__ import annotations

import argparse
import os
import resource
import shlex
import signal
import sys
from typing import TYPE_CHECKING

import pasta
from pasta import paths, private
from pasta.cli.parser import Parser
from pasta.cli.selection import add_selection, selected
from pasta.errors import ConfigError, MissingDependency, PastaError, visible
from pasta.runtime.executable import CannotRun, find_executable
from pasta.runtime.injection import asked_of_torch, built
from pasta.runtime.launcher import Launcher, Outcome
from pasta.runtime.rocm import DEVICE, NAMED, refusal, usable_rocprofiler
from pasta.runtime.session import Session
from pasta.table import counted

if TYPE_CHECKING:
    from pasta.config import Config
    from pasta.tool import Tool

_USAGE_STATUS = 2
_MAX_LINE = 2000
_INTERRUPTED = 130
_RECORDER = "record_accesses"
_APART = "install PASTA in an environment of its own (pipx install pasta-profiler)"


def say(text: str) -> None:
    """Writes lines to stderr, each under `pasta:`."""
    try:
        sys.stderr.write("".join(f"pasta: {line}".rstrip() + "\n" for line in text.splitlines()))
        sys.stderr.flush()
    except OSError:  # nobody listens; what is buffered must not fail again at exit
        sys.stderr = open(os.devnull, "w")


def _quiet(_text: str) -> None:
    pass


def parser() -> Parser:
    result = Parser(
        prog="pasta-preload",
        usage="pasta-preload [options] [--] program [arguments ...]",
        description="Run a program and profile its accelerator work.",
        epilog="The exit status is the program's. All settings: pasta tools --settings",
        allow_abbrev=False,
    )
    add_selection(result)
    # fmt: off
    add = result.add_argument
    add("--backend", metavar="NAME",
        help="which accelerators: auto (what the program loads), nvidia, amd, refacc, none")
    add("--profile-from-start", metavar="on|off",
        help="off: record nothing before pasta.start() or cudaProfilerStart()")
    add("--overhead-budget", metavar="SHARE",
        help="probe in windows, so that the program takes at most so much longer: 20%%")
    add("--live", action="store_true", help="show what happens while the program runs")
    add("--record", action="store_true",
        help="keep all that pasta replay needs: events, and images of modules")
    add("--record-accesses", action="store_true",
        help="… and every access, for tools with probes")
    add("--duration", metavar="TIME", help="stop profiling after so long: 30s, 10min")
    add("--max-size", metavar="SIZE", help="record no more events than fit: 2GiB")
    add("--rotate", action="store_true", help="… but the newest instead of the oldest")
    add("-o", "--output", metavar="DIR",
        help="run directory; %%n program, %%p pid, %%h host, %%r rank, %%t time, %%q{ENV}")
    add("--root", metavar="DIR",
        help="directory for the runs of all processes and ranks of a job, on all its hosts")
    add("-f", "--force-overwrite", action="store_true", help="replace an existing run directory")
    add("--no-children", action="store_true", help="profile the launched process only")
    add("--collector", action="store_true", help="never run Python inside the program")
    add("-q", "--quiet", action="store_true", help="print nothing but errors")
    add("-v", "--verbose", action="store_true", help="also print PASTA's own log")
    add("--version", action="version", version=f"pasta-profiler {pasta.__version__}")
    add("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    # fmt: on
    return result


def configure(arguments: argparse.Namespace) -> tuple[Config, list[Tool]]:
    """The configuration of a command line, and its tools. Raises PastaError."""
    if arguments.root and arguments.output:
        raise ConfigError("--root and -o both say where runs go", remedy="give one of them")
    config = selected(arguments)
    recording = arguments.record or arguments.record_accesses
    if arguments.record_accesses:
        config.add_tools([_RECORDER])
    for option, key, value in (
        ("--backend", "backend", arguments.backend),
        ("--profile-from-start", "run.start", arguments.profile_from_start),
        ("--overhead-budget", "probes.overhead-budget", arguments.overhead_budget),
        ("--record", "run.events", recording or None),
        ("--record", "run.modules", recording or None),
        ("--live", "run.live", arguments.live or None),
        ("--duration", "run.duration", arguments.duration),
        ("--max-size", "run.max-size", arguments.max_size),
        ("--rotate", "run.rotate", arguments.rotate or None),
        ("-o", "run.out", arguments.output),
        ("--root", "run.root", arguments.root),
        ("--force-overwrite", "run.force", arguments.force_overwrite or None),
        ("--no-children", "run.children", False if arguments.no_children else None),
        ("--collector", "python.collector", arguments.collector or None),
    ):
        if value is not None:
            config.set(key, value, option)
    if arguments.output:
        config.root = ""
    return config, _checked(config)


def _checked(config: Config) -> list[Tool]:
    from pasta.plugins import load_tools
    from pasta.run.naming import check_template

    check_template(config.root or config.out)
    tools = load_tools(config.tools, config.tool_options, config.tool_paths, config.origins)
    recording = [tool.name for tool in tools if tool.needs_recording]
    if recording and not config.events:
        raise ConfigError(
            f"run.events = false, but {', '.join(recording)} reads recorded events",
            remedy="leave run.events on",
        )
    if config.rotate and not config.max_size:
        raise ConfigError("run.rotate needs a size", remedy="say it with --max-size 2GiB")
    if config.amd_counters and config.amd_pc_sampling:
        raise ConfigError(
            "amd.counters and amd.pc_sampling: the SDK cannot count and sample in one run",
            remedy="run the program twice, once with each",
        )
    if config.max_size or config.live:
        # else events wait on disk, uncompressed, until the program ends; and nobody counts them
        config.collector = True
    if any(tool.needs_compiled for tool in tools):
        # LLVM in a program that exits meanwhile is a crash: its destructors run first (measured).
        config.collector = True
    if any(tool.probes() for tool in tools):
        from pasta.probes.windows import shim_settings

        shim_settings(config)
    _check_place(config)
    return tools


def _check_place(config: Config) -> None:
    from pasta.run.naming import check_output, check_root, is_shared, place_in_job

    if config.root:
        if config.force:
            raise ConfigError(
                f"{config.root}: runs in a root are not replaced, others may be writing there",
                remedy="remove it first, or name a new one",
            )
        check_root(config.root, "--root")
    elif is_shared(config.out, place_in_job(os.environ)):
        check_root(config.out, "-o")
    else:
        check_output(config.out, force=config.force)


def _prepare_probes(session: Session, config: Config, tools: list[Tool]) -> None:
    if not any(tool.probes() for tool in tools):
        return
    from pasta.runtime.probes import write_plan

    try:
        write_plan(session, config, tools)
    except BaseException:
        session.remove()
        raise


def _prepare_amd(session: Session, program: str) -> None:
    """Has rocprofiler-sdk load PASTA's tool into the target, where there is an SDK that can be
    loaded: named without one, it would abort the target. Says why not where the user asks for AMD.
    """
    if not session.config.listens_to("amd"):
        return
    wanted = session.config.backend == "amd"
    try:
        found = usable_rocprofiler(program)
        if found is None and wanted:
            raise MissingDependency(
                "rocprofiler-sdk was not found",
                remedy=f"install it (ROCm 6.3 or 7), or name the library with {NAMED}",
            )
        if found is None:
            return
        refused = refusal(found)
        if refused:
            (say if wanted or DEVICE.exists() else session.log)(refused)
            return
        session.document["amd_tool"] = str(built(paths.LIBPASTA_AMD))
        session.document["amd_sdk"] = str(found.library)
    except MissingDependency as error:
        (say if wanted else session.log)(f"ROCm is not recorded: {error}")
        return
    session.log(f"rocprofiler-sdk {found.version} at {found.library}")
    if wanted and not os.access(DEVICE, os.R_OK | os.W_OK):
        why = "cannot be opened by this user" if DEVICE.exists() else "does not exist"
        say(f"no AMD device can be used, {DEVICE} {why}: see pasta doctor")


_GOING_ON = (
    "process goes on; its run is written when it ends",
    "processes go on; their runs are written when they end",
)


def _report(outcomes: list[Outcome], verbosity: int) -> None:
    from pasta.run.directory import RunDirectory
    from pasta.run.failures import failure_text
    from pasta.run.naming import rank_of
    from pasta.table import plain

    for number, outcome in enumerate(outcomes):
        if outcome.problem:
            say(outcome.problem)
        if outcome.directory is None:
            continue
        if verbosity >= 0 and outcome.report and number == 0 and not outcome.root:
            say(outcome.report.read_text(encoding="utf-8", errors="replace"))
        else:  # the report has them
            for tool, failure in RunDirectory(outcome.directory).manifest()["failures"].items():
                say(plain(f"process {outcome.pid}: {failure_text(tool, failure)}", _MAX_LINE))
        if verbosity >= 0:
            where = os.path.relpath(outcome.directory)
            say(f"process {outcome.pid}: {where if len(where) < 80 else outcome.directory}")
    for root in dict.fromkeys(outcome.root for outcome in outcomes if outcome.root):
        if verbosity >= 0 and not rank_of(os.environ):  # the launcher of the first rank, or of all
            say(f"all of them: pasta report {shlex.quote(os.path.relpath(root))}")


#: What each backend's events come by.
_WAYS_IN = {
    "nvidia": "no CUDA driver was loaded with PASTA in it",
    "amd": "no HIP or HSA runtime called rocprofiler-register (it is not linked with it, as before "
    "ROCm 6.2, or statically linked, or the program used no device)",
    "refacc": "the reference accelerator was not used",
}


def _explain_no_run(session: Session, verbosity: int) -> None:
    """Says why there is no run, to a user who named the backend."""
    backend = session.config.backend
    said = backend == "amd" and "amd_tool" not in session.document  # why ROCm is not recorded
    why = _WAYS_IN.get(backend)
    if why and verbosity >= 0 and not said:
        say(f"nothing was recorded: --backend {backend}, and {why}; see pasta doctor")


def _given_environment() -> dict[str, str]:
    """The environment as it was given: in the C locale Python sets LC_CTYPE itself (PEP 538)."""
    environment = dict(os.environ)
    try:
        with open("/proc/self/environ", "rb") as file:
            entries = file.read().split(b"\0")
    except OSError:  # no /proc
        return environment
    given = [entry for entry in entries if entry.startswith(b"LC_CTYPE=")]
    if given:
        environment["LC_CTYPE"] = os.fsdecode(given[0].partition(b"=")[2])
    else:
        environment.pop("LC_CTYPE", None)
    return environment


def _end_like(status: int) -> int:
    """Exit status of a wait status; ends by the same signal as the program did."""
    if not os.WIFSIGNALED(status):
        return os.WEXITSTATUS(status)
    number = os.WTERMSIG(status)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # one core dump is the program's
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    return 128 + number


def main(arguments: list[str] | None = None) -> int:
    if sys.stderr is None:  # started with a closed one
        sys.stderr = open(os.devnull, "w")
    options, left = parser().parse_known_args(arguments)
    if left:
        parser().unknown(left)
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not command:
        say("no program given: pasta-preload [options] [--] program [arguments ...]")
        return _USAGE_STATUS
    verbosity = -1 if options.quiet else int(options.verbose)
    umask = private.set_umask()
    if paths.google_pasta():
        say(f"google-pasta is in PASTA's environment and has the same import name: {_APART}")
    try:
        config, tools = configure(options)
        executable = find_executable(command[0])
        if executable.obstacle:
            say(f"{executable.obstacle}: {executable.consequence}")
        session = Session.create(config, command, verbosity, torch=asked_of_torch(tools))
        _prepare_probes(session, config, tools)
        _prepare_amd(session, executable.path)
    except CannotRun as error:
        say(str(error))
        return error.status
    except PastaError as error:
        say(visible(str(error)))
        return _USAGE_STATUS
    except KeyboardInterrupt:  # nothing runs yet
        return _INTERRUPTED
    launcher = Launcher(
        session, _quiet if options.quiet else say, _given_environment(), umask=umask
    )
    try:
        launcher.start(executable, command)
    except CannotRun as error:
        session.remove()
        say(str(error))
        return error.status
    status = _run(launcher, verbosity)
    sys.stderr.flush()
    return _end_like(status)


def _run(launcher: Launcher, verbosity: int) -> int:
    """Waits for the target and finishes its runs; whatever fails here, its status is kept."""
    session = launcher.session
    status = launcher.wait()
    try:
        launcher.finish()
        left = launcher.alive()
        if left and any(w.ring.used and not w.ended for w in launcher.rings.values()):
            say(counted(len(left), *_GOING_ON))
        _report(launcher.outcomes, verbosity)
        if not launcher.outcomes:
            _explain_no_run(session, verbosity)
        if verbosity > 0 and (session.directory / "log.txt").exists():
            say((session.directory / "log.txt").read_text(errors="replace"))
        if left:
            launcher.go_on_in_background()
        elif not launcher.unsaved():
            session.remove()
    except (Exception, KeyboardInterrupt) as error:
        say(f"the run could not be finished ({error!r}): try again with pasta recover")
    return status
