"""`pasta-preload`: runs a program and profiles it.

Imports little: this code runs before every target, even one that uses no accelerator.
"""

from __future__ import annotations

import argparse
import gc
import os
import resource
import shlex
import signal
import sys
import time
from typing import TYPE_CHECKING, NamedTuple

from pasta import paths, private
from pasta.backends.base import Launch
from pasta.capabilities import PC_SAMPLES
from pasta.cli.parser import INTERRUPTED, USAGE, Parser
from pasta.cli.selection import add_options, add_selection, selected, set_options
from pasta.config import AUTO, AUTO_PASSES, NONE, Config
from pasta.errors import ConfigError, PastaError, visible
from pasta.frameworks import FRAMEWORKS
from pasta.frameworks.base import Wanted
from pasta.progress import display_progress
from pasta.runtime.executable import CannotRun, Executable, find_executable
from pasta.runtime.launcher import Launcher
from pasta.runtime.rings import Outcome, Say, has_spare_processors, start_reserve
from pasta.runtime.session import Ended, Roofs, Session
from pasta.table import counted
from pasta.version import VERSION

if TYPE_CHECKING:
    from pathlib import Path

    from pasta.tool import Tool

_RECORDER = "record_accesses"
_HOST = "host_samples"
#: Settings that select launches.
_SELECTING = (
    "kernel", "exclude", "launch_skip", "launch_count", "range", "operator", "module",
    "probes_window",
)  # fmt: skip
#: Settings that select the launches to probe.
_PROBING = (
    "probes.window", "probes.every", "probes.sample", "probes.enough", "probes.spot-check",
    "probes.overhead-budget",
)  # fmt: skip
_SEPARATE = "install PASTA in a separate environment (pipx install . in its checkout)"


def say(text: str) -> None:
    """Writes lines to stderr, each with the prefix `pasta:`."""
    try:
        sys.stderr.write("".join(f"pasta: {line}".rstrip() + "\n" for line in text.splitlines()))
        sys.stderr.flush()
    except OSError:  # stderr is closed; flushing it must not fail again at exit
        sys.stderr = open(os.devnull, "w")


def _quiet(_text: str) -> None:
    pass


def parser() -> Parser:
    """The command-line parser of pasta-preload."""
    result = Parser(
        prog="pasta-preload",
        usage="pasta-preload [options] [--] program [arguments ...]",
        description="Run a program and profile its accelerator work.",
        epilog="The exit status is the program's. All settings: pasta tools --settings",
        allow_abbrev=False,
    )
    add_selection(result)
    add_options(result)
    # fmt: off
    add = result.add_argument
    add("--record", action="store_true",
        help="record everything that pasta replay needs: events and module images")
    add("--record-accesses", action="store_true",
        help="also record every access, for tools with probes")
    add("-q", "--quiet", action="store_true", help="print only errors")
    add("-v", "--verbose", action="store_true", help="also print PASTA's own log")
    add("--version", action="version", version=f"pasta-profiler {VERSION}")
    add("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    # fmt: on
    return result


#: Environment variable with options that precede those of the command line.
OPTIONS = "PASTA_OPTIONS"


def parse(given: list[str]) -> argparse.Namespace:
    """Parses the options of PASTA_OPTIONS and a command line. Exits with a usage error."""
    options = _options_of_environment()
    found = parser()
    parsed, left = found.parse_known_args([*options, *given])
    if left:
        found.unknown(left)
    return parsed


def _options_of_environment() -> list[str]:
    text = os.environ.get(OPTIONS, "")
    if not text:
        return []
    alone = parser()
    alone.place = f"{OPTIONS}: "
    try:
        options = shlex.split(text)
    except ValueError as error:
        alone.error(f"{error}")
    parsed, left = alone.parse_known_args(options)
    if left or parsed.command:
        alone.unknown(left or parsed.command)
    return options


def configure(arguments: argparse.Namespace) -> tuple[Config, list[Tool]]:
    """The configuration and the tools that a command line selects. Raises PastaError."""
    if arguments.root and arguments.out:
        raise ConfigError("--root and -o both name the output", remedy="use only one of them")
    config = selected(arguments)
    if arguments.record_accesses:
        config.add_tools([_RECORDER])
    if arguments.record or arguments.record_accesses:
        config.events = config.modules = True
    set_options(config, arguments)
    if config.host_rate:
        config.add_tools([_HOST])
    if arguments.out:
        config.root = ""
    return config, _checked(config)


def _checked(config: Config) -> list[Tool]:
    from pasta.plugins import load_tools
    from pasta.run.naming import check_template

    check_template(config.root or config.out)
    tools = load_tools(
        config.tools, config.tool_options, config.tool_paths, config.origins,
        sampled=config.probes_part,
    )  # fmt: skip
    recording = [tool.name for tool in tools if "recording" in tool.needed()]
    if recording and not config.events:
        raise ConfigError(
            f"run.events = false, but {', '.join(recording)} reads recorded events",
            remedy="leave run.events on",
        )
    if config.rotate and not config.max_size:
        raise ConfigError("run.rotate requires a size", remedy="set one with --max-size 2GiB")
    for section in config.sections():
        section.check()
    if config.module and (why := _selects_nothing(config, "--module")):
        raise ConfigError(why, remedy="use only one of them")
    if config.host_rate:
        config.collector = True  # otherwise many samples are in PASTA's own Python
    if config.max_size or config.live:
        # otherwise events stay on disk uncompressed, and uncounted, until the program ends
        config.collector = True
    if any(tool.needs_compiled for tool in tools) or config.operator or config.module:
        # LLVM crashes in a program that exits meanwhile: its destructors run first (measured).
        config.collector = True
    if any("probes" in tool.needed() for tool in tools):
        from pasta.runtime.probe_plan import probe_settings

        probe_settings(config)
    _check_place(config)
    return tools


def _selects_nothing(config: Config, option: str) -> str:
    """Why --operator or --module selects no launches of a framework, in a line; empty otherwise."""
    for framework in FRAMEWORKS.known():
        against = framework.setting_against(config, modules=option == "--module")
        if against:
            return f"{option} selects no launches of {framework.title} with {against}"
    return ""


def without_effect(config: Config, tools: list[Tool]) -> list[str]:
    """Lines about options that select launches to no effect: no tool has probes, or a framework's
    operators are not recorded."""
    against = _selects_nothing(config, "--operator") if config.operator else ""
    lines = [against] if against else []  # no error: other frameworks have operators, too
    given = [
        each.option.names[0] if each.option else each.key
        for each in Config.settings
        if each.key in _PROBING and getattr(config, each.attribute) != each.default
    ]
    if given and not any("probes" in tool.needed() for tool in tools):
        have = "has" if len(given) == 1 else "have"
        names = ", ".join(tool.name for tool in tools)
        lines.append(f"{', '.join(given)} {have} no effect: no selected tool has probes ({names})")
    return lines


def _check_place(config: Config) -> None:
    from pasta.run.naming import check_output, check_root, is_shared, place_in_job

    if config.root:
        if config.force:
            raise ConfigError(
                (
                    f"{config.root}: runs in a root are not replaced, because others may be "
                    "writing there"
                ),
                remedy="remove it first, or name a new one",
            )
        check_root(config.root, "--root")
    elif is_shared(config.out, place_in_job(os.environ)):
        check_root(config.out, "-o")
    else:
        check_output(config.out, force=config.force)


def _prepare_probes(session: Session, config: Config, tools: list[Tool], *, quiet: bool) -> Session:
    """Compiles probes, if there are any, while the collector that they will need starts."""
    if not any("probes" in tool.needed() for tool in tools):
        return session
    if has_spare_processors():
        session = session._replace(reserve=start_reserve(session, _original_environment()))
    from pasta.runtime.probe_plan import write_plan

    with display_progress("preparing", quiet=quiet):
        write_plan(session, config, tools)
    return session


def _prepared(
    config: Config,
    tools: list[Tool],
    command: list[str],
    verbosity: int,
    program: str,
    roofs: Roofs,
    wanted: Wanted | None = None,
    *,
    probes: bool = True,
) -> Session:
    """A session with what the target needs before it starts; `wanted`: framework
    data that others than these tools require; `probes`: whether the probes of tools run. Raises
    PastaError."""
    pauses = not wanted and Wanted.at_probes(tools)  # not in passes, which are joined by operator
    wanted = wanted or Wanted.by(tools)
    if config.operator or config.module:
        wanted = wanted._replace(operators=True)
    samples = adapt_backends(config, tools)
    session = Session.create(config, command, verbosity, wanted, roofs)
    session.document["operators_pause"] = pauses
    session.document["tensors_put_off"] = pauses and not config.live and not _follows_tensors(tools)
    session.document["launch_returns"] = any(map(_may_read_returns, tools))
    try:
        if config.uvm_plan:
            session.uvm_plan.write_text(_native_plan(config.uvm_plan))
        if probes:
            session = _prepare_probes(session, config, tools, quiet=verbosity < 0)
        if samples:
            from pasta.runtime.probe_plan import keep_code

            keep_code(session, config)
        _prepare_backends(session, program)
    except BaseException:  # also an interrupt
        session.remove()
        raise
    return session


def _follows_tensors(tools: list[Tool]) -> bool:
    """Whether a tool looks at tensors besides those in the objects of its probes."""
    classes = {base for tool in tools for base in type(tool).__mro__}
    return any({"tensors", "history"} & set(vars(each).get("needs", ())) for each in classes)


def _may_read_returns(tool: Tool) -> bool:
    """Whether a tool may read returns of launch calls; no built-in one does."""
    built_in = type(tool).__module__.startswith("pasta.tools.")
    return hasattr(tool, "on_launch_ends") or (hasattr(tool, "on_batch") and not built_in)


def adapt_backends(config: Config, tools: list[Tool]) -> bool:
    """Adapts the backends' settings to the tools; whether one needs samples of code. Raises
    ConfigError."""
    wanted = frozenset(name for tool in tools for name in tool.wants())
    for backend in config.backends():
        backend.adapt(config, wanted)
        if backend.requires_selection(config) and not any(getattr(config, n) for n in _SELECTING):
            raise ConfigError(
                f"{backend.name}: sampling by launch runs one kernel at a time, and all "
                "launches are selected",
                remedy="select some: -k, --launch-count, --range, or probes.window",
            )
    return PC_SAMPLES in wanted


def _roofs(config: Config, tools: list[Tool], say: Say) -> Roofs:
    """Roofs of devices, if a tool asks for them; they are measured unless they are known."""
    if not config.measures_roofs or not any(tool.asks_for_roofs for tool in tools):
        return {}
    found: Roofs = {}
    for backend in config.backends():
        try:
            devices = backend.roofs(os.environ, say)
            for device in devices:
                if device.why:
                    say(f"roofs of {device.name} were not measured: {device.why}")
            found[backend.name] = {each.uuid: each.rates for each in devices if each.rates}
        except Exception as error:
            say(f"roofs of {backend.title} devices were not measured: {error!r}")
    return found


def _native_plan(path: str) -> str:
    """A plan for managed memory, for the preloaded library. Raises ConfigError."""
    from pasta.processors.managed_plan import read

    return "".join(entry.native() for entry in read(path))


def _prepare_backends(session: Session, program: str) -> None:
    """Prepares the backends for a program. Raises PastaError."""
    config = session.config
    for backend in config.backends():
        launch = Launch(program, config.backend == backend.name, config, say, session.log)
        session.document["backends"][backend.name] = dict(backend.prepare(launch))


_STILL_RUNNING = (
    "process is still running; its run is written when it exits",
    "processes are still running; their runs are written when they exit",
)


def _report(outcomes: list[Outcome], verbosity: int) -> None:
    from pasta.run.directory import RunDirectory
    from pasta.run.failures import failure_lines
    from pasta.run.naming import rank_of

    for number, outcome in enumerate(outcomes):
        if outcome.problem:
            say(outcome.problem)
        if outcome.directory is None:
            continue
        if verbosity >= 0 and outcome.report and number == 0 and not outcome.root:
            say(outcome.report.read_text(encoding="utf-8", errors="replace"))
        else:  # the report includes the failures
            for line in failure_lines(RunDirectory(outcome.directory).manifest()):
                say(f"process {outcome.pid}: {line}")
        if verbosity >= 0:
            where = os.path.relpath(outcome.directory)
            say(f"process {outcome.pid}: {where if len(where) < 80 else outcome.directory}")
    for root in dict.fromkeys(outcome.root for outcome in outcomes if outcome.root):
        if verbosity >= 0 and not rank_of(os.environ):  # the launcher of the first rank, or of all
            say(f"all of them: pasta report {shlex.quote(os.path.relpath(root))}")


def _explain_no_run(session: Session, verbosity: int) -> None:
    """Prints why nothing was recorded, if the user chose the backend."""
    chosen = session.config.backend
    if verbosity < 0 or chosen in (AUTO, NONE):
        return
    for backend in session.config.backends():
        why = backend.nothing_recorded(session.document["backends"][backend.name])
        if why:
            say(f"nothing was recorded: --backend {chosen}, but {why}; see pasta doctor")


def _original_environment() -> dict[str, str]:
    """The original environment: in the C locale Python sets LC_CTYPE itself (PEP 538)."""
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
    """Exit status of a wait status; if a signal ended the program, raises that signal."""
    if not os.WIFSIGNALED(status):
        return os.WEXITSTATUS(status)
    number = os.WTERMSIG(status)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the program has dumped core already
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    return 128 + number


def main(arguments: list[str] | None = None) -> int:
    """Entry point of `pasta-preload`; the exit status of the program, or of a usage error."""
    if sys.stderr is None:  # started with stderr closed
        sys.stderr = open(os.devnull, "w")
    options = parse(sys.argv[1:] if arguments is None else arguments)
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not command:
        say("no program given: pasta-preload [options] [--] program [arguments ...]")
        return USAGE
    verbosity = -1 if options.quiet else int(options.verbose)
    umask = private.set_umask()
    if paths.google_pasta():
        say(f"google-pasta is in PASTA's environment and has the same import name: {_SEPARATE}")
    try:
        config, tools = configure(options)
        for line in without_effect(config, tools) if verbosity >= 0 else ():
            say(line)
        executable = find_executable(command[0])
        if executable.obstacle:
            say(f"{executable.obstacle}: {executable.consequence}")
        roofs = _roofs(config, tools, _quiet if verbosity < 0 else say)
        program = _Program(executable, command, umask, verbosity, roofs)
        if config.passes == AUTO_PASSES:
            status = _run_passes(config, tools, program)
        else:
            status = _run_once(config, tools, program)
    except CannotRun as error:
        say(str(error))
        return error.status
    except PastaError as error:
        say(visible(str(error)))
        return USAGE
    except KeyboardInterrupt:  # the target has not started
        return INTERRUPTED
    sys.stderr.flush()
    return _end_like(status)


class _Program(NamedTuple):
    """What to run, and the umask that it gets."""

    executable: Executable
    command: list[str]
    umask: int | None
    verbosity: int
    roofs: Roofs

    @property
    def about(self) -> tuple[list[str], int, str, Roofs]:
        """What `_prepared` takes of it."""
        return self.command, self.verbosity, self.executable.path, self.roofs

    def launcher(self, session: Session) -> Launcher:
        """A launcher of the program in a session."""
        talk = _quiet if self.verbosity < 0 else say
        return Launcher(session, talk, _original_environment(), umask=self.umask)

    def start(self, launcher: Launcher) -> None:
        """Starts the program. Raises CannotRun; the session is removed then."""
        try:
            launcher.start(self.executable, self.command)
            gc.freeze()  # what imports have created, without garbage
            gc.enable()
        except CannotRun:
            launcher.session.remove()
            raise


def _run_once(config: Config, tools: list[Tool], program: _Program) -> int:
    """Runs the program and reports its run; the wait status. Raises PastaError and CannotRun."""
    session = _prepared(config, tools, *program.about)
    launcher = program.launcher(session)
    program.start(launcher)
    return _run(launcher, program.verbosity)


def _run_passes(config: Config, tools: list[Tool], program: _Program) -> int:
    """`_run_once` in two passes, if the tools need them."""
    from pasta.runtime import passes as two

    config, tools = two.narrowed(config, tools)
    whole = two.place_of_whole(config, program.executable.path, time.time_ns())
    planned = two.split(config, tools, whole)
    talk = _quiet if program.verbosity < 0 else say
    if not planned:
        talk("all tools fit into one pass: the program runs once")
        return _run_once(config, tools, program)
    input, signals = two.Input(), two.SignalState()
    former, waiting = two.Former(), []
    runs: dict[str, list[Path]] = {each.name: [] for each in planned}
    outcomes: list[Outcome] = []
    why = ""
    try:
        for each in planned:  # both before the program starts, so that it starts only if both can
            wanted, probes = Wanted.by(tools), each.name == two.ACCESSES
            about = (*program.about, wanted)
            waiting.append(_prepared(each.config, each.tools, *about, probes=probes))
        talk(two.reason(planned))
        former.set_aside(whole)
        for each in planned:
            input.rewind()
            signals.restore()
            launcher = program.launcher(waiting.pop(0))
            launcher.mask = signals.mask
            program.start(launcher)
            status = _run(launcher, program.verbosity, report=False)
            outcomes += launcher.outcomes
            runs[each.name] = [o.directory for o in launcher.outcomes if o.directory]
            if waiting:
                why = _why_first_only(status, launcher, runs[each.name])
            if why:
                talk(why)
                break
    finally:
        for session in waiting:
            session.remove()
        former.remove()
    if all(runs.values()):
        width = launcher.session.document["terminal_width"]
        _report_passes(whole, runs, outcomes, width, program.verbosity)
        return status
    if not why:
        talk("the passes are not joined: nothing was recorded in the second")
    _report(outcomes, program.verbosity)
    return status


def _why_first_only(status: int, launcher: Launcher, runs: list[Path]) -> str:
    """Why the second pass does not run after this first one; empty if it does."""
    from pasta.runtime.passes import was_ended

    if os.WIFSIGNALED(status):
        return f"the second pass does not run: the first was {Ended('signal', os.WTERMSIG(status))}"
    if status:
        return f"the second pass does not run: the first exited with {os.WEXITSTATUS(status)}"
    if was_ended(launcher.received):
        return "the second pass does not run: a signal ended the first"
    return "" if runs else "the second pass does not run: nothing was recorded in the first"


def _report_passes(
    whole: Path,
    runs: dict[str, list[Path]],
    outcomes: list[Outcome],
    width: int | None,
    verbosity: int,
) -> None:
    """Joins the passes and reports the result; a failure does not change the program's status."""
    from pasta.runtime import passes as two

    for outcome in outcomes:
        if outcome.problem:
            say(outcome.problem)
    try:
        done = two.join(whole, runs, _original_environment(), width=width, quiet=verbosity < 0)
    except (PastaError, OSError) as error:
        say(visible(str(error)))
        return
    say(done.report)
    for line in done.lines:
        say(line)
    if verbosity < 0:
        return
    for run in done.runs:
        say(f"joined: {os.path.relpath(run)}")
    for name, directories in runs.items():
        for directory in directories:
            say(f"pass {name}: {os.path.relpath(directory)}")
    if len(done.runs) > 1:
        say(f"all of them: pasta report {shlex.quote(os.path.relpath(whole))}")


def _run(launcher: Launcher, verbosity: int, *, report: bool = True) -> int:
    """Waits for the target and finishes its runs, with a report of them; a failure here does not
    change its status."""
    session = launcher.session
    status = launcher.wait()
    try:
        launcher.finish()
        left = launcher.alive()
        if left and any(w.ring.used and not w.ended for w in launcher.rings.values()):
            say(counted(len(left), *_STILL_RUNNING))
        if report:
            _report(launcher.outcomes, verbosity)
        if not launcher.outcomes:
            _explain_no_run(session, verbosity)
        if verbosity > 0 and (session.directory / "log.txt").exists():
            say((session.directory / "log.txt").read_text(errors="replace"))
        if left:
            launcher.continue_in_background()
        elif not launcher.unsaved():
            session.remove()
    except (Exception, KeyboardInterrupt) as error:
        say(f"the run could not be finished ({error!r}): try again with pasta recover")
    launcher.stop_sampling()
    return status
