"""Command-line parsing: errors in one line with a remedy, and suggestions for misspelt options."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from typing import NoReturn

from pasta.errors import PastaError, shown, visible

#: Exit statuses: for a wrong command line or input, and after Ctrl-C.
USAGE, INTERRUPTED = 2, 130
_BROKEN_PIPE = 141


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line with the prefix `pasta:`."""

    #: Where the arguments are from, in errors: "" for the command line.
    place = ""

    def error(self, message: str) -> NoReturn:
        """Exits with a usage error."""
        self.exit(USAGE, f"pasta: {self.place}{visible(message)}: see {self.prog} --help\n")

    def unknown(self, arguments: list[str]) -> NoReturn:
        """Exits with an error for unrecognized arguments."""
        wrong = next((each for each in arguments if each.startswith("-")), arguments[0])
        if not wrong.startswith("-"):
            self.error(f"unexpected argument {wrong!r}")
        from difflib import get_close_matches

        name = wrong.partition("=")[0]
        close = get_close_matches(name, list(self._option_string_actions), n=2)
        hint = f": did you mean {' or '.join(close)}?" if close else ""
        hint = hint or f": see {self.prog} --help"
        self.exit(USAGE, f"pasta: {self.place}unknown option {visible(name)}{hint}\n")


def count(text: str) -> int:
    """Option type: a whole number of at least 1. Raises ArgumentTypeError."""
    if not text.isdecimal() or not 1 <= int(text[:9]) == int(text[:20]):
        raise argparse.ArgumentTypeError(f"{shown(text)} is not a whole number from 1 to 999999999")
    return int(text)


def ended_by(work: Callable[[], int]) -> int:
    """Exit status of `work`: errors become lines on stderr; Ctrl-C and a closed stdout print no
    traceback."""
    if sys.stdout is not None and hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")  # for locales without UTF-8
    try:
        try:
            status = work()
        except SystemExit as end:  # raised by argparse for --help
            status = end.code if isinstance(end.code, int) else int(end.code is not None)
        if sys.stdout is not None:
            sys.stdout.flush()
        return status
    except PastaError as error:
        sys.stderr.write("".join(f"pasta: {visible(line)}\n" for line in str(error).split("\n")))
        return USAGE
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        _drop_output()
        return _BROKEN_PIPE
    except OSError as error:
        _drop_output()
        where = f"{error.filename}: " if error.filename else ""
        sys.stderr.write(f"pasta: {visible(f'{where}{error.strerror or error}')}\n")
        return USAGE


def _drop_output() -> None:
    """Discards what stdout has buffered, so that flushing does not fail again at exit."""
    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
