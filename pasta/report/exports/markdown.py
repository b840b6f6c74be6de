"""A short report as Markdown."""

from __future__ import annotations

from collections.abc import Callable
from typing import BinaryIO

from pasta.report.exports.base import FileExport, Request


class Markdown(FileExport):
    """The main numbers, findings and first tables, as GitHub-flavoured Markdown."""

    name = "markdown"
    help = "write a short report as Markdown, for pull requests (default: DIR/report.md)"
    default = "report.md"

    def writer(self, request: Request) -> Callable[[BinaryIO], object]:
        """Returns a function that writes the report. Raises RunError."""
        from pasta.report.markdown import render_markdown

        text = render_markdown(request.run).encode("utf-8")
        return lambda file: file.write(text)


EXPORT = Markdown()
