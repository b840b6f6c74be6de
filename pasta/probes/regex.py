"""Translates Python's regular expressions to POSIX extended ones, which C matches at every launch.

`-k` and `--exclude` take Python's dialect, which replays and filters of recorded runs evaluate with
`re`; the library in the program has only `regexec`, and decides before any Python runs. The common
subset of both dialects lacks `\\d`, `\\w`, `(?i)`, `(?:…)`, lazy repetition and `\\.` inside
brackets, and a backslash in brackets is literal in POSIX, so that one text could select different
kernels.

Only expressions with the same meaning for names of kernels (one line, mostly ASCII) are translated.
Filters only search for a match, so greedy and lazy repetition are equal.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterable
from typing import Any

from pasta.errors import ConfigError

_MAX_REPEATS = 255
_SPECIAL = frozenset(".[\\()*+?{|^$")
#: Characters of names; a line feed would end the line of the setting.
_ASCII = frozenset(range(1, 128)) - {ord("\n")}
_CATEGORIES = {
    name: frozenset(code for code in _ASCII if re.match(pattern, chr(code)))
    for name, pattern in {"DIGIT": r"\d", "SPACE": r"\s", "WORD": r"\w"}.items()
}
_REMEDIES = {
    "AT_BOUNDARY": "write the characters around it, such as (^|[^a-z])",
    "AT_NON_BOUNDARY": "write the characters around it",
    "ASSERT": "write the text that must stand there as part of the expression",
    "ASSERT_NOT": "use --exclude for what is not wanted",
    "GROUPREF": "repeat the text",
    "GROUPREF_EXISTS": "write both cases with |",
    "POSSESSIVE_REPEAT": "repeat without the +",
    "ATOMIC_GROUP": "write (…)",
}
_MEANINGS = {
    "AT_BOUNDARY": r"\b", "AT_NON_BOUNDARY": r"\B", "ASSERT": "(?=…) or (?<=…)",
    "ASSERT_NOT": "(?!…) or (?<!…)", "GROUPREF": "a reference to a group",
    "GROUPREF_EXISTS": "(?(…)…)", "POSSESSIVE_REPEAT": "a possessive repetition",
    "ATOMIC_GROUP": "(?>…)",
}  # fmt: skip


class _Untranslatable(Exception):
    """A construct without a POSIX form; `remedy`: what to write."""

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(what)
        self.remedy = remedy


def posix(pattern: str, key: str) -> str:
    """The POSIX extended expression that matches the same names as `pattern`.

    `key` names the setting in errors. Raises ConfigError if there is none.
    """
    # the parser of `re`, whose module has another name before 3.11
    name = "re._parser" if sys.version_info >= (3, 11) else "sre_parse"
    parser: Any = importlib.import_module(name)
    try:
        tree = parser.parse(pattern)
        return _Writer(bool(tree.state.flags & re.IGNORECASE)).sequence(tree)
    except re.error as error:
        raise ConfigError(
            f"{key} = {pattern!r} is not a regular expression ({error})",
            remedy="escape special characters with a backslash",
        ) from None
    except _Untranslatable as error:
        raise ConfigError(
            f"{key} = {pattern!r} cannot be used with probes: {error}", remedy=error.remedy
        ) from None


class _Writer:
    """Writes a parsed expression, with groups around alternatives and repeated sequences."""

    def __init__(self, ignore_case: bool) -> None:
        self.ignore_case = ignore_case
        self.anchors = 0  # written so far

    def sequence(self, items: Iterable[Any]) -> str:
        return "".join(self.item(str(op), argument) for op, argument in items)

    def item(self, op: str, argument: Any) -> str:
        if op == "LITERAL":
            return self.literal(argument)
        if op == "NOT_LITERAL":
            return _complement(self.cases({argument}), argument)
        if op == "ANY":
            return "."
        if op == "IN":
            return self.one_of(argument)
        if op == "BRANCH":
            return self.branch([self.sequence(each) for each in argument[1]])
        if op == "SUBPATTERN":
            _, added, removed, items = argument
            if (added | removed) & ~re.UNICODE:
                raise _Untranslatable("(?i:…) and its like", "write the flag first: (?i)")
            return f"({self.sequence(items)})"
        if op in ("MAX_REPEAT", "MIN_REPEAT"):
            return self.repeat(*argument)
        if op == "AT":
            return self.anchor(str(argument))
        raise self.unknown(op)

    def unknown(self, op: str) -> _Untranslatable:
        remedy = _REMEDIES.get(op, "remove it")
        return _Untranslatable(_MEANINGS.get(op, op.lower()), remedy)

    def anchor(self, where: str) -> str:
        self.anchors += 1
        if where in ("AT_BEGINNING", "AT_BEGINNING_STRING"):
            return "^"
        if where in ("AT_END", "AT_END_STRING"):
            return "$"
        raise self.unknown(where)

    def literal(self, code: int) -> str:
        both = self.cases({code})
        if len(both) > 1:
            return _members(both)
        text = chr(code)
        if text in "\0\n":
            raise _Untranslatable("a character that no name has", "remove it")
        if text in _SPECIAL:
            return f"\\{text}"
        # a repetition applies to the whole character, not to its last byte
        return text if code in _ASCII else f"({text})"

    def cases(self, codes: Iterable[int]) -> frozenset[int]:
        found = frozenset(codes)
        if not self.ignore_case:
            return found
        texts = {chr(code) for code in found if code in _ASCII}
        return found | {ord(c) for text in texts for c in (text.lower(), text.upper())}

    def one_of(self, items: Iterable[Any]) -> str:
        codes: set[int] = set()
        others = negated = False  # others: all characters beyond ASCII
        for op, argument in ((str(op), argument) for op, argument in items):
            if op == "NEGATE":
                negated = True
            elif op == "LITERAL":
                codes.add(argument)
            elif op == "RANGE":
                codes.update(range(argument[0], argument[1] + 1))
            else:  # CATEGORY_DIGIT, CATEGORY_NOT_DIGIT, …
                name = str(argument).removeprefix("CATEGORY_")
                inverse = name.startswith("NOT_")
                members = _CATEGORIES[name.removeprefix("NOT_")]
                codes |= _ASCII - members if inverse else members
                others |= inverse != (name.removeprefix("NOT_") == "WORD")  # letters, mostly
        if not codes <= _ASCII | {0, ord("\n")}:
            raise _Untranslatable(
                "a character beyond ASCII in [ ]", "write the characters with | instead"
            )
        found = self.cases(codes) & _ASCII
        if negated:
            found, others = _ASCII - found, not others
        if others:
            return _complement(_ASCII - found)
        return _members(found)

    def branch(self, parts: list[str]) -> str:
        written = "|".join(part for part in parts if part)
        if not written:
            return ""
        return f"({written})?" if "" in parts else f"({written})"

    def repeat(self, minimum: int, maximum: Any, items: Any) -> str:
        anchors = self.anchors
        inner = self.sequence(items)
        if not inner:
            return ""
        if len(items) > 1 or str(items[0][0]) not in (
            "LITERAL",
            "NOT_LITERAL",
            "ANY",
            "IN",
            "SUBPATTERN",
        ):
            inner = f"({inner})"
        unbounded = str(maximum) == "MAXREPEAT"
        if minimum > _MAX_REPEATS or (not unbounded and maximum > _MAX_REPEATS):
            raise _Untranslatable(f"more than {_MAX_REPEATS} repetitions", "write + or *")
        if (
            self.anchors > anchors
        ):  # write out the copies: glibc drops anchors in copies that it makes
            rest = f"{inner}*" if unbounded else f"{inner}?" * (maximum - minimum)
            return inner * minimum + rest
        if unbounded:
            return inner + {0: "*", 1: "+"}.get(minimum, f"{{{minimum},}}")
        return inner + ("?" if (minimum, maximum) == (0, 1) else f"{{{minimum},{maximum}}}")


def _complement(codes: Iterable[int], *named: int) -> str:
    if not set(named) <= _ASCII:
        raise _Untranslatable("a character beyond ASCII in [ ]", "write it without")
    codes = frozenset(codes)
    return f"[^{_inside(codes)}]" if codes else "."


def _members(codes: frozenset[int]) -> str:
    if not codes:
        raise _Untranslatable("a class without members", "write it without")
    if len(codes) == 1:
        (code,) = codes
        return f"\\{chr(code)}" if chr(code) in _SPECIAL else chr(code)
    if codes == {ord("^"), ord("-")}:
        return r"(\^|-)"
    return f"[{_inside(codes)}]"


def _inside(codes: frozenset[int]) -> str:
    """Members one by one, since ranges depend on the program's locale: ] first, ^ and - last."""
    texts = {chr(code) for code in codes}
    plain = "".join(sorted(texts - set("]^-")))
    return "]" * ("]" in texts) + plain + "^" * ("^" in texts) + "-" * ("-" in texts)
