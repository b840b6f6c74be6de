"""The HTML report: one file with all tables and figures."""

from __future__ import annotations

from collections.abc import Callable
from typing import BinaryIO

from pasta.report.exports.base import FileExport, Request


class Html(FileExport):
    """The HTML report."""

    name = "html"
    help = "write one HTML file with all tables and figures (default: DIR/report.html)"
    default = "report.html"

    def writer(self, request: Request) -> Callable[[BinaryIO], object]:
        """Returns a function that writes the page. Raises RunError."""
        from pasta.report.page import render_page

        page = render_page(request.run, source=request.source).encode("utf-8")
        return lambda file: file.write(page)


EXPORT = Html()
