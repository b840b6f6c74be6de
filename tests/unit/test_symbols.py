"""Names and lines of native code: ELF symbols, DWARF, separate debug files, files that were
replaced."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from pasta.processors.debug_lines import is_available
from pasta.processors.symbols import Code, Image, Symbol, Symbols

SOURCE = """
static inline __attribute__((always_inline)) int inner(volatile int *x) {
    return *x += 1;
}
__attribute__((noinline)) int outer(volatile int *x) {
    return inner(x);
}
int main(void) { volatile int x = 0; return outer(&x); }
"""
INNER_LINE, CALL_LINE = 3, 6


def run(*command: str | Path) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("symbols")
    (directory / "app.c").write_text(SOURCE)
    options = ("-g", "-O1", "-Wl,--build-id")
    run("cc", *options, directory / "app.c", "-o", directory / "app")
    return directory / "app"


def address_of(program: Path, name: str) -> int:
    lines = (line.split() for line in run("nm", program).splitlines())
    return next(int(line[0], 16) for line in lines if line[-1] == name)


def test_inlined_functions_and_lines(program: Path) -> None:
    image = Image(program)
    found = image.at(address_of(program, "outer"))
    assert found[-1].function == "outer"
    if is_available():
        assert [(each.function, each.line) for each in found] == [
            ("inner", INNER_LINE),
            ("outer", CALL_LINE),
        ]
        assert {Path(each.file).name for each in found} == {"app.c"}


def test_a_separate_debug_file_is_found_by_its_link(program: Path, tmp_path: Path) -> None:
    address = address_of(program, "outer")
    debug, stripped = tmp_path / "app.debug", tmp_path / "app"
    run("objcopy", "--only-keep-debug", program, debug)
    run("objcopy", "--strip-all", f"--add-gnu-debuglink={debug}", program, stripped)
    assert Image(stripped).at(address) == Image(program).at(address)
    debug.unlink()
    assert Image(stripped).function(address) == ""


def test_another_file_in_the_place_of_the_one_that_ran_is_not_read(
    program: Path, tmp_path: Path
) -> None:
    address, build = address_of(program, "outer"), Image(program).build
    assert len(build) == 40
    same, other = Code(str(program), build, address), Code(str(program), "00" * 20, address)
    assert Symbols().at(same)[-1].function == "outer"
    assert Symbols().at(other) == (Symbol(""),)
    assert Symbols().at(Code(str(tmp_path / "gone.so"), "", 1)) == (Symbol(""),)
    (tmp_path / "text").write_text("no program")
    assert Symbols().at(Code(str(tmp_path / "text"), "", 1)) == (Symbol(""),)


def test_a_run_keeps_symbols_and_reads_no_file(program: Path) -> None:
    code = Code(str(program), "", address_of(program, "outer"))
    known = Symbols()
    document = known.document([code])
    again = Symbols.from_document(document)
    assert again.at(code) == known.at(code)
    assert again.at(code._replace(address=code.address + 1)) == (Symbol(""),)


@pytest.mark.parametrize("document", [{}, [1], [["a", "b", "c", []]], [["a", "b", 1, [["f"]]]], 5])
def test_damaged_documents_are_refused(document: object) -> None:
    if document == {}:
        assert Symbols.from_document(document).document([]) == []  # type: ignore[arg-type]
        return
    with pytest.raises(ValueError):
        Symbols.from_document(document)  # type: ignore[arg-type]


def test_damaged_files_give_no_symbols(program: Path, tmp_path: Path) -> None:
    content = program.read_bytes()
    damaged = tmp_path / "damaged"
    for at in (16, 40, 58, 60, 62, len(content) - 900, len(content) - 300):
        damaged.write_bytes(content[:at] + b"\xff" * 24 + content[at + 24 :])
        try:
            Image(damaged).function(0x1130)
        except (OSError, ValueError):
            continue
    for length in (0, 63, 64, 200, len(content) // 2):
        damaged.write_bytes(content[:length])
        try:
            Image(damaged).function(0x1130)
        except (OSError, ValueError):
            continue
