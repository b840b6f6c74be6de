"""Tree maps, source lines, merged call trees, and answers of the server, against arithmetic."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.report import write_run
from pasta.errors import PastaError
from pasta.report import diff_page, serve
from pasta.report.diff_page import both, merged
from pasta.report.heat import heat_maps
from pasta.report.live_tables import LiveTables
from pasta.report.live_timeline import LiveTimeline
from pasta.report.serve import ReportServer
from pasta.report.sources import measures, read_sources
from pasta.report.stacks import Call, CallTree
from pasta.report.timeline import read_timeline
from pasta.report.treemap import MAX_LEAVES, TreeMap, tree_maps
from pasta.run.diff import Comparison
from pasta.run.directory import RunDirectory
from pasta.run.results import StoredResult, read_results, write_result
from pasta.table import Figure, Table
from pasta.tool import Result
from tests.support.preload import TIMEOUT, base_environment, cli
from tests.support.runs import made_up


def stored(path: Path, **tables: Table) -> StoredResult:
    write_result(path / "results", "tool", Result("", tables))
    (result,) = read_results(path / "results")
    return result


# ---- tree maps ----


def at_peak(*rows: tuple[Any, ...]) -> Table:
    names = ("device", "category", "shape", "operator", "module", "line", "bytes")
    columns = [list(column) for column in zip(*rows, strict=True)]
    return Table(dict(zip(names, columns, strict=True)))


def totals(tree: TreeMap) -> list[int]:
    found = list(tree.size)
    for node in range(len(found) - 1, 0, -1):
        found[tree.parent[node]] += found[node]
    return found


def test_tree_map_of_tensors(tmp_path: Path) -> None:
    result = stored(
        tmp_path,
        peak=at_peak(
            (0, "activation", "8,8", "mm", "Net.a", "t.py:3 f", 100),
            (0, "activation", "8,8", "mm", "Net.a", "t.py:3 f", 100),
            (0, "parameter", "4", "empty", None, "t.py:1 g", 30),
            (None, "input", "2", "copy", None, None, 7),
        ),
    )
    device, host = tree_maps(result)
    assert (device.title, host.title) == (
        "Tensors at the peak of device 0",
        "Tensors at the peak of the host",
    )
    sums = dict(zip(device.name, totals(device), strict=True))
    assert sums == {
        "all": 230, "activation": 200, "Net.a": 200, "2 \N{MULTIPLICATION SIGN} [8,8]": 200,
        "parameter": 30, "empty": 30, "[4]": 30,
    }  # fmt: skip
    assert device.color[1:] == ["activation"] * 3 + ["parameter"] * 3
    assert device.find[3] == "t.py:3 f"


def test_small_leaves_of_a_tree_map_are_combined(tmp_path: Path) -> None:
    count = MAX_LEAVES + 10
    rows = [(0, "state", str(number), "op", None, None, 1 + number) for number in range(count)]
    (tree,) = tree_maps(stored(tmp_path, peak=at_peak(*rows)))
    assert totals(tree)[0] == sum(range(count + 1))
    assert tree.name[-1] == "10 smaller ones" and tree.size[-1] == sum(range(11))


def test_heat_map_by_shape() -> None:
    offsets = list(range(0, 128, 16))
    bars = Figure("bar", "Accesses to w", offsets, {"accesses": list(range(8))}, x_unit="bytes")
    objects = Table({"object": ["w"], "object_shape": ["2,16"], "object_bytes": [128]})
    tables: Any = {"objects": objects}
    result = StoredResult("t", "", tables, [], [], {"object_1": bars}, [], "", "other")
    _, by_shape = heat_maps(result)
    (strip,) = by_shape.strips
    assert strip.cells.tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]  # rows of 16 numbers of 4 bytes


# ---- source ----


def manifest(**values: Any) -> dict[str, Any]:
    far = 1 << 62
    return {"host": socket.gethostname(), "start": {"realtime_ns": far}, "observed_ns": 1, **values}


def lines(path: Path) -> Table:
    return Table(
        {
            "line": [f"{path.name}:2 f", f"{path.name}:2 g", f"{path.name}:9 f", None],
            "file": [str(path), str(path), "/etc/passwd", None],
            "time": [5, 6, 7, 8],
        },
        units={"time": "ns"},
        sums=("time",),
    )


def test_source_lines_have_the_sums_of_their_rows(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text("a = 1\nb = 2\n\tc = 3\n")
    result = stored(tmp_path, lines=lines(path), others=lines(path))
    (source,), notes = read_sources(manifest(), [result])
    assert source.path == str(path) and not notes
    assert source.text == {1: "a = 1", 2: "b = 2", 3: "    c = 3"}
    both = measures([source])  # tables are not added up
    assert [str(each) for each in both] == ["Lines: time", "Others: time"]
    assert [source.sums[each] for each in both] == [{2: 11}, {2: 11}]


def test_source_lines_have_their_instructions(tmp_path: Path) -> None:
    path = tmp_path / "kernel.cu"
    path.write_text("a\nb\n")
    code = Table(
        {
            "kernel": ["k", "k", "j", "k", "k"],
            "offset": [32, 16, 0, 48, 64],
            "instruction": ["EXIT", "IADD3", "NOP", "BRA", None],
            "line": [f"{path.name}:2", f"{path.name}:2", f"{path.name}:2", None, f"{path.name}:2"],
            "file": [str(path)] * 5,
            "samples": [0, 5, 0, 1, 1],
        },
        sums=("samples",),
    )
    (source,), _ = read_sources(manifest(), [stored(tmp_path, sass=code, places=code)])
    found, left = source.instructions(2)
    expected = [("j", 0, "NOP"), ("k", 16, "IADD3"), ("k", 32, "EXIT")]
    assert [(each.kernel, each.offset, each.text) for each in found] == expected and not left
    many = Table({name: column * 50 for name, column in code.columns.items()})
    many.columns["offset"] = list(range(len(many)))
    (source,), _ = read_sources(manifest(), [stored(tmp_path / "b", sass=many)])
    found, left = source.instructions(2)
    assert (len(found), left) == (100, 50)


def test_only_source_of_the_run_is_read(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text("secret")
    result = stored(tmp_path, lines=lines(path))
    assert read_sources(manifest(host="elsewhere"), [result]) == ([], [])
    changed = read_sources(manifest(start={"realtime_ns": 1}), [result])
    assert changed == ([], [f"changed since the run and not shown: {path}"])
    hidden = tmp_path / "key.pem"
    hidden.write_text("secret")
    assert read_sources(manifest(), [stored(tmp_path / "b", lines=lines(hidden))]) == ([], [])


# ---- comparisons ----


def tree(**paths: int) -> CallTree:
    found = CallTree()
    for path, amount in paths.items():
        node = 0
        for name in path.split("_"):
            node = found.node(node, Call(name, "operator"))
        found.weights["host"][node] += amount
    return found


def test_call_trees_are_merged_by_path() -> None:
    joined, before, after = merged(tree(a_b=3, c=4), tree(a_b=5, a_d=6))
    names = ["/".join(call.name for call in joined.path(node)) for node in range(len(joined))]
    assert dict(zip(names, before["host"], strict=True)) == {
        "": 0, "a": 0, "a/b": 3, "c": 4, "a/d": 0,
    }  # fmt: skip
    assert after["host"][names.index("a/b")] == 5 and after["host"][names.index("a/d")] == 6


@pytest.mark.parametrize("sampled", [False, True])
def test_accesses_of_probed_launches_are_not_compared(
    sampled: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = tree(a_b=3, c=4)
    calls.weights["accesses"] = [1] * len(calls)
    monkeypatch.setattr(diff_page, "has_stacks", lambda run: True)
    monkeypatch.setattr(diff_page, "read_call_tree", lambda run: calls)
    run = RunDirectory.open(made_up(tmp_path, None))
    names = ["kernels", "probed"] if sampled else ["kernels"]
    tables = {name: Table({"kernel": ["gemm"], "launches": [9]}) for name in names}
    write_result(run.results, "access_count", Result("", tables))
    page = diff_page.render_diff_page(Comparison(run, run), [])
    assert "host time, after" in page
    assert ("memory accesses, after" in page) == (not sampled)


def test_figures_of_both_runs_hold_their_levels() -> None:
    before = Figure("step", "Live", [0, 10], {"total": [1, 2], "pool": [9, 9]}, y_unit="bytes")
    after = Figure("area", "Live", [0, 5, 20], {"a": [1, 1, 1], "b": [2, 3, 4]}, y_unit="bytes")
    found = both(before, after)
    assert list(found.x) == [0, 5, 10, 20]
    assert found.series == {"before": [1, 1, 2, None], "after": [3, 4, 4, 5]}


# ---- the server ----


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    path = tmp_path_factory.mktemp("runs") / "run"
    write_run(path, 20_000)
    run = RunDirectory.open(path)
    numbers = np.arange(3000)
    table = Table(
        {
            "kernel": [f"k{number}" for number in numbers],
            "count": numbers * 7 % 3000,
            "address": numbers.astype(np.uint64) + np.uint64(2**60),
        }
    )
    write_result(run.results, "freq", Result("", {"kernels": table}))
    return run


@pytest.fixture(scope="module")
def live(run: RunDirectory) -> LiveTimeline:
    timeline = read_timeline(run, whole=True)
    assert timeline is not None
    return LiveTimeline(timeline)


def test_pages_of_tables(run: RunDirectory) -> None:
    def page(**query: Any) -> dict[str, Any]:
        asked = {"first": 0, "count": 2, "sort": "", "descending": False, "words": [], **query}
        return LiveTables(run).page("freq", "kernels", columns=["kernel", "count"], **asked)

    assert page(first=2)["columns"] == [["k2", "k3"], [14, 21], [str(2**60 + 2), str(2**60 + 3)]]
    largest = page(sort="count", descending=True)
    assert largest["found"] == 3000 and largest["columns"][1] == [2999, 2998]
    assert page(words=["K299"])["found"] == 11
    assert page(words=["k299", "29"])["found"] == 11
    with pytest.raises(KeyError):
        page(sort="nothing")


def test_sums_of_an_interval(live: LiveTimeline) -> None:
    own = live.timeline
    begin, until = own.until // 3, own.until // 2
    found = live.sums(begin, until)
    part = np.minimum(own.end, until) - np.maximum(own.start, begin)
    inside = (own.end >= begin) & (own.start <= until)
    times = np.bincount(own.name[inside], part[inside], len(own.names))
    assert found["times"] == times[found["codes"]].tolist()
    assert sum(found["counts"]) == inside.sum()
    rows = [each for each in own.rows if (each.group, each.depth) != ("host", 0)]
    nested = sum(  # time inside of other slices counts once
        part[row.first : row.first + row.count][inside[row.first : row.first + row.count]].sum()
        for row in rows
        if row.group == "host"
    )
    assert sum(found["own"]) == pytest.approx(sum(found["times"]) - nested)


def test_tiles_have_slices_or_bins(live: LiveTimeline, monkeypatch: pytest.MonkeyPatch) -> None:
    own = live.timeline
    page, remote = live.in_page()
    assert any(remote) and len(page.start) < len(own.start)
    begin, until = own.until // 2, own.until // 2 + 1_000_000
    tile = live.tile(begin, until)
    inside = (own.end >= begin) & (own.start <= until)
    of_remote = sum(
        int(inside[row.first : row.first + row.count].sum())
        for row, is_remote in zip(own.rows, remote, strict=True)
        if is_remote
    )
    assert tile["slices"]["rows"] == of_remote == sum(row["slices"] for row in tile["rows"])
    monkeypatch.setattr("pasta.report.live_timeline._MAX_SLICES", 10)
    tile = live.tile(begin, until)
    assert tile["slices"]["rows"] == 0
    assert tile["bins"]["rows"] == sum(row["bins"] for row in tile["rows"])


def test_search_of_the_server(live: LiveTimeline) -> None:
    own = live.timeline
    codes = [code for code, (_, name) in enumerate(own.names) if "kernel_7" in name]
    at = np.flatnonzero(np.isin(own.name, codes))
    assert live.find("KERNEL_7", exact=False)["count"] == len(at)
    starts = np.sort(own.start[at])
    later = live.step("kernel_7", False, int(starts[5]), forward=True)
    assert later is not None and later["start"] == starts[6]
    earlier = live.step("kernel_7", False, int(starts[5]), forward=False)
    assert earlier is not None and earlier["start"] == starts[4]
    assert live.step("kernel_7", False, int(starts[-1]), forward=True) is None


@pytest.fixture(scope="module")
def server(run: RunDirectory) -> Iterator[ReportServer]:
    with ReportServer(run) as found:
        threading.Thread(target=found.serve_forever, args=(0.01,), daemon=True).start()
        with urllib.request.urlopen(found.address, timeout=20) as reply:
            assert b"Reading" in reply.read()
        with pytest.raises(urllib.error.HTTPError):
            urllib.request.urlopen(f"{found.address}table?tool=freq", timeout=20)
        found.prepare()
        yield found
        found.shutdown()


def test_only_requests_with_the_token_are_answered(server: ReportServer) -> None:
    def status(address: str, **headers: str) -> int:
        request = urllib.request.Request(address, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=20) as reply:
                return int(reply.status)
        except urllib.error.HTTPError as error:
            return error.code

    assert server.server_address[0] == "127.0.0.1"
    assert status(server.address) == 200
    root = f"http://{server.authority}/"
    assert [status(root), status(f"{root}other/"), status(f"{root}{server.token[:-1]}/")] == [
        404
    ] * 3
    # a page of another site that resolves its own name to this machine
    assert status(server.address, Host="evil.example") == 404
    assert status(f"{server.address}table?tool=freq") == 400
    assert status(f"{server.address}timeline?what=sums&begin=x&until=1") == 400
    assert status(f"{server.address}../run.json") == 400
    asked = "table?tool=freq&name=kernels&first=0&count=1&columns=kernel"
    with urllib.request.urlopen(f"{server.address}{asked}", timeout=20) as reply:
        assert json.load(reply)["found"] == 3000
    assert status(f"{server.address}{asked.replace('=freq', '=../../x')}") >= 400


def test_the_report_is_served_before_the_events_are_read(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages: list[bytes] = []
    tables: list[Any] = []

    def read(run: RunDirectory, *, whole: bool) -> Any:
        pages.append(server.page)
        query = {"tool": "freq", "name": "kernels", "first": "0", "count": "1", "columns": "kernel"}
        tables.append(server.answer("table", query))
        return read_timeline(run, whole=whole)

    monkeypatch.setattr(serve, "read_timeline", read)
    with ReportServer(run) as server:
        server.prepare()
        (early,) = pages
        assert b"timeline and flame graph are being read" in early
        assert b'id="timeline-section"' not in early and b'id="tool-freq"' in early
        assert tables[0]["found"] == 3000
        assert b"being read" not in server.page and b'id="timeline-section"' in server.page


@pytest.mark.slow
def test_interrupt_ends_the_server_without_a_word(run: RunDirectory) -> None:
    command = [*cli("pasta"), "report", str(run.path), "--serve"]
    with subprocess.Popen(
        command, env=base_environment(), text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.endswith(" (Ctrl-C ends it)\n")
        process.send_signal(signal.SIGINT)  # while it reads the run, or serves it
        assert process.communicate(timeout=TIMEOUT) == ("", "")
        assert process.returncode == 0


def test_a_damaged_run_is_not_served(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run")
    (run.path / "run.json").write_text("{")
    with ReportServer(run) as server, pytest.raises(PastaError):
        server.prepare()
