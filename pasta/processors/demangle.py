"""Demangled and shortened kernel names."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from os.path import commonprefix
from typing import Any

_CLOSING = {"(": ")", "<": ">", "[": "]", "{": "}"}


@cache
def _libraries() -> tuple[Any, Any] | None:
    """`__cxa_demangle` and `free`, or None where libstdc++ is missing."""
    import ctypes

    try:
        cxa_demangle = ctypes.CDLL("libstdc++.so.6").__cxa_demangle
        free = ctypes.CDLL(None).free
    except (OSError, AttributeError):
        return None
    cxa_demangle.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
    cxa_demangle.restype = ctypes.c_void_p
    free.argtypes = [ctypes.c_void_p]
    free.restype = None
    return cxa_demangle, free


@cache
def demangle(name: str) -> str:
    """Demangled C++ name (Itanium ABI); any other name is returned unchanged."""
    if not name.startswith("_Z"):
        return name
    import ctypes

    libraries = _libraries()
    if libraries is None or "\0" in name:
        return name
    cxa_demangle, free = libraries
    text = cxa_demangle(name.encode("utf-8", "surrogateescape"), None, None, None)
    if not text:
        return name
    try:
        return ctypes.string_at(text).decode("utf-8", "replace")
    finally:
        free(text)


@cache
def short_name(name: str) -> str:
    """Qualified name without return type, template arguments and parameters, for tables.

    Takes a mangled or a demangled name.
    """
    text = demangle(name)
    out: list[str] = []
    at = 0
    while at < len(text):
        operator = _operator_at(text, at)
        if operator:
            out.append(operator)
            at += len(operator)
        elif text.startswith("(anonymous namespace)", at):
            out.append("(anonymous namespace)")
            at += len("(anonymous namespace)")
        elif text[at] in "<([":
            end = _past_group(text, at)
            if text[at] == "[" or (text[at] == "(" and not _continues(text, end)):
                break
            at = end if text[at] == "<" else text.index("::", end)
        elif text[at] == "{":
            end = _past_group(text, at)
            out.append(text[at:end].partition("(")[0].rstrip("}") + "}")
            at = end
        elif text[at] == " " and not _in_operator(out):
            if text[at + 1 : at + 2] != "<":  # not the arguments of `operator< <int>`
                out.clear()  # it was the return type
            at += 1
        else:
            out.append(text[at])
            at += 1
    return "".join(out) or text


_MAX_EXCERPT = 40


def distinct_names(names: Sequence[str]) -> list[str]:
    """Short names; names with equal short names get an excerpt where their template arguments
    differ.

    `at::elementwise<4, A<float>>(int)` beside `at::elementwise<4, B<float>>(int)` becomes
    `at::elementwise<..A<float>>`. Accepts demangled names; equal names stay equal.
    """
    shorts = [short_name(name) for name in names]
    groups: dict[str, list[str]] = {}
    for short, name in zip(shorts, names, strict=True):
        groups.setdefault(short, []).append(name)
    return [
        short if len(set(groups[short])) == 1 else _with_excerpt(short, name, groups[short])
        for short, name in zip(shorts, names, strict=True)
    ]


def _with_excerpt(short: str, name: str, group: Sequence[str]) -> str:
    same = commonprefix(list(group))  # noqa: RUF071 (characters are meant)
    start = max(same.rfind(mark) for mark in "<, ") + 1
    excerpt = name[start : start + _MAX_EXCERPT]
    left = ".." if len(name) > start + _MAX_EXCERPT else ""
    return f"{short}<..{excerpt}{left}"


def _operator_at(text: str, at: int) -> str:
    """`operator` with its symbol if one starts at `at`, otherwise empty."""
    if not text.startswith("operator", at) or (
        at and (text[at - 1].isalnum() or text[at - 1] == "_")
    ):
        return ""
    rest = text[at + 8 :]
    for symbol in ("()", "[]", "<=>", "<<=", ">>=", "<<", ">>", "<=", ">=", "->*", "->", "<", ">"):
        if rest.startswith(symbol):
            return "operator" + symbol
    return ""


def _in_operator(out: list[str]) -> bool:
    return "".join(out[-8:]).endswith("operator")


def _past_group(text: str, at: int) -> int:
    """Index after the bracket that closes the one at `at`; the end of the text if unclosed."""
    open_brackets = []
    while at < len(text):
        operator = _operator_at(text, at)
        if operator:
            at += len(operator)
            continue
        character = text[at]
        if character in _CLOSING:
            open_brackets.append(_CLOSING[character])
        elif open_brackets and character == open_brackets[-1] and text[at - 1 : at + 1] != "->":
            open_brackets.pop()
            if not open_brackets:
                return at + 1
        at += 1
    return at


def _continues(text: str, at: int) -> bool:
    """Whether `at` follows the parameters of a function that encloses the named entity."""
    for qualifier in (" const", " &", " &&", " volatile", " noexcept"):
        if text.startswith(qualifier + "::", at):
            return True
    return text.startswith("::", at)
