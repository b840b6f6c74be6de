"""Regular expressions for C: the C library matches the same names as Python."""

from __future__ import annotations

import ctypes
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pasta.errors import ConfigError
from pasta.probes.regex import posix
from tests.support.examples import examples

REG_EXTENDED, REG_NOSUB = 1, 8
LIBC = ctypes.CDLL(None)


def found(pattern: str, text: str) -> bool:
    """Whether the C library finds a POSIX extended expression in a text."""
    compiled = ctypes.create_string_buffer(256)  # more than a regex_t supports
    assert LIBC.regcomp(compiled, pattern.encode(), REG_EXTENDED | REG_NOSUB) == 0, pattern
    try:
        return bool(LIBC.regexec(compiled, text.encode(), 0, None, 0) == 0)
    finally:
        LIBC.regfree(compiled)


NAMES = (
    "", "a", "b", "-", "^", "]", "vadd", "gemm", "_Z4gemmIfEvT_", "void gemm<float>(float)",
    "void gemm<double>(double)", "at::native::vectorized_elementwise_kernel<4, Add<float>>",
    "sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize64x64x8", "aab", "abab", "a.b", "a+b", "x]y",
    "{lambda(int)#1}::operator()(int) const", "größe", "GEMM", "a b\tc", "$", "\\", "[a]",
)  # fmt: skip

PATTERNS = (
    "gemm", "gemm|vadd", "^vadd$", r"\Avadd\Z", "g.*f", "a?b+", "(ab){2}", "(ab){2,}", "a{0,1}b",
    "a{0,0}b", "(?:a|b)+$", "(?P<name>a)b", "[abc]", "[^abc]", "[a-c_]", r"\d+", r"\D", r"\w+<",
    r"[\w:]+<", r"[^\w]", r"\s", r"\S+ \S+", r"[\s\S]", r"a\.b", r"a\+b", r"\(int\)", "[]]", "[^]]",
    "[-]", "[a-]", "[]^-]", r"[\^]", r"[\^\-]", "[$]", r"\\", r"\[a\]", "a*?b", "a|", "(a|)b", "()",
    "", "(|)", "x*", "^", "$", "(?:^)*a", "größe", "ö+", "(?i)gemm", "(?i)[a-g]emm", "(?i)V.dd",
    "{",
    "}", "a{b", "a|b|vadd", "(?#comment)a", "tf32f32_(f32|f16)_t[nt]", "[.]", r"[\[.]", "[a[:]",
    "(a)(b)(a)", "[0-9]{2}x[0-9]{2}", "kernel<[^>]*Add",
)  # fmt: skip


@pytest.mark.parametrize("pattern", PATTERNS)
def test_matches_like_python(pattern: str) -> None:
    translated = posix(pattern, "filter.kernel")
    assert "\n" not in translated
    for name in NAMES:
        assert found(translated, name) == bool(re.search(pattern, name)), (translated, name)


_ATOMS = st.sampled_from(
    ["a", "b", "c", "-", ".", "[ab]", "[^ab]", "[a-c]", r"\d", r"\w", r"[\W-]", r"\.", "^", "$"]
)
_PATTERNS = st.recursive(
    _ATOMS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map("".join),
        st.lists(inner, min_size=1, max_size=3).map("|".join).map("({})".format),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{1,3}", "*?"])).map(
            lambda both: f"(?:{both[0]}){both[1]}"
        ),
    ),
    max_leaves=8,
)


@examples(400)
@example(r"(?:([\W-]|aa|a^)){2}", "a^")  # glibc ignores anchors in copies that it makes
@example("(?:c|^b)+x", "cbx")
@example("(?:c|^b){1,3}x", "cbx")
@example("(?:$a|b){1,}", "$a")
@given(_PATTERNS, st.text("abcd-.5^$ ", max_size=8))
def test_random_expressions_match_like_python(pattern: str, text: str) -> None:
    assert found(posix(pattern, "x"), text) == bool(re.search(pattern, text))


@pytest.mark.parametrize(
    ("pattern", "what"),
    [
        (r"\bgemm", r"\\b"),
        ("(?=a)b", "cannot be used with probes"),
        ("(?!a)b", "--exclude"),
        (r"(a)\1", "repeat the text"),
        ("(?i:a)b", "write the flag first"),
        ("a{300}", "255 repetitions"),
        ("[öx]", "beyond ASCII"),
        ("[^ö]", "beyond ASCII"),
        (r"a\nb", "no name has"),
        ("(", "is not a regular expression"),
    ],
)
def test_untranslatable_expressions_are_rejected(pattern: str, what: str) -> None:
    with pytest.raises(ConfigError, match=what) as error:
        posix(pattern, "filter.kernel")
    assert str(error.value).startswith(f"filter.kernel = {pattern!r}")
    assert error.value.remedy
