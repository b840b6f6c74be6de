"""`pasta completion SHELL`: a script that completes the commands in bash, zsh or fish.

The script has all words in it, so that completing starts no Python.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

from pasta.backends import BACKENDS
from pasta.cli.demo import demo_names
from pasta.cli.main import VERBS, parsers
from pasta.config import AUTO, NONE, all_settings, preset_names
from pasta.plugins import tool_names

#: What completes an argument, by its metavar: the name of a list of words, or one of the others.
FILE, DIRECTORY, PROGRAM = "file", "directory", "program"
_KINDS = {
    **dict.fromkeys(("FILE", "FILE|-"), FILE),
    **dict.fromkeys(("DIR", "OUTDIR", "ROOT", "SESSION", "BEFORE", "AFTER", "A", "B"), DIRECTORY),
    "TOOL": "tools",
    "TOOL[.TABLE]": "tools",
    "TOOL|PRESET": "names",
    "PRESET|FILE": "presets",
    "KEY=VALUE": "settings",
    "DEMO": "demos",
}
#: Lists that take several words separated by commas, or a file.
SEVERAL = ("tools", "presets")
_WORDS = re.compile(r"[a-z0-9]+(\|[a-z0-9]+)+")  # on|off


class Argument(NamedTuple):
    """An option, or a positional argument; `kind` of its value: "" for none."""

    options: tuple[str, ...]
    metavar: str
    kind: str
    help: str
    optional: bool = False  # the value
    repeated: bool = False


def prepare(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's arguments to its parser."""
    parser.add_argument("shell", choices=tuple(SHELLS), help="the shell to complete in")


def run(options: argparse.Namespace) -> int:
    """Prints the script; the exit status."""
    print(SHELLS[options.shell](), end="")
    return 0


@cache
def lists() -> dict[str, list[str]]:
    """The words that arguments of each kind take."""
    tools, presets = tool_names(), preset_names(installed=True)
    return {
        "tools": tools,
        "presets": presets,
        "names": sorted({*tools, *presets}),
        "settings": [f"{each.key}=" for each in all_settings()],
        "backends": [AUTO, *(each.name for each in BACKENDS.known()), NONE],
        "demos": demo_names(),
        "verbs": list(VERBS),
    }


def arguments(parser: argparse.ArgumentParser) -> list[Argument]:
    """The arguments of a command or verb, in the order of its help."""
    return [
        Argument(
            tuple(action.option_strings),
            _metavar(action),
            _kind(action),
            "" if action.help is argparse.SUPPRESS else (action.help or "").replace("%%", "%"),
            action.nargs == "?",
            isinstance(action, argparse._AppendAction),
        )
        for action in parser._actions
    ]


def _metavar(action: argparse.Action) -> str:
    metavar = action.metavar[0] if isinstance(action.metavar, tuple) else action.metavar
    return metavar or "|".join(map(str, action.choices or [action.dest.upper()]))


def _kind(action: argparse.Action) -> str:
    if action.option_strings and action.nargs == 0:
        return ""
    if action.nargs == argparse.REMAINDER and action.dest == "command":
        return PROGRAM
    if "--backend" in action.option_strings:
        return "backends"
    if action.choices:
        return " ".join(map(str, action.choices))
    metavar = _metavar(action)
    if _WORDS.fullmatch(metavar):
        return metavar.replace("|", " ")
    return _KINDS.get(metavar, "none")


# ---- bash

_BASH = r"""# Completion of pasta and pasta-preload in bash, written by: pasta completion bash
@LISTS@
_pasta_kind() { # sets kind, of the value of an option or of the N-th argument; empty: no value
    case "$1 $2" in
@KINDS@
    *) kind= ;;
    esac
}

_pasta_options() {
    case $1 in
@OPTIONS@
    esac
}

_pasta_reply() { # completes a word of a kind
    local kind=$1 word=$2 before= words= reply=()
    case $kind in
    tools | presets)
        before=${word%"${word##*,}"} word=${word##*,}
        words=_pasta_$kind
        mapfile -t reply < <(compgen -W "${!words}" -- "$word")
        [[ $before ]] || mapfile -t -O ${#reply[@]} reply < <(compgen -f -- "$word")
        compopt -o nospace
        ;;
    settings)
        mapfile -t reply < <(compgen -W "$_pasta_settings" -- "$word")
        compopt -o nospace
        ;;
    file) compopt -o filenames; mapfile -t reply < <(compgen -f -- "$word") ;;
    directory) compopt -o filenames; mapfile -t reply < <(compgen -d -- "$word") ;;
    program) mapfile -t reply < <(compgen -c -- "$word") ;;
    none) ;;
    *' '*) mapfile -t reply < <(compgen -W "$kind" -- "$word") ;;
    ?*)
        words=_pasta_$kind
        mapfile -t reply < <(compgen -W "${!words}" -- "$word")
        ;;
    esac
    COMPREPLY=("${reply[@]/#/$before}")
}

_pasta() {
    local command=${1##*/} line=() at=() i word kind option= count=0 only=
    for ((i = 1; i <= COMP_CWORD; i++)); do # joins what bash splits at = and :
        word=${COMP_WORDS[i]}
        if ((i > 1)) && [[ $word == [=:] || ${COMP_WORDS[i - 1]} == [=:] ]]; then
            line[${#line[@]} - 1]+=$word
        else
            at+=("$i")
            line+=("$word")
        fi
    done
    word=${line[${#line[@]} - 1]}
    unset "line[${#line[@]} - 1]"
    if [[ $command == pasta && ${#line[@]} -gt 0 ]]; then
        command+=" ${line[0]}"
        line=("${line[@]:1}") at=("${at[@]:1}")
    fi
    for ((i = 0; i < ${#line[@]}; i++)); do
        if [[ $option ]]; then
            option=
        elif [[ ! $only && ${line[i]} == -- ]]; then
            only=1
        elif [[ ! $only && ${line[i]} == -?* ]]; then
            _pasta_kind "$command" "${line[i]%%=*}"
            [[ $kind && $kind != *'?' && ${line[i]} != *=* ]] && option=${line[i]}
        else
            ((count += 1))
            _pasta_kind "$command" "$count"
            if [[ $kind == program ]]; then # the rest is its own
                if declare -F _command_offset >/dev/null; then
                    _command_offset "${at[i]}"
                else
                    compopt -o default
                fi
                return
            fi
        fi
    done
    if [[ $option ]]; then
        _pasta_kind "$command" "$option"
    elif [[ ! $only && $word == --*=* ]]; then
        _pasta_kind "$command" "${word%%=*}"
        word=${word#*=}
    elif [[ ! $only && $word == -* ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$(_pasta_options "$command")" -- "$word")
        return
    else
        _pasta_kind "$command" "$((count + 1))"
    fi
    _pasta_reply "${kind%'?'}" "$word"
    [[ $word == *[=:]* ]] && COMPREPLY=("${COMPREPLY[@]#"${word%"${word##*[=:]}"}"}")
}

complete -F _pasta pasta pasta-preload
"""


def bash() -> str:
    """The script for bash."""
    kinds: dict[str, list[str]] = {}
    options = []
    for command, found in _commands().items():
        position = 0
        for each in found:
            if each.options:
                marks = each.options
            else:
                position += 1
                marks = (str(position),)
            kind = f"{each.kind}?" if each.optional and each.options else each.kind
            if kind:
                kinds.setdefault(kind, []).extend(f"'{command} {mark}'" for mark in marks)
        names = " ".join(name for each in found for name in each.options)
        options.append(f"    '{command}') echo '{names}' ;;")
    return _filled(
        _BASH,
        LISTS="".join(f"_pasta_{name}='{' '.join(words)}'\n" for name, words in lists().items()),
        KINDS="\n".join(
            f"    {' | '.join(marks)}) kind='{kind}' ;;" for kind, marks in kinds.items()
        ),
        OPTIONS="\n".join(options),
    )


# ---- zsh

_ZSH = r"""#compdef pasta pasta-preload
# Completion of pasta and pasta-preload in zsh, written by: pasta completion zsh
@LISTS@
_pasta_several() { # words of the list that the last argument names, separated by commas, or a file
    compset -P '*,' || _files
    compadd -S '' - ${(P)@[-1]}
}

_pasta_verb() {
    case $1 in
@VERBS@
    esac
}

_pasta() {
    local curcontext=$curcontext state line
    if [[ $service == pasta-preload ]]; then
        _arguments -S -s : @PRELOAD@
        return
    fi
    _arguments -C '(-)'{-h,--help}'[show this help message and exit]' \
        "--version[show program's version number and exit]" '(-)1: :->verb' '*:: :->argument'
    case $state in
    verb)
        local -a verbs=(@DESCRIBED@)
        _describe verb verbs
        ;;
    argument)
        curcontext=${curcontext%:*:*}:pasta-$line[1]:
        _pasta_verb $line[1]
        ;;
    esac
}

if [[ $funcstack[1] == _pasta ]]; then _pasta "$@"; else compdef _pasta pasta pasta-preload; fi
"""


def zsh() -> str:
    """The script for zsh."""
    commands = _commands()
    return _filled(
        _ZSH,
        LISTS="".join(f"_pasta_{name}=({' '.join(words)})\n" for name, words in lists().items()),
        VERBS="\n".join(
            f"    {verb}) _arguments -s : {_specs(commands[f'pasta {verb}'])} ;;" for verb in VERBS
        ),
        PRELOAD=_specs(commands["pasta-preload"]),
        DESCRIBED=" ".join(
            _quoted(f"{verb}:{description}") for verb, (_, description) in VERBS.items()
        ),
    )


def _specs(found: list[Argument]) -> str:
    """Arguments as _arguments of zsh takes them."""
    specs = []
    position = 0
    for each in found:
        value = f"{each.metavar.replace(':', chr(92) + ':')}:{_zsh_action(each.kind)}"
        if each.options:
            text = re.sub(r"([\[\]:\\])", r"\\\1", each.help)
            value = f":{':' * each.optional}{value}" if each.kind else ""
            once = "*" if each.repeated else f"({' '.join(each.options)})"
            specs += [
                _quoted(f"{once}{name}{'+' * (bool(value) and len(name) == 2)}"
                        f"{'=' * (bool(value) and len(name) > 2)}[{text}]{value}")
                for name in each.options
            ]  # fmt: skip
        elif each.kind == PROGRAM:
            specs += ["'(-)1:program:_command_names -e'", "'*::argument:_normal'"]
        else:
            position += 1
            specs.append(_quoted(f"{position}:{value}"))
    return " ".join(specs)


def _zsh_action(kind: str) -> str:
    if kind in SEVERAL:
        return f"_pasta_several _pasta_{kind}"
    if kind == "settings":
        return "compadd -S '' - $_pasta_settings"
    if kind in (FILE, DIRECTORY):
        return "_files" if kind == FILE else "_files -/"
    if kind in lists():
        return f"compadd - $_pasta_{kind}"
    return f"({kind})" if " " in kind else " "


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


# ---- fish

_FISH = r"""# Completion of pasta and pasta-preload in fish, written by: pasta completion fish
@LISTS@
function __pasta_several # the words, after those before the last comma
    set -l before (commandline -ct | string match -r '^(?:--[^=]*=)?(.*,)?')[2]
    printf '%s\n' "$before"$argv
    test -z "$before" && __fish_complete_path (commandline -ct | string replace -r '^--[^=]*=' '')
end

complete -c pasta -f
complete -c pasta-preload -f
complete -c pasta -n __fish_use_subcommand -s h -l help -d 'show this help message and exit'
complete -c pasta -n __fish_use_subcommand -l version -d "show program's version number and exit"
@COMMANDS@
"""


def fish() -> str:
    """The script for fish."""
    lines = [
        f"complete -c pasta -n __fish_use_subcommand -a {verb} -d {_fish_quoted(description)}"
        for verb, (_, description) in VERBS.items()
    ]
    for command, found in _commands().items():
        program, _, verb = command.partition(" ")
        if command == "pasta":
            continue
        when = f"complete -c {program}"
        if verb:
            when += f" -n '__fish_seen_subcommand_from {verb}'"
        valued = " ".join(name for each in found if each.kind for name in each.options)
        for each in found:
            line = when
            for name in each.options:
                line += f" -s {name[1:]}" if len(name) == 2 else f" -l {name[2:]}"
            if each.kind and each.options:
                line += "" if each.optional else " -r" if each.kind == FILE else " -x"
            if each.kind:
                line += _fish_values(each.kind, valued)
            if each.options:
                line += f" -d {_fish_quoted(each.help)}"
            if each.options or each.kind != "none":
                lines.append(line)
    return _filled(
        _FISH,
        LISTS="".join(
            f"set -g __pasta_{name} {' '.join(words)}\n" for name, words in lists().items()
        ),
        COMMANDS="\n".join(lines),
    )


def _fish_values(kind: str, valued: str) -> str:
    if kind == PROGRAM:
        return f" -a '(__fish_complete_subcommand -- {valued})'"
    if kind in SEVERAL:
        return f" -a '(__pasta_several $__pasta_{kind})'"
    if kind in (FILE, DIRECTORY):
        return " -F" if kind == FILE else " -a '(__fish_complete_directories (commandline -ct))'"
    if kind in lists():
        return f" -a '$__pasta_{kind}'"
    return f" -a {_fish_quoted(kind)}" if " " in kind else ""


def _fish_quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _commands() -> dict[str, list[Argument]]:
    """The arguments of each command and verb; of `pasta` itself its verbs."""
    return {
        "pasta": [
            Argument(("-h", "--help"), "", "", ""),
            Argument(("--version",), "", "", ""),
            Argument((), "VERB", "verbs", ""),
        ],
        **{command: arguments(parser) for command, parser in parsers().items()},
    }


def _filled(template: str, **parts: str) -> str:
    for name, text in parts.items():
        template = template.replace(f"@{name}@", text)
    return template


SHELLS: dict[str, Callable[[], str]] = {"bash": bash, "zsh": zsh, "fish": fish}
