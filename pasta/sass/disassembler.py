"""Disassembly of functions of modules, in parallel and cached.

Each distinct instruction is disassembled and decoded once for all functions that are read together.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from pasta.lazy import np
from pasta.sass import cache as store
from pasta.sass import nvdisasm
from pasta.sass.cubin import CodeSection, Cubin
from pasta.sass.forms import Forms, FormsBuilder

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Bits of an instruction's high half that schedule it: the text does not depend on them.
CONTROL_SHIFT: Final = 41
_OPERATION: Final = (1 << CONTROL_SHIFT) - 1


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
        self.kept: store.Texts | None = None


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
    keys = words.copy()
    keys[:, 1] &= np.uint64(_OPERATION)
    first, inverse = _distinct(keys)
    known = _load(modules, cache) if cache else None
    form_of = np.full(len(first), -1, np.int32)
    builder = FormsBuilder()
    if known is not None:
        at = _find(known.words, keys[first])
        hits = np.flatnonzero(at >= 0)
        form_of[hits] = np.arange(len(hits), dtype=np.int32)
        builder.add([known.texts[index] for index in at[hits].tolist()])
    missing = np.flatnonzero(form_of < 0)
    if len(missing):
        start = len(first) - len(missing)
        form_of[missing] = np.arange(start, len(first), dtype=np.int32)
        # with the control bits that they have: nvdisasm rejects instructions without
        for texts in nvdisasm.list_instructions(architecture, words[first[missing]], end):
            builder.add(texts)
    forms = builder.finish()
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
            _store(module, keys[used], form[used], forms)
        found.append(codes)
    return found


def _distinct(keys: NDArray[np.uint64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """First row of each distinct one, and for each row the index of its first."""
    _, first, inverse = np.unique(_mix(keys), return_index=True, return_inverse=True)
    if not np.array_equal(keys[first[inverse]], keys):  # two instructions with one hash
        _, first, inverse = np.unique(keys, axis=0, return_index=True, return_inverse=True)
    return first, inverse.reshape(-1)


def _find(known: NDArray[np.uint64], wanted: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Index in `known` of each wanted row; -1 if it is not there."""
    if not len(known):
        return np.full(len(wanted), -1)
    hashes = _mix(known)
    order = np.argsort(hashes)
    at = order[np.minimum(np.searchsorted(hashes, _mix(wanted), sorter=order), len(known) - 1)]
    return np.where((known[at] == wanted).all(1), at, -1)


def _mix(keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    mixed: NDArray[np.uint64] = keys[:, 0] * np.uint64(0x9E3779B97F4A7C15)
    mixed ^= keys[:, 1] * np.uint64(0xC2B2AE3D27D4EB4F)
    return mixed


def _load(modules: list[_Module], cache: Path) -> store.Texts | None:
    """Cached texts of all modules."""
    program = nvdisasm.find_nvdisasm()
    version = nvdisasm.version(program) if program else ""
    for module in modules:
        module.file = store.path_of(cache, module.cubin.image)
        module.kept = store.load(module.file, version)
    kept = [module.kept for module in modules if module.kept is not None]
    if not kept:
        return None
    return store.Texts(
        np.concatenate([each.words for each in kept]),
        [text for each in kept for text in each.texts],
    )


def _store(
    module: _Module, keys: NDArray[np.uint64], form: NDArray[np.int32], forms: Forms
) -> None:
    used, first = np.unique(form, return_index=True)
    words, texts = keys[first], [forms.texts[index] for index in used.tolist()]
    if module.kept is not None:
        if (_find(module.kept.words, words) >= 0).all():
            return
        others = np.flatnonzero(_find(words, module.kept.words) < 0)
        words = np.concatenate([words, module.kept.words[others]])
        texts += [module.kept.texts[index] for index in others.tolist()]
    assert module.file is not None
    version = nvdisasm.version(nvdisasm.required_nvdisasm())
    store.store(module.file, version, store.Texts(words, texts))
