"""Tensor maps among the arguments of launches, as NVIDIA's driver encodes them."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.c_builds import Build
from tests.support.places import DATA, PROGRAMS, ROOT
from tests.support.session import compile_c

#: Of the driver's types, by number.
ELEMENT_BYTES = (1, 2, 4, 4, 8, 8, 2, 4, 8, 2, 4, 4, 4)
CHANNELS, PIXELS, BF16 = 64, 128, 9  # of the maps in column mode


Found = Callable[[str, list[str]], list[str]]


class Encoded(NamedTuple):
    """A map as the driver (580.159, on an H100) encoded it, and what it decodes to."""

    words: list[str]
    address: int
    bytes: int
    box: int

    def line(self, offset: int) -> str:
        return f"{offset} {self.address:x} {self.bytes} {self.box}"


def read(line: str) -> Encoded:
    told, words = line.split(" : ")
    fields = re.findall(r" (t|rank|addr|dim|st|box|es)((?: [0-9a-f]+(?= |$))+)", told)
    values = {
        name: [int(each, 16 if name == "addr" else 10) for each in text.split()]
        for name, text in fields
    }
    (address,) = values["addr"]
    if told.startswith("im2col"):
        (rank,) = values["rank"]
        sizes = [1024, 512, 7, 5, 3][:rank]
        strides = [4096, 4096 * 512, 4096 * 512 * 7, 4096 * 512 * 35][: rank - 1]
        element, box = ELEMENT_BYTES[BF16], CHANNELS * PIXELS
    else:
        sizes, strides, element = values["dim"], values.get("st", []), ELEMENT_BYTES[values["t"][0]]
        box = values["box"][0]
        for size, step in zip(values["box"][1:], values["es"][1:], strict=True):
            box *= -(-size // step)
    span = sum((size - 1) * stride for size, stride in zip(sizes[1:], strides, strict=True))
    return Encoded(words.split(), address, span + sizes[0] * element, box * element)


ALL = [read(line) for line in (DATA / "nvidia" / "tensor_maps.txt").read_text().splitlines()]
#: The driver also encodes tensors that are larger than all addresses.
MAPS = [each for each in ALL if each.bytes < 1 << 57]


@pytest.fixture(scope="module")
def program(build: Build, tmp_path_factory: pytest.TempPathFactory) -> Path:
    sources = [
        ROOT / "shim" / "backends" / "nvidia" / "cupti_tensor_maps.c",
        PROGRAMS / "test_cupti_tensor_maps.c",
    ]
    return compile_c(tmp_path_factory.mktemp(build.name) / "maps", sources, *build.flags)


@pytest.fixture
def found(build: Build, program: Path, tmp_path: Path) -> Found:
    """Runs the program on words; the lines that it prints."""

    def run(how: str, words: list[str]) -> list[str]:
        file = tmp_path / "words"
        file.write_text("\n".join(words))
        done = build.run(program, how, file)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout.splitlines()

    return run


@pytest.mark.parametrize(("how", "first"), [("extra", 0), ("parameters", 64), ("kernel", 64)])
def test_maps_are_found_where_they_are(found: Found, how: str, first: int) -> None:
    """Behind other words, and one after the other."""
    lines = found(how, ["1", *(word for each in MAPS for word in each.words), "2"])
    assert lines == [each.line(first + 8 + 64 * at) for at, each in enumerate(MAPS)]


def test_tensors_larger_than_all_addresses_are_none(found: Found) -> None:
    huge = [each for each in ALL if each not in MAPS]
    assert len(huge) == 2
    assert found("extra", [word for each in huge for word in each.words]) == []


def test_a_part_of_a_map_is_none(found: Found) -> None:
    assert found("extra", MAPS[0].words[:7]) == []


def test_usual_parameters_are_no_maps(found: Found) -> None:
    """Pointers, sizes and scales, in any order."""
    chosen = random.Random(1)
    usual = (
        lambda: 0x7F00_0000_0000 + 256 * chosen.randrange(1 << 24),
        lambda: chosen.randrange(1, 1 << 16),
        lambda: chosen.randrange(1, 1 << 16) << 32 | chosen.randrange(1 << 16),
        lambda: 0x3F80_0000,
    )
    assert found("extra", [f"{chosen.choice(usual)():x}" for _ in range(3000)]) == []
