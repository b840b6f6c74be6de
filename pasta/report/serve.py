"""Serves the report of a run to a browser on this machine, for runs too large for a file."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable
from html import escape
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

from pasta.errors import PastaError, RunError
from pasta.report.live_tables import LiveTables, dumped
from pasta.report.live_timeline import LiveTimeline
from pasta.report.page import render_page
from pasta.report.timeline import read_timeline
from pasta.table import plain

if TYPE_CHECKING:
    from pasta.run.directory import RunDirectory

_HOST = "127.0.0.1"
#: Seconds without a complete request after which a connection is closed.
_TIMEOUT = 30
_MAX_WORDS = 16
_HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}

#: The page while the run is read.
_WAITING = """<!doctype html>
<html lang="en"><meta charset="utf-8"><meta http-equiv="refresh" content="1">
<title>PASTA: reading</title><p>Reading {path} …</p></html>
"""

Query = dict[str, str]


class ReportServer(ThreadingHTTPServer):
    """A server on a random port of the loopback interface, below a random path.

    Only requests that name this address and the path's token are answered, so that neither other
    users of the machine nor pages of other sites read the report. It answers from the start: until
    `prepare` has read the results, with a page that says so and loads itself again, and until it
    has read the events, with the report without them. Raises RunError if there is no port.
    """

    daemon_threads = True

    def __init__(self, run: RunDirectory, *, source: bool = True) -> None:
        self._run, self._source = run, source
        self._timeline: LiveTimeline | None = None
        self._tables: LiveTables | None = None
        self.page = _WAITING.format(path=escape(plain(str(run.path)))).encode()
        self.token = secrets.token_urlsafe(24)
        self._lock = threading.Lock()
        try:
            super().__init__((_HOST, 0), _Handler)
        except OSError as error:
            raise RunError(f"{run.path}: cannot be served ({error})") from error

    def prepare(self) -> None:
        """Read the run and render its page. Raises RunError for a damaged run."""
        page = render_page(self._run, source=self._source, served=True, events=False)
        self._tables = LiveTables(self._run)
        self.page = page.encode()  # last: it asks for the tables
        timeline = read_timeline(self._run, whole=True)
        self._timeline = LiveTimeline(timeline) if timeline else None
        page = render_page(self._run, source=self._source, live=self._timeline, served=True)
        self.page = page.encode()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Nothing: the browser closed the connection."""

    @property
    def authority(self) -> str:
        """Host and port, as browsers send them."""
        return f"{_HOST}:{self.server_address[1]}"

    @property
    def address(self) -> str:
        """The page's address."""
        return f"http://{self.authority}/{self.token}/"

    def answer(self, name: str, query: Query) -> Any:
        """The answer to a question of the page. Raises KeyError for an unknown one, ValueError for
        malformed numbers, and RunError."""
        with self._lock:
            return _ANSWERS[name](self, query)

    def table(self, query: Query) -> Any:
        """Rows of a table."""
        if self._tables is None:
            raise KeyError("table")
        return self._tables.page(
            query["tool"], query["name"],
            first=_whole(query["first"]), count=_whole(query["count"]),
            sort=query.get("sort", ""), descending=query.get("descending") == "1",
            words=query.get("words", "").split()[:_MAX_WORDS],
            columns=[each for each in query["columns"].split("\x1f") if each],
        )  # fmt: skip

    def about(self, query: Query) -> Any:
        """Slices of the timeline: a tile, sums of an interval, a search, or its next match."""
        if self._timeline is None:
            raise KeyError("timeline")
        what, live = query["what"], self._timeline
        if what in ("tile", "sums"):
            of = live.tile if what == "tile" else live.sums
            return of(int(query["begin"]), int(query["until"]))
        text, exact = query["text"], query.get("exact") == "1"
        if what == "find":
            return live.find(text, exact)
        if what == "step":
            return live.step(text, exact, int(query["time"]), query.get("forward") == "1")
        raise KeyError(what)


_ANSWERS: dict[str, Callable[[ReportServer, Query], Any]] = {
    "table": ReportServer.table,
    "timeline": ReportServer.about,
}


def _whole(text: str) -> int:
    value = int(text)
    if value < 0:
        raise ValueError(text)
    return value


class _Handler(BaseHTTPRequestHandler):
    """Answers a page's requests."""

    server: ReportServer
    protocol_version = "HTTP/1.1"
    server_version = "PASTA"
    sys_version = ""
    timeout = _TIMEOUT

    def do_GET(self) -> None:
        """Sends the page or an answer; invalid requests get no details."""
        parts = urlsplit(self.path)
        _, token, *rest = [*parts.path.split("/", 2), ""]
        known = secrets.compare_digest(token.encode(), self.server.token.encode())
        if not known or self.headers.get("Host") != self.server.authority:
            self._send(HTTPStatus.NOT_FOUND, b"", "text/plain")
        elif not rest[0]:
            self._send(HTTPStatus.OK, self.server.page, "text/html; charset=utf-8")
        else:
            query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
            self._answer(rest[0], query)

    def _answer(self, name: str, query: Query) -> None:
        try:
            found = dumped(self.server.answer(name, query))
        except (KeyError, ValueError, OverflowError):
            self._send(HTTPStatus.BAD_REQUEST, b"", "text/plain")
        except Exception as error:  # tables and events of an untrusted run may be inconsistent
            why = str(error) if isinstance(error, PastaError) else type(error).__name__
            self._send(HTTPStatus.INTERNAL_SERVER_ERROR, plain(why).encode(), "text/plain")
        else:
            self._send(HTTPStatus.OK, found, "application/json")

    def _send(self, status: HTTPStatus, content: bytes, kind: str) -> None:
        self.send_response(status)
        for name, value in {**_HEADERS, "Content-Type": kind}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *values: Any) -> None:
        """Nothing: the terminal is the user's."""
