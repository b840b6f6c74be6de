"""Results of the third-party campaign: a JSON file for each list, and its section of
docs/third-party.md.

A program is recorded when its lines have run, so that a campaign may be stopped, and a program that
changed may run alone.  Results of an entry that has changed since do not count.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pasta.version import VERSION
from tests.support.places import ROOT

if TYPE_CHECKING:
    from tests.campaigns.third_party import Compared, Kind, Program

PAGE = ROOT / "docs" / "third-party.md"
RESULTS = Path(__file__).parent

_MODULE_VERSIONS = """
import importlib.metadata as m, json, platform, sys
names = m.packages_distributions()
of = {each: names.get(each, [None])[0] for each in sys.argv[1:]}
versions = {f"CPython {platform.python_version()}" if each == "test" else
            f"{name} {m.version(name)}" for each, name in of.items() if name or each == "test"}
print(json.dumps(sorted(versions)))
"""


def record(kind: Kind, found: list[Compared], python: str, path: str) -> None:
    """Records the lines of one program, whose commands are in `path`."""
    program = found[0].program
    document = _read(kind)
    document["system"] = _system()
    document["programs"][program.name] = {
        "entry": _digest(program),
        "date": time.strftime("%Y-%m-%d"),
        "pasta": VERSION,
        "versions": [*_packages(program, path), *_modules(program, python)],
        "printed": sum(each.printed for each in found),
        "unstable": sum(bool(each.unstable) for each in found),
        "differing": {each.line: _aspects(each) for each in found if each.differences},
    }
    file = _file(kind)
    beside = file.with_suffix(".tmp")
    beside.write_text(json.dumps(document, indent=1, sort_keys=True) + "\n")
    beside.replace(file)


def write_section(kind: Kind, programs: Iterable[Program]) -> None:
    """Replaces the section of a list on the page. Raises ValueError if the page has no place."""
    begin, end = (f"<!-- {word} of the results of --{kind.name} -->" for word in ("begin", "end"))
    page = PAGE.read_text()
    pattern = re.compile(f"{re.escape(begin)}\n.*?{re.escape(end)}", re.DOTALL)
    if not pattern.search(page):
        raise ValueError(f"{PAGE} has no lines {begin} and {end}")
    text = "\n".join([begin, *section(kind, programs), end])
    PAGE.write_text(pattern.sub(lambda _: text, page))


def results(kind: Kind, programs: Iterable[Program]) -> dict[str, dict[str, Any]]:
    """Recorded results of those of the programs that have not changed since, by name."""
    document = _read(kind)["programs"]
    return {
        program.name: document[program.name]
        for program in programs
        if document.get(program.name, {}).get("entry") == _digest(program)
    }


def section(kind: Kind, programs: Iterable[Program]) -> list[str]:
    """Lines of Markdown; `programs`: of the list as it is now."""
    programs = list(programs)
    found = results(kind, programs)
    ran = [program for program in programs if program.name in found]
    absent = [program.name for program in programs if program.name not in found]
    if not ran:
        return ["Not run yet."]

    def figures(members: list[Program]) -> list[int]:
        rows = [found[each.name] for each in members]
        return [
            sum(len(each.lines) for each in members), sum(row["printed"] for row in rows),
            sum(row["unstable"] for row in rows), sum(len(row["differing"]) for row in rows),
        ]  # fmt: skip

    dates = sorted(result["date"] for result in found.values())
    options = ", ".join(f"`{' '.join(way.options)}`" for way in kind.ways)
    lines, _, unstable, differing = figures(ran)
    text = [
        f"{' to '.join(dict.fromkeys((dates[0], dates[-1])))}, PASTA "
        f"{', '.join(sorted({result['pasta'] for result in found.values()}))}, "
        f"{_read(kind)['system']}, with {options}: **{lines} lines of {len(ran)} programs, "
        f"{differing} with differences**; {unstable} are not the same in runs without PASTA.",
        "",
        "| | programs | lines | of output | not the same by themselves | differences |",
        "|---|---|--:|--:|--:|--:|",
    ]
    for group in dict.fromkeys(program.group for program in ran):
        members = [program for program in ran if program.group == group]
        cells = [group, ", ".join(each.name for each in members)]
        text.append(f"| {' | '.join([*cells, *(f'{each:,}' for each in figures(members))])} |")
    different = [
        f"- `{name}: {line.strip().splitlines()[0]}`: {aspects}"
        for name, result in found.items()
        for line, aspects in result["differing"].items()
    ]
    if different:
        text += ["", *different]
    if absent:
        text += ["", f"Not run: {', '.join(absent)}."]
    if versions := sorted({each for result in found.values() for each in result["versions"]}):
        text += ["", "<details><summary>Versions</summary>", "", f"{', '.join(versions)}.", ""]
        text += ["</details>"]
    return text


def _file(kind: Kind) -> Path:
    return RESULTS / f"third_party_{kind.name}.json"


def _read(kind: Kind) -> dict[str, Any]:
    file = _file(kind)
    document: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {"programs": {}}
    return document


def _digest(program: Program) -> str:
    """Of what decides the result."""
    ignored = program.ignore, program.ignore_files
    entry = program.lines, program.needs, program.imports, *ignored
    return hashlib.sha256(repr(entry).encode()).hexdigest()[:16]


def _aspects(found: Compared) -> str:
    return ", ".join(f"{aspect} ({way})" for way, aspect in sorted(found.differences))


def _system() -> str:
    release = platform.freedesktop_os_release()["PRETTY_NAME"]
    return f"{release}, Linux {platform.release()}, {os.cpu_count()} processors"


def _packages(program: Program, path: str) -> list[str]:
    """Debian packages of the program's commands, with versions; none on another system."""
    commands = {name for need in program.needs for name in need.split("|")}
    files = {Path(file) for name in commands if (file := shutil.which(name, path=path))}
    if not files or not shutil.which("dpkg-query"):
        return []
    # a package may own the link, or the file behind it, or either without the /usr of merged trees
    names = {str(name) for file in files for name in (file, file.resolve())}
    names |= {name.removeprefix("/usr") for name in names}
    owners = subprocess.run(["dpkg-query", "-S", *names], capture_output=True, text=True).stdout
    packages = {line.partition(":")[0] for line in owners.splitlines() if "diversion" not in line}
    if not packages:
        return []
    query = ["dpkg-query", "-W", "-f", "${Package} ${Version}\n", *packages]
    return sorted(subprocess.run(query, capture_output=True, text=True).stdout.splitlines())


def _modules(program: Program, python: str) -> list[str]:
    """Distributions of the program's modules, with versions."""
    modules = sorted({name.partition(".")[0] for name in program.imports})
    if not modules:
        return []
    command = [python, "-c", _MODULE_VERSIONS, *modules]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    versions: list[str] = json.loads(done.stdout)
    return versions
