"""Sphinx configuration of the documentation; `ci/docs` builds it.

The pages are plain Markdown that is also readable on a forge. What only the site needs is here:
the navigation is appended to pages as they are read, and links to files outside of docs lead to
the repository (`PASTA_HOME`) if its address is known.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

DOCS = Path(__file__).parent
ROOT = DOCS.parent
sys.path.insert(0, str(ROOT))

from docs.links import outside_links  # noqa: E402
from pasta.plugins import built_in_names  # noqa: E402
from pasta.version import VERSION  # noqa: E402

if TYPE_CHECKING:
    from sphinx.application import Sphinx

project = "PASTA"
author = "the authors of PASTA"
release = version = VERSION
html_title = f"PASTA {VERSION}"

extensions = ["myst_parser", "sphinx.ext.autodoc"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["man/*", "_build"]

# Markdown
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4
suppress_warnings = ["misc.highlighting_failure"]  # blocks of TOML and C are often fragments

# Python API: docstrings have Markdown's single backticks
default_role = "code"
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "inherited-members": True}
python_maximum_signature_line_length = 90
python_use_unqualified_type_names = True

# theme: nothing is loaded from elsewhere (docs/links.py checks it)
html_theme = "pydata_sphinx_theme"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sourcelink = False
html_use_opensearch = ""
html_theme_options = {
    "logo": {"text": "PASTA"},
    "navbar_align": "left",
    "header_links_before_dropdown": 7,
    "navigation_depth": 2,
    "show_toc_level": 2,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": ["theme-version"],
    "show_prev_next": True,
}
#: Pages without pages below them need no sidebar.
html_sidebars = {page: [] for page in ("index", "start", "verbs", "api", "comparison", "faq")}
html_context = {"default_mode": "auto"}
copyright = "MIT license"

#: Pages below each page, in the order of the navigation.
NAVIGATION = {
    "index": [
        "start", "tutorials/index", "tools/index", "guide", "verbs", "extending", "api",
        "comparison", "faq", "project",
    ],
    "tutorials/index": [
        "tutorials/slow-training", "tutorials/out-of-memory", "tutorials/slow-kernel",
    ],
    "tools/index": [f"tools/{name}" for name in built_in_names()],
    "guide": [
        "concepts", "command-line", "settings", "runs", "python-api", "attach", "pytorch", "jax",
        "annotations", "call-paths", "windows", "batch", "ci", "limits", "third-party",
        "performance", "security", "troubleshooting", "backends", "nvidia", "amd",
        "reference-accelerator",
    ],
    "extending": ["writing-a-tool", "rules", "probes", "new-backend", "new-framework", "events"],
    "project": ["internals", "sass", "contributing", "changes"],
}  # fmt: skip

#: Pages that show a file of the repository's root.
ROOT_FILES = {"contributing": "CONTRIBUTING.md", "changes": "CHANGELOG.md"}


def _add_navigation(app: Sphinx, page: str, source: list[str]) -> None:
    below = NAVIGATION.get(page)
    if below:
        source[0] += (
            "\n\n```{toctree}\n:hidden:\n\n" + "".join(f"/{each}\n" for each in below) + "```\n"
        )


def _show_root_file(app: Sphinx, page: str, source: list[str]) -> None:
    """Replaces a page that only points to a file of the root by the file."""
    name = ROOT_FILES.get(page)
    if name:
        app.env.note_dependency(str(ROOT / name))
        text = (ROOT / name).read_text().replace("](docs/", "](")
        for other, file in ROOT_FILES.items():
            text = text.replace(f"]({file}", f"]({other}.md")
        source[0] = text


def _link_files(app: Sphinx, page: str, source: list[str]) -> None:
    home = os.environ.get("PASTA_HOME", "").removesuffix("/").removesuffix(".git")
    source[0] = outside_links(source[0], DOCS / f"{page}.md", home)


def setup(app: Sphinx) -> None:
    """Registers what happens to pages as they are read."""
    for change in (_show_root_file, _link_files, _add_navigation):
        app.connect("source-read", change)
