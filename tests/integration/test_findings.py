"""The first finding of a C program with a planted fault is that fault (reference accelerator)."""

from __future__ import annotations

from pathlib import Path

import pytest

_BEGIN = """
static inline int64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

int main(void) {
    ra_module module;
    ra_function scale;
    void *x;
    uint32_t grid[3] = {1, 1, 1}, block[3] = {32, 1, 1};
    float half = 0.5f, one = 1;
    int n = 32, bytes = 1 << 18;
    char *host = malloc(bytes);
    memset(host, 1, bytes);
    RA(ra_module_load_builtin(&module));
    RA(ra_module_function(&scale, module, "_Z5scalePfffi"));
    RA(ra_alloc(&x, bytes));
    RA(ra_launch(scale, grid, block, 0, NULL, (void *[]){&x, &half, &one, &n}));
"""
_END = """
    RA(ra_context_synchronize());
    return 0;
}
/* launch( */
"""
_LAUNCH = "RA(ra_launch(scale, grid, block, 0, NULL, (void *[]){&x, &half, &one, &n}));"
_COPY = "RA(ra_memcpy(x, host, bytes));"
#: Kernels of the reference accelerator take CPU time, which other programs may use.
_ATTEMPTS = 3
#: The host's own work takes as long as its waits so far. Otherwise they take nearly all of the time
#: where other programs have the processor: then overlapping them with the host saves nothing.
_WAITS = f"""
    int64_t worked = 0, waited = 0, last = now();
    for (int i = 0; i < 2000; i++) {{
        {_LAUNCH}
        int64_t begin = now();
        RA(ra_context_synchronize());
        worked += begin - last;
        last = now();
        waited += last - begin;
        while (worked + now() - last < waited) {{
        }}
    }}
"""
#: Program bodies with their expected first finding; None: none above low confidence.
PROGRAMS = {
    "tiny kernels": (f"for (int i = 0; i < 20000; i++) {_LAUNCH}", "shorter than their launch"),
    "a wait after every launch": (_WAITS, "the host waits after nearly every launch"),
    "pageable copies": (f"for (int i = 0; i < 200; i++) {_COPY}", "pageable host memory"),
    "many small copies": (
        "for (int i = 0; i < 20000; i++) RA(ra_memcpy((char *)x + i % 64 * 8, host, 8));",
        "many small copies",
    ),
    "clean": (f"{_COPY} for (int i = 0; i < 50; i++) {_LAUNCH}", None),
}


@pytest.mark.main
@pytest.mark.parametrize("name", PROGRAMS)
def test_fault_is_the_first_finding(pasta_preload, compile_c, name: str) -> None:
    body, expected = PROGRAMS[name]
    program = compile_c(f"{_BEGIN}{body}{_END}")
    found: list[dict[str, str]] = []
    for attempt in range(_ATTEMPTS):
        options = ("-t", "kernel_freq", "-t", "copies", "-o", f"run-{attempt}")
        done = pasta_preload(program, options=options)
        assert done.exit_status == 0, done.stderr
        found = _findings(done.directory / f"run-{attempt}")
        if expected is None or (found and expected in found[0]["what"]):
            break
    if expected is None:
        assert not [each for each in found if each["confidence"] != "low"]
    else:
        assert found and expected in found[0]["what"], found


def _findings(run: Path) -> list[dict[str, str]]:
    from pasta.run.results import ranked, read_results

    found = ranked(read_results(run / "results"))
    return [{"what": each.what, "confidence": each.confidence} for _, each in found]
