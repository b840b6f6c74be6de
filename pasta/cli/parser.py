"""Command lines: errors in one line with a remedy, and what a misspelt option may have meant."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from typing import NoReturn

from pasta.errors import PastaError, shown, visible

_USAGE_STATUS = 2
_INTERRUPTED = 130
_BROKEN_PIPE = 141


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line under `pasta:`."""

    def error(self, message: str) -> NoReturn:
        self.exit(_USAGE_STATUS, f"pasta: {visible(message)}: see {self.prog} --help\n")

    def unknown(self, arguments: list[str]) -> NoReturn:
        """Refuses arguments that no option or positional takes."""
        wrong = next((each for each in arguments if each.startswith("-")), arguments[0])
        if not wrong.startswith("-"):
            self.error(f"{wrong!r} is one argument too many")
        from difflib import get_close_matches

        name = wrong.partition("=")[0]
        close = get_close_matches(name, list(self._option_string_actions), n=2)
        hint = f": did you mean {' or '.join(close)}?" if close else ""
        self.exit(
            _USAGE_STATUS,
            f"pasta: unknown option {visible(name)}{hint or f': see {self.prog} --help'}\n",
        )


def count(text: str) -> int:
    """The value of an option that counts: 1 or more."""
    if not text.isdecimal() or not 1 <= int(text[:9]) == int(text[:20]):
        raise argparse.ArgumentTypeError(f"{shown(text)} is not a whole number from 1 to 999999999")
    return int(text)


def ended_by(work: Callable[[], int]) -> int:
    """Exit status of `work`: errors are lines on stderr, and there is no traceback for Ctrl-C, nor
    where the reader of stdout is gone."""
    if sys.stdout is not None and hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")  # of a locale without UTF-8
    try:
        try:
            status = work()
        except SystemExit as end:  # argparse's, of --help
            status = end.code if isinstance(end.code, int) else int(end.code is not None)
        if sys.stdout is not None:
            sys.stdout.flush()
        return status
    except PastaError as error:
        sys.stderr.write("".join(f"pasta: {visible(line)}\n" for line in str(error).split("\n")))
        return _USAGE_STATUS
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:
        _drop_output()
        return _BROKEN_PIPE
    except OSError as error:
        _drop_output()
        where = f"{error.filename}: " if error.filename else ""
        sys.stderr.write(f"pasta: {visible(f'{where}{error.strerror or error}')}\n")
        return _USAGE_STATUS


def _drop_output() -> None:
    """What stdout has buffered goes nowhere, so that it does not fail again at exit."""
    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
