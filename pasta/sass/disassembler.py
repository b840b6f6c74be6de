"""Disassembly of functions of modules, in parallel and cached.

Each distinct instruction is disassembled and decoded once for all functions that are read together.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pasta.lazy import np
from pasta.sass import cache as store
from pasta.sass import nvdisasm
from pasta.sass.cubin import CodeSection, Cubin
from pasta.sass.forms import Forms, build_forms
from pasta.sass.patterns import (
    CONTROL_SHIFT,
    Listing,
    distinct,
    find,
    join,
    list_distinct,
    without_control,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Code(NamedTuple):
    """A function's instructions: number i is at byte 16 i of its section.

    `form`: index into `forms`, int32. `control`: control bits, uint32 (pasta.sass.control).
    `symbols`: functions in the section by byte offset. `references`: symbols that instructions
    refer to, by byte offset. `jumps`: targets of indirect branches by byte offset.
    """

    name: str
    architecture: int
    forms: Forms
    form: NDArray[np.int32]
    control: NDArray[np.uint32]
    symbols: Mapping[int, str]
    references: Mapping[int, str]
    jumps: Mapping[int, tuple[int, ...]]

    def text(self, index: int) -> str:
        """An instruction as nvdisasm prints it, without control bits."""
        return self.forms.texts[int(self.form[index])]

    def texts(self) -> list[str]:
        """All instructions."""
        return [self.forms.texts[form] for form in self.form.tolist()]


class _Module:
    """A module whose code is requested."""

    def __init__(self, cubin: Cubin, names: Collection[str] | None) -> None:
        self.cubin = cubin
        wanted = cubin.names() if names is None else [n for n in cubin.names() if n in {*names}]
        sections = (cubin.code(name) for name in dict.fromkeys(wanted))
        self.sections: list[CodeSection] = [each for each in sections if each is not None]
        self.file: Path | None = None
        self.kept: Listing | None = None


def read_code(
    modules: Iterable[tuple[Cubin, Collection[str] | None]],
    *,
    cache: Path | None = None,
    timeout: float = 600,
) -> list[dict[str, Code]]:
    """Functions of modules by mangled name, for each module all or those requested.

    `cache`: directory of files by the hash of the module, created if missing. Names that are not in
    a module are ignored. Raises MissingDependency without nvdisasm, SassError if a module is
    damaged, or nvdisasm cannot read its code within `timeout` seconds.
    """
    end = time.monotonic() + timeout
    listed = [_Module(cubin, names) for cubin, names in modules]
    found: list[dict[str, Code]] = [{} for _ in listed]
    for architecture in sorted({each.cubin.architecture for each in listed}):
        same = [at for at, each in enumerate(listed) if each.cubin.architecture == architecture]
        functions = _read([listed[at] for at in same], architecture, cache, end)
        for at, codes in zip(same, functions, strict=True):
            found[at] = codes
    return found


def _read(
    modules: list[_Module], architecture: int, cache: Path | None, end: float
) -> list[dict[str, Code]]:
    sections = [section for module in modules for section in module.sections]
    if not sections:
        return [{} for _ in modules]
    words = np.concatenate([section.words for section in sections])
    keys = without_control(words)
    first, inverse = distinct(keys)
    known = _load(modules, cache) if cache else None
    form_of = np.full(len(first), -1, np.int32)
    listings = []
    if known is not None:
        at = find(known.words, keys[first])
        hits = np.flatnonzero(at >= 0)
        form_of[hits] = np.arange(len(hits), dtype=np.int32)
        listings.append(known.take(at[hits]))
    missing = np.flatnonzero(form_of < 0)
    if len(missing):
        # with the control bits that they have: nvdisasm rejects instructions without
        listing = list_distinct(architecture, words[first[missing]], end)
        start = len(first) - len(missing)
        form_of[missing] = start + find(listing.words, keys[first[missing]])
        listings.append(listing)
    listing = join(listings)
    forms = build_forms(listing)
    form = form_of[inverse]
    control = (words[:, 1] >> np.uint64(CONTROL_SHIFT)).astype(np.uint32)
    starts = np.cumsum([0, *(len(section.words) for section in sections)]).tolist()
    found = []
    at_section = 0
    for module in modules:
        codes = {}
        begin = starts[at_section]
        for section in module.sections:
            part = slice(starts[at_section], starts[at_section + 1])
            codes[section.name] = Code(
                section.name, architecture, forms, form[part], control[part], section.symbols,
                section.references, section.jumps,
            )  # fmt: skip
            at_section += 1
        if module.file is not None and len(missing):
            used = slice(begin, starts[at_section])
            _store(module, listing, form[used])
        found.append(codes)
    return found


def _load(modules: list[_Module], cache: Path) -> Listing | None:
    """Cached instructions of all modules."""
    program = nvdisasm.find_nvdisasm()
    version = nvdisasm.version(program) if program else ""
    for module in modules:
        module.file = store.path_of(cache, module.cubin.image)
        module.kept = store.load(module.file, version)
    kept = [module.kept for module in modules if module.kept is not None]
    return join(kept) if kept else None


def _store(module: _Module, listing: Listing, form: NDArray[np.int32]) -> None:
    content = listing.take(np.unique(form))
    if module.kept is not None:
        if (find(module.kept.words, content.words) >= 0).all():
            return
        others = np.flatnonzero(find(content.words, module.kept.words) < 0)
        content = join([content, module.kept.take(others)])
    assert module.file is not None
    version = nvdisasm.version(nvdisasm.required_nvdisasm())
    store.store(module.file, version, content)
