"""Python's regular expressions as POSIX extended ones, which C decides by at every launch.

Only what has the same meaning for names of kernels (one line, mostly ASCII) is translated. What is
asked is whether an expression is found at all, so greedy and lazy repetition are the same.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterable
from typing import Any

from pasta.errors import ConfigError

_MOST_REPEATS = 255
_SPECIAL = frozenset(".[\\()*+?{|^$")
#: Characters that names may have; a line feed would end the line of the setting.
_ASCII = frozenset(range(1, 128)) - {ord("\n")}
_CATEGORIES = {
    name: frozenset(code for code in _ASCII if re.match(pattern, chr(code)))
    for name, pattern in {"DIGIT": r"\d", "SPACE": r"\s", "WORD": r"\w"}.items()
}
_REMEDIES = {
    "AT_BOUNDARY": "write the characters around it, such as (^|[^a-z])",
    "AT_NON_BOUNDARY": "write the characters around it",
    "ASSERT": "write what stands there as part of the expression",
    "ASSERT_NOT": "use --exclude for what is not wanted",
    "GROUPREF": "write the text again",
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
    """`what` has no POSIX form; `remedy` says what to write."""

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(what)
        self.remedy = remedy


def posix(pattern: str, key: str) -> str:
    """The POSIX extended expression that is found in the same names as `pattern` is.

    `key` names the setting in errors. Raises ConfigError where there is none.
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
    """Writes a parsed expression; nothing but groups is written around what binds less."""

    def __init__(self, ignore_case: bool) -> None:
        self.ignore_case = ignore_case

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
        remedy = _REMEDIES.get(op, "write it without")
        return _Untranslatable(_MEANINGS.get(op, op.lower()), remedy)

    def anchor(self, where: str) -> str:
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
            raise _Untranslatable("a character that no name has", "write it without")
        if text in _SPECIAL:
            return f"\\{text}"
        # a repetition means the whole character, not its last byte
        return text if code in _ASCII else f"({text})"

    def cases(self, codes: Iterable[int]) -> frozenset[int]:
        found = frozenset(codes)
        if not self.ignore_case:
            return found
        texts = {chr(code) for code in found if code in _ASCII}
        return found | {ord(c) for text in texts for c in (text.lower(), text.upper())}

    def one_of(self, items: Iterable[Any]) -> str:
        codes: set[int] = set()
        others = negated = False  # others: all that is not ASCII
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

    def repeat(self, least: int, most: Any, items: Any) -> str:
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
        unbounded = str(most) == "MAXREPEAT"
        if least > _MOST_REPEATS or (not unbounded and most > _MOST_REPEATS):
            raise _Untranslatable(f"more than {_MOST_REPEATS} repetitions", "write + or *")
        if unbounded:
            return inner + {0: "*", 1: "+"}.get(least, f"{{{least},}}")
        return inner + ("?" if (least, most) == (0, 1) else f"{{{least},{most}}}")


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
