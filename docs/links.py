"""Links of the documentation: those that leave docs, and a check of the built site.

`python -m docs.links build/docs` fails if a link or an anchor of the site leads nowhere, or a page
loads anything from elsewhere.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).parents[1]
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)#:\s]+)(#[^)]*)?\)")
#: Attributes whose address the browser loads by itself.
_LOADED = {
    "script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src",
    "audio": "src", "embed": "src", "object": "data",
}  # fmt: skip
_LOADED_RELATIONS = {"stylesheet", "icon", "preload", "modulepreload", "preconnect", "dns-prefetch"}
_IN_STYLES = re.compile(r"url\(\s*['\"]?([^'\")]+)|@import\s+['\"]([^'\"]+)")


def outside_links(text: str, page: Path, home: str) -> str:
    """A page with its links to files outside of docs turned into links to the repository at the
    address `home`, or into plain text if `home` is empty."""

    def changed(found: re.Match[str]) -> str:
        mark, title, target, anchor = found.groups()
        path = Path(os.path.normpath(page.parent / target))
        if mark or path.is_relative_to(ROOT / "docs") or not path.is_relative_to(ROOT):
            return found[0]
        if path.parent == ROOT and path.name in ("CONTRIBUTING.md", "CHANGELOG.md"):
            name = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changes.md"}[path.name]
            up = os.path.relpath(ROOT / "docs" / name, page.parent)
            return f"[{title}]({up}{anchor or ''})"
        return f"[{title}]({home}/blob/HEAD/{path.relative_to(ROOT)})" if home else title

    return _LINK.sub(changed, text)


class _Page(HTMLParser):
    """Ids, links and loaded addresses of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.ids.update(given[name] for name in ("id", "name") if name in given)
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if tag in _LOADED and given.get(_LOADED[tag]):
            self.loaded.append(given[_LOADED[tag]])
        if tag == "link" and _LOADED_RELATIONS & set(given.get("rel", "").split()):
            self.loaded.append(given.get("href", ""))
        self.loaded += _in_styles(given.get("style", ""))


def _in_styles(text: str) -> list[str]:
    return [one or other for one, other in _IN_STYLES.findall(text)]


def problems(site: Path) -> Iterator[str]:
    """Lines about links of a built site that lead nowhere, and addresses loaded from elsewhere."""
    files = (path for path in site.rglob("*.html") if "_static" not in path.parts)
    pages = {path: _Page(path.read_text(encoding="utf-8")) for path in files}
    if not pages:
        yield f"{site}: no pages"
    for path in pages:
        yield from (f"{path.relative_to(site)}: {each}" for each in _of_page(site, path, pages))
    for path in site.rglob("*.css"):
        for address in _in_styles(path.read_text(encoding="utf-8", errors="replace")):
            if urlsplit(address).scheme not in ("", "data") or address.startswith("//"):
                yield f"{path.relative_to(site)}: loads {address}"


def _of_page(site: Path, path: Path, pages: dict[Path, _Page]) -> Iterator[str]:
    page = pages[path]
    for address in page.loaded:
        parts = urlsplit(address)
        if parts.scheme == "data":
            continue
        if parts.scheme or parts.netloc:
            yield f"loads {address}"
        elif not (path.parent / unquote(parts.path)).exists():
            yield f"loads {address}, which does not exist"
    for address in page.links:
        parts = urlsplit(address)
        if parts.scheme or parts.netloc:
            continue
        target = path
        if parts.path:
            target = Path(os.path.normpath(path.parent / unquote(parts.path)))
        if not target.exists():
            yield f"{address} does not exist"
        elif (
            parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].ids
        ):
            yield f"{address} has no such anchor"


if __name__ == "__main__":
    found = sorted(set(problems(Path(sys.argv[1]))))
    print("\n".join(found) or "all links lead somewhere, and nothing is loaded from elsewhere")
    sys.exit(bool(found))
