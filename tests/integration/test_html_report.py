"""The HTML report in a browser: display, clicks and typed input."""

from __future__ import annotations

import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.report import write_run
from pasta.report.diff_page import render_diff_page
from pasta.report.numbers import column_texts
from pasta.report.page import render_page
from pasta.report.serve import ReportServer
from pasta.run.diff import Comparison
from pasta.run.directory import RunDirectory
from pasta.run.events import Recorder
from pasta.run.results import read_results, write_result
from pasta.table import Figure, Table, Unit, absent_where
from pasta.tool import Finding, Result
from tests.support.runs import MANIFEST
from tests.support.streams import training

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")

EVIL = "</script><img src=x onerror=\"document.title='broken'\">"
ANSI = "\x1b[31mred\x1b[0m\nsecond line"
LONG = "void f<" + "int, " * 20_000 + "last>()"
COUNT = 3000
#: Values that must be formatted as in the text report.
NUMBERS: list[tuple[Any, Unit | None]] = [
    *((value, "bytes") for value in (0, 1, 1023, 1024, 1152, 1536, -1536, 2**20 - 1, 2**63, 2**50)),
    *((value, "ns") for value in (0, 999, 1000, 1005, 1_234_567, 999_995, 10**12, -2500)),
    *((value, "address") for value in (0, 0x7F00, 2**64 - 1)),
    *((value, "share") for value in (0.0, 0.125, 0.0005, 0.9999, 1 / 3, 2.675)),
    *((value, None) for value in (0, 7, 1024, -1_234_567, 2**64 - 1, 2**53 + 1)),
    *((value, None) for value in (0.5, 1.125, 1.135, 12.25, 999.6, 1234.5, 1e-5, 6.02e23, -0.001)),
    *((value, "ns") for value in (0.5, 1.5, 12.25, 1234.5)),
]


def numbers() -> Table:
    """A column per value, because units belong to columns."""
    columns = {}
    for at, (value, _) in enumerate(NUMBERS):
        kind: Any = (
            np.float64 if isinstance(value, float) else np.uint64 if value >= 0 else np.int64
        )
        columns[f"c{at}"] = np.asarray([value], kind)
    return Table(columns, units={f"c{at}": unit for at, (_, unit) in enumerate(NUMBERS) if unit})


def pictures(source: Path) -> Result:
    """Memory of tensors, and a roofline."""
    peak = Table(
        {
            "device": [0, 0, 0],
            "category": ["activation", "activation", "parameter"],
            "shape": ["8,8", "4", "2"],
            "operator": ["mm", EVIL, "empty"],
            "line": [f"{source.name}:2 step"] * 2 + [None],
            "file": [str(source)] * 2 + [None],
            "bytes": [600, 300, 100],
        },
        units={"bytes": "bytes"},
        sums=("bytes",),
    )
    kernels = Table(
        {
            "kernel": ["gemm", "fill"],
            "device_time": [9000, 1000],
            "intensity": absent_where(np.array([8.0, 0]), [False, True]),
            "gflop_rate": absent_where(np.array([2.0, 0]), [False, True]),
            "of_roof": [0.5, 0.25],
        },
        units={"device_time": "ns", "of_roof": "share"},
    )
    roofs = Table(
        {
            "roof": ["memory", "float"], "kind": ["memory", "compute"], "rate": [1e9, 4e9],
            "how": ["measured", "data sheet"],
        }
    )  # fmt: skip
    area = Figure("area", "Tensors by category", [0, 10, 20], {"a": [1, 2, 3], "b": [3, 2, 1]},
                  x_label="time since start", x_unit="ns", y_unit="bytes")  # fmt: skip
    sass = Table(
        {
            "kernel": ["gemm", "gemm"], "offset": [0, 16], "instruction": ["MOV", EVIL],
            "line": [f"{source.name}:2"] * 2, "file": [str(source)] * 2,
        }
    )  # fmt: skip
    tables = {"peak": peak, "kernels": kernels, "roofs": roofs, "sass": sass}
    return Result("", tables, figures={"area": area})


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = RunDirectory.create(tmp_path_factory.mktemp("run"))
    here = {"host": socket.gethostname(), "start": {"realtime_ns": 1 << 62, "monotonic_ns": 0}}
    run.write_manifest({**MANIFEST, **here, "command": ["python", EVIL], "warnings": [EVIL]})
    events = training()
    events.push(EVIL)
    events.pop()
    recorder = Recorder(run.events, events.strings)
    recorder.add(events.batch())
    recorder.flush()
    launches = np.arange(COUNT) * 7 % COUNT
    names = [f"kernel_{number}" for number in range(COUNT)]
    names[:3] = [EVIL, ANSI, LONG]
    table = Table(
        {
            "kernel": names,
            "launches": launches,
            "bytes": absent_where(launches * 1024, launches == 5),
            "share": launches / launches.sum(),
            "address": launches.astype(np.uint64) + np.uint64(2**60),
            "place": ["here"] * COUNT,
        },
        units={"bytes": "bytes", "share": "share", "address": "address"},
        title=f"Kernels {EVIL}",
        hidden=frozenset({"place"}),
    )
    x = np.arange(100) * 1_000_000
    figures = {
        "line": Figure("step", "Live memory", x, {"total": x, EVIL: x / 2}, "time", "bytes", "ns",
                       "bytes"),
        "bars": Figure("bar", "Sizes", [EVIL, "b"], {"n": [1, 3]}),
        "many": Figure("bar", "Lanes", np.arange(33), {"n": np.arange(33), "m": np.arange(33)}),
        "object_1": Figure("bar", "Accesses to weights", np.arange(8) * 4096,
                           {"accesses": np.arange(8) ** 3}, x_unit="bytes"),
    }  # fmt: skip
    findings = [
        Finding(EVIL, EVIL, EVIL, EVIL, 0.5),
        Finding("slow", "kernel_41 at train.py:3", "90 %", "less", 0.1),
    ]
    result = Result(f"all {EVIL}", {"kernels": table, "numbers": numbers()}, findings, figures)
    write_result(run.results, "first", result)
    write_result(run.results, "second", Result("closed", {"t": Table({"n": [41]}, shown=0)}))
    source = run.path / "train.py"
    source.write_text("import x\nstep()\n")
    write_result(run.results, "third", pictures(source))
    path = run.path / "report.html"
    path.write_text(render_page(run), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    driver = shutil.which("chromedriver")
    if not program or not driver:
        pytest.skip("no Chromium with its driver (Debian: apt install chromium chromium-driver)")
    options = webdriver.ChromeOptions()
    options.binary_location = program
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    for argument in (
        "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
        "--disable-background-networking", "--disable-component-update", "--disable-sync",
        "--disable-dev-shm-usage", "--window-size=1280,900",
        f"--user-data-dir={tmp_path_factory.mktemp('chromium')}",
    ):  # fmt: skip
        options.add_argument(argument)
    started = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    yield started
    started.quit()


Script = Callable[..., Any]


@pytest.fixture
def script(browser: Any, page: Path) -> Iterator[Script]:
    """Runs JavaScript in the opened page; afterwards its console must be empty."""
    size = {"width": 1280, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.get(page.as_uri())
    _until(browser, "return document.documentElement.dataset.ready !== undefined")
    yield browser.execute_script
    assert browser.get_log("browser") == []
    assert browser.title.startswith("python </script>")


def _until(browser: Any, condition: str) -> None:
    from selenium.webdriver.support.wait import WebDriverWait

    WebDriverWait(browser, 20, 0.02).until(lambda each: each.execute_script(condition))


CELLS = """
const table = document.querySelector('#tool-first [data-table]');
return [...table.querySelectorAll('tbody tr')].map((row) => row.cells[arguments[0]].textContent);
"""


def find(browser: Any, selector: str) -> Any:
    return browser.find_element("css selector", f"#tool-first [data-table] {selector}")


def test_names_are_escaped(script: Script) -> None:
    assert script("return document.images.length") == 0
    assert script("return document.querySelector('h1').textContent") == f"python {EVIL}"
    assert script("return document.querySelector('.findings h3').textContent") == f"{EVIL}: {EVIL}"
    first, second, third, *_ = script(CELLS, 0)
    assert first == EVIL
    assert second == "\\x1b[31mred\\x1b[0m\\nsecond line"
    assert third.startswith("void f<int, ") and third.endswith("last>()") and len(third) < 100


def test_long_name_is_shown_in_full(script: Script, browser: Any) -> None:
    find(browser, "td .more[title='Show the whole text']").click()  # others lead to the timeline
    assert script("return document.querySelector('dialog[open] pre').textContent") == LONG
    browser.find_element("css selector", "dialog button").click()
    assert script("return document.querySelector('dialog[open]')") is None


def test_page_contains_a_limited_number_of_rows(script: Script, browser: Any) -> None:
    assert len(script(CELLS, 0)) == 15
    assert find(browser, ".count").text == "1\u201315 of 3,000"
    find(browser, "[aria-label='Last page']").click()
    assert script(CELLS, 0)[-1] == f"kernel_{COUNT - 1}"
    assert find(browser, ".count").text == "2,986\u20133,000 of 3,000"
    assert script("return document.querySelectorAll('#tool-first td').length") < 300


def test_click_sorts_the_table(script: Script, browser: Any) -> None:
    heading = "th:nth-child({})"
    state = "return document.querySelector('#tool-first th:nth-child(3)').ariaSort"
    assert script(state) == "none"
    find(browser, f"{heading.format(3)} button").click()
    assert script(state) == "descending"
    first = script(CELLS, 2)  # one unit for values shown together, as in the text report
    largest = [(COUNT - 1 - row) * 1024 for row in range(len(first))]
    assert first == column_texts(largest, "bytes")
    find(browser, f"{heading.format(3)} button").click()
    assert script(state) == "ascending"
    assert script(CELLS, 2)[:3] == ["0 KiB", "1 KiB", "2 KiB"]
    find(browser, "[aria-label='Last page']").click()
    assert script(CELLS, 2)[-1] == "-"  # absent values come last
    find(browser, f"{heading.format(1)} button").click()
    assert script(CELLS, 0)[3:6] == ["kernel_4", "kernel_5", "kernel_6"]  # not kernel_10
    assert script("return document.activeElement.dataset.column") == "kernel"


def test_search_filters_rows(script: Script, browser: Any) -> None:
    box = find(browser, "input[type=search]")

    def search(text: str, count: str) -> list[str]:
        box.clear()
        box.send_keys(text)
        count_text = "document.querySelector('#tool-first [data-table] .count').textContent"
        _until(browser, f"return {count_text} === '{count}'")
        found: list[str] = script(CELLS, 0)
        return found

    found = search("KERNEL_299", "1\u201311 of 11 (of 3,000)")
    assert found == ["kernel_299", *(f"kernel_{2990 + n}" for n in range(10))]
    assert search("no such kernel", "0 (of 3,000)") == []
    assert find(browser, ".none").is_displayed()
    assert search("onerror", "1\u20131 of 1 (of 3,000)") == [EVIL]


def test_numbers_match_the_text_report(script: Script) -> None:
    cells = script(
        "const table = document.querySelectorAll('#tool-first [data-table]')[1];"
        "return [...table.querySelectorAll('td')].map((cell) => [cell.textContent, cell.title]);"
    )
    assert [text for text, _ in cells] == [
        text for value, unit in NUMBERS for text in column_texts([value], unit)
    ]
    assert cells[4][1] == "1152 bytes"
    assert cells[20][1] == str(2**64 - 1)


def test_columns_omitted_in_the_text_report(script: Script, browser: Any) -> None:
    count = "return document.querySelector('#tool-first [data-table] tr').cells.length"
    assert script(count) == 5
    find(browser, "button[aria-pressed]").click()
    assert script(CELLS, 5)[0] == "here"


def test_collapsed_tables_open(script: Script, browser: Any) -> None:
    assert script("return document.querySelector('#tool-second td')") is None
    browser.find_element("css selector", "#tool-second summary").click()
    _until(browser, "return document.querySelector('#tool-second td')?.textContent === '41'")


def test_figures_are_rendered(script: Script, browser: Any) -> None:
    assert script("return document.querySelectorAll('#tool-first .uplot canvas').length") == 2
    bars = script("return [...document.querySelectorAll('.bars .label')].map((e) => e.textContent)")
    assert bars == [EVIL, "b"]
    heat = "document.querySelector('.heat canvas')"
    pixels = script(f"return [...{heat}.getContext('2d').getImageData(0, 0, 8, 1).data]")
    assert pixels[:4] == [0, 0, 0, 0]  # not accessed
    assert pixels[-4:] == [253, 231, 37, 255]  # the most
    from selenium.webdriver.common.keys import Keys

    strip = browser.find_element("css selector", ".heat canvas")
    strip.send_keys(Keys.ARROW_RIGHT * 7)
    readout = browser.find_element("css selector", "[data-heat] .readout").text
    assert readout == "weights, offset 0x7000\u20130x7fff: 343 accesses"


def test_flame_graph(script: Script, browser: Any) -> None:
    bars = (
        "return Object.fromEntries([...document.querySelectorAll('.flame button')]"
        ".map((bar) => [bar.getAttribute('aria-label').split(':')[0], bar.offsetWidth]))"
    )
    widths = script(bars)
    whole = widths["all"]
    assert widths["aten"] / whole == pytest.approx(400 / 431, abs=0.01)
    browser.find_element("css selector", ".flame [aria-label^='aten']").click()
    assert script(bars)["aten"] == whole
    assert "(backward)" not in script(bars)
    from selenium.webdriver.common.keys import Keys

    browser.switch_to.active_element.send_keys(Keys.ESCAPE)
    assert "(backward)" in script(bars)
    browser.find_element("css selector", "#flame-graph option[value='2']").click()
    root = browser.find_element("css selector", ".flame [data-node='0']")
    assert root.get_attribute("aria-label") == "all: 512 B, 100.0 %"


#: The table of what ran in the timeline's interval: name, own time, and that with calls inside.
INTERVAL = """
return Object.fromEntries([...document.querySelectorAll('.interval tbody tr')]
  .map((row) => [row.cells[0].textContent, [row.cells[2].textContent, row.cells[4].textContent]]));
"""
TIMELINE = "document.querySelector('[data-timeline]').timeline"


def test_timeline(script: Script, browser: Any) -> None:
    from selenium.webdriver.common.keys import Keys

    _until(browser, "return document.querySelector('.interval tbody tr')")
    found = script(INTERVAL)
    assert found["aten::linear"] == ["2,000 ns", "5,000 ns"]  # without aten::mm, and with it
    assert found["aten::mm"] == ["3,000 ns", "3,000 ns"]
    colors = script(
        f"const {{ canvas, wide, high }} = {TIMELINE};"
        "const { data } = canvas.getContext('2d').getImageData(0, 0, wide, high);"
        "return new Set(new Uint32Array(data.buffer)).size"
    )
    assert colors > 5  # slices, not only paper and text
    canvas = browser.find_element("css selector", ".timeline canvas")
    everything = script(f"return {TIMELINE}.span")
    canvas.send_keys("www")
    _until(browser, f"return {TIMELINE}.span < {0.5 * everything}")
    canvas.send_keys(Keys.HOME)
    assert script(f"return {TIMELINE}.span") == everything

    box = browser.find_element("css selector", ".timeline input")
    box.send_keys("LINEAR")
    _until(browser, "return document.querySelector('.timeline [role=status]').textContent")
    found = browser.find_element("css selector", ".timeline [role=status]").text
    assert found.startswith("1 found, ")
    box.send_keys(Keys.ENTER)
    readout = browser.find_element("css selector", ".timeline .readout").text
    assert readout.startswith("aten::linear: operator, ")
    script(f"const t = {TIMELINE}; t.select([t.full[0], t.full[0] + 1])")  # a nanosecond
    _until(browser, "return document.querySelectorAll('.interval tbody tr').length < 3")
    assert browser.find_element("css selector", ".interval h3").text.startswith("In the selection")


def test_links_of_findings_and_names(script: Script, browser: Any) -> None:
    browser.find_element("css selector", ".findings li:nth-child(2) a").click()
    assert set(script(CELLS, 0)) == {"kernel_41", *(f"kernel_41{n}" for n in range(10))}
    assert script(f"return {TIMELINE}.data.names").count(EVIL) == 1
    browser.find_element("css selector", ".whole-bar .label button").click()
    assert script(f"return {TIMELINE}.picked.slice") >= 0
    label = browser.find_element("css selector", ".whole-bar .label").text
    assert script(f"return {TIMELINE}.search.value") == label


def test_plots_zoom_and_lead_to_the_timeline(script: Script, browser: Any) -> None:
    chain = webdriver.ActionChains(browser)
    plot = browser.find_element("css selector", "#tool-third .u-over")
    script("arguments[0].scrollIntoView({block: 'center'})", plot)
    first = "document.querySelector('#tool-third .u-legend .u-value').textContent"
    chain.move_to_element_with_offset(plot, 40, 0).click_and_hold().move_by_offset(60, 0)
    chain.release().move_to_element_with_offset(plot, 1 - plot.size["width"] // 2, 0).perform()
    assert script(f"return {first}") not in ("", "0 ns")  # the left edge, zoomed
    place = script("return scrollY")
    webdriver.ActionChains(browser).double_click().perform()
    _until(browser, f"return {first} === '0 ns'")
    time.sleep(0.5)  # in which a single click would have left the page
    assert script("return scrollY") == place
    webdriver.ActionChains(browser).click().perform()
    _until(browser, f"return scrollY !== {place}")


def test_tree_map(script: Script, browser: Any) -> None:
    areas = (
        "return Object.fromEntries([...document.querySelectorAll('.treemap button')]"
        ".map((e) => [e.getAttribute('aria-label').split(':')[0], e.offsetWidth * e.offsetHeight]))"
    )
    found = script(areas)
    assert found["[8,8]"] / found["[4]"] == pytest.approx(2, rel=0.15)
    browser.find_element("css selector", ".treemap .group").send_keys("\n")  # opens it
    assert set(script(areas)) == {"mm", EVIL, "[8,8]", "[4]"}
    browser.find_element("css selector", ".treemap .leaf").click()
    table = "document.querySelector('#tool-third [data-table]')"
    _until(browser, f"return {table}.querySelectorAll('tbody tr').length === 2")


def test_source_lines(script: Script, browser: Any) -> None:
    browser.find_element("css selector", "#tool-third td button[title^='Show the source']").click()
    _until(browser, "return document.querySelector('#source tr.here td.code')")
    line = browser.find_element("css selector", "#source tr.here")
    assert line.text.split() == ["2", "900", "B", "step()"]
    assert script("return document.querySelectorAll('#source td.code').length") == 2
    browser.find_element("css selector", "#source label input").click()
    rows = browser.find_elements("css selector", "#source tr.sass")
    assert [row.text for row in rows] == ["gemm", "0x0 MOV", f"0x10 {EVIL}"]


def test_roofline(script: Script, browser: Any) -> None:
    assert len(browser.find_elements("css selector", ".roofline .point")) == 1
    title = script("return document.querySelector('.roofline .point title').textContent")
    assert title == "gemm: 2 GFLOP/s at 8 FLOP per byte, 9.00 us, 50.0 % of the roof"
    roofs = script("return [...document.querySelectorAll('.on-roof')].map((e) => e.textContent)")
    assert roofs == ["float (data sheet): 4 GFLOP/s", "memory (measured): 1 GB/s"]


def test_comparison(browser: Any, page: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(page.parent, other)
    gone = read_results(other / "results")
    for result in gone:
        if result.name == "third":
            pieces = result.tables["kernels"]
            changed = replace(pieces, columns={**pieces.columns, "device_time": [3000, 5000]})
            write_result(other / "results", "third", Result("", {"kernels": changed}))
    comparison = Comparison(RunDirectory.open(page.parent), RunDirectory.open(other))
    path = tmp_path / "diff.html"
    path.write_text(render_diff_page(comparison, [("third", "kernels")]), encoding="utf-8")
    browser.get(path.as_uri())
    _until(browser, "return document.documentElement.dataset.ready !== undefined")
    texts = [each.text for each in browser.find_elements("css selector", ".pairs .value")]
    assert texts == ["9.00 us \u2192 3.00 us", "1.00 us \u2192 5.00 us"]
    words = [each.text for each in browser.find_elements("css selector", ".pairs .change")]
    assert words == ["\u221266.7 %", "+400 %"]
    assert browser.find_element("css selector", ".flame [data-node='0']").is_displayed()
    assert browser.get_log("browser") == []


def test_served_page(browser: Any, tmp_path: Path) -> None:
    write_run(tmp_path / "run", 20_000)
    run = RunDirectory.open(tmp_path / "run")
    rows = Table({"kernel": [f"k{at}" for at in range(COUNT)], "n": np.arange(COUNT)})
    write_result(run.results, "freq", Result("", {"kernels": rows}))
    with ReportServer(run) as server:
        server.prepare()
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        browser.get(server.address)
        count = "document.querySelector('#tool-freq .count')?.textContent"
        _until(browser, f"return {count} === '1\u201315 of 3,000'")
        browser.find_element("css selector", "#tool-freq th:nth-child(2) button").click()
        first = "document.querySelector('#tool-freq tbody td:nth-child(2)').textContent"
        _until(browser, f"return {first} === '2,999'")
        _until(browser, "return document.querySelector('.interval tbody tr')")
        browser.execute_script(f"const t = {TIMELINE}; t.find('kernel_7'); t.step(1)")
        _until(browser, f"return {TIMELINE}.picked")
        said = browser.find_element("css selector", ".timeline .readout").text
        assert said.startswith("kernel_7: kernel, ")
        assert browser.get_log("browser") == []
        browser.get("about:blank")
        server.shutdown()


def test_narrow_screen(script: Script, browser: Any) -> None:
    size = {"width": 360, "height": 740, "deviceScaleFactor": 2, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.refresh()
    _until(browser, "return document.documentElement.dataset.ready !== undefined")
    assert script("return [innerWidth, document.documentElement.scrollWidth]") == [360, 360]
    scroll = "const e = document.querySelector('#tool-first .scroll');"
    assert script(f"{scroll} return e.scrollWidth > e.clientWidth && e.className === 'scroll cut'")
    left = "document.querySelector('#tool-first td.text').getBoundingClientRect().left"
    before = script(f"return {left}")
    script(f"{scroll} e.scrollLeft = 150")
    _until(browser, f"{scroll} return e.classList.contains('scrolled')")
    assert script(f"return {left}") == before  # names stay in view


def test_page_loads_no_external_resources(script: Script, browser: Any) -> None:
    assert script("return performance.getEntriesByType('resource').length") == 0
    refused = script("return fetch('http://127.0.0.1:9/').then(() => 'loaded', (e) => e.name)")
    assert refused == "TypeError"
    said = [entry["message"] for entry in browser.get_log("browser")]
    assert said and all("Content Security Policy" in message for message in said[:1])
