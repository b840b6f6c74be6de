"""What the site of the docs needs beside Sphinx: links that leave docs, and the check of links."""

from __future__ import annotations

from pathlib import Path

import pytest

from docs.links import outside_links, problems
from tests.support.places import ROOT

PAGE = ROOT / "docs" / "tools" / "page.md"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("[a](other.md#b) ![c](../pictures/d.webp)", "[a](other.md#b) ![c](../pictures/d.webp)"),
        ("[a](../../CONTRIBUTING.md#rules)", "[a](../contributing.md#rules)"),
        ("[a](https://example.org/x.md)", "[a](https://example.org/x.md)"),
        ("see [the runs](../../examples/runs/README.md)", "see the runs"),
    ],
)
def test_links_that_leave_docs(text: str, shown: str) -> None:
    assert outside_links(text, PAGE, "") == shown


def test_links_that_leave_docs_lead_to_the_repository() -> None:
    shown = outside_links("[a](../../examples/runs/README.md)", PAGE, "https://example.org/p")
    assert shown == "[a](https://example.org/p/blob/HEAD/examples/runs/README.md)"


def test_problems_of_a_site(tmp_path: Path) -> None:
    (tmp_path / "b.html").write_text('<p id="here">')
    (tmp_path / "a.html").write_text(
        """<link rel="stylesheet" href="s.css"><script src="https://example.org/x.js"></script>
        <a href="b.html#here"></a><a href="https://example.org/"></a><img src="data:image/png;,">
        <a href="b.html#there"></a><a href="c.html"></a><img src="d.webp"><a href="#"></a>"""
    )
    (tmp_path / "s.css").write_text("p { background: url('//example.org/f.woff') }")
    assert sorted(problems(tmp_path)) == [
        "a.html: b.html#there has no such anchor",
        "a.html: c.html does not exist",
        "a.html: loads d.webp, which does not exist",
        "a.html: loads https://example.org/x.js",
        "s.css: loads //example.org/f.woff",
    ]
    assert list(problems(tmp_path / "empty")) == [f"{tmp_path / 'empty'}: no pages"]
