"""Programs of PyTorch that the host bounds, with recording switched on and off inside one process.

    python -m bench.host_bound callbacks CACHE     PyTorch's own ways to follow operators
    python -m bench.host_bound pasta               PASTA, under pasta-preload

bench.operators starts both. Prints JSON: seconds of each program by way, and its operators.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parent.parent
_ROUNDS = 80
#: Operators of the program "add".
ADDS = 1000
#: Operators and modules of the program "nested".
NESTED_ADDS, NESTED_LEAVES = 400, 100
#: Operators that are timed one by one, with other memory swept through the caches in between.
_COLD_ADDS, _SWEPT_BYTES = 200, 2 << 20
_COLD_ROUNDS = 12

Switch = Callable[[], contextlib.AbstractContextManager[Any]]


def programs() -> dict[str, Callable[[], object]]:
    """Additions of one element, and a training step of a small model of GPT-2's structure."""
    import torch

    sys.path.insert(0, str(_ROOT / "examples" / "torch"))
    from gpt_train import GPT

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = GPT(layers=1, width=64, length=16, vocabulary=64)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    tokens = torch.randint(0, 64, (1, 17))
    a, b = torch.ones(1), torch.ones(1)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        logits = model(tokens[:, :-1])
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()

    def adds() -> None:
        for _ in range(ADDS):
            torch.add(a, b)

    return {"add": adds, "step": step, "nested": nested(torch)}


def nested(torch: Any) -> Callable[[], object]:
    """Additions of one element, each in modules inside modules: as many Python frames as in a model
    of Hugging Face's, two of three of them of `nn.Module.__call__`."""

    class Layer(torch.nn.Module):  # type: ignore[misc]
        def __init__(self, parts: list[Any]) -> None:
            super().__init__()
            self.parts = torch.nn.ModuleList(parts)

        def forward(self, x: Any) -> Any:
            for part in self.parts:
                x = part(x)
            return x

    class Leaf(torch.nn.Module):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            for _ in range(NESTED_ADDS // NESTED_LEAVES):
                x = torch.add(x, x)
            return x

    model = Layer([Leaf() for _ in range(NESTED_LEAVES)])
    for _ in range(6):
        model = Layer([model])
    ones = torch.ones(1)
    return lambda: model(ones)


def _seconds(run: Callable[[], object]) -> float:
    """CPU time of this thread: others of the machine disturb it less."""
    begin = time.thread_time()
    run()
    return time.thread_time() - begin


def best_times(run: Callable[[], object], ways: dict[str, Switch]) -> dict[str, float]:
    """The shortest time (s) of a program by way, over rounds that take the ways in turn."""
    times: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(_ROUNDS):
        for way, switch in ways.items():
            with switch():
                run()
                times[way] += [_seconds(run), _seconds(run)]
    return {way: min(found) for way, found in times.items()}


def cold_times(ways: dict[str, Switch]) -> dict[str, float]:
    """Median time (s) of an addition after other work has used the caches, by way: the lower
    quartile over rounds."""
    import numpy as np
    import torch

    swept = np.ones(_SWEPT_BYTES // 8)
    tensors = [torch.ones(1) for _ in range(64)]
    times: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(_COLD_ROUNDS):
        for way, switch in ways.items():
            each = []
            with switch():
                for at in range(_COLD_ADDS):
                    swept.sum()
                    begin = time.perf_counter()
                    torch.add(tensors[at % len(tensors)], tensors[0])
                    each.append(time.perf_counter() - begin)
            times[way].append(sorted(each)[len(each) // 2])
    return {way: sorted(found)[len(found) // 4] for way, found in times.items()}


def empty_callback(cache: str) -> Callable[[bool, bool], int]:
    """The function `use(on, tensors)` of c/record_function.cpp, which is built in a directory."""
    import torch

    hooks = _ROOT / "pasta" / "frameworks" / "torch"
    sys.path.insert(0, str(hooks))
    import build  # type: ignore[import-not-found]

    source = str(_ROOT / "bench" / "c" / "record_function.cpp")
    use: Callable[[bool, bool], int] = build.extension(torch, source, cache, []).use
    return use


def _callbacks(cache: str) -> tuple[dict[str, Switch], Callable[[bool, bool], int]]:
    """PyTorch's own ways to follow operators, without PASTA."""
    from torch.profiler import ProfilerActivity, profile

    use = empty_callback(cache)

    @contextlib.contextmanager
    def used(tensors: bool) -> Iterator[None]:
        use(True, tensors)
        yield
        use(False, False)

    ways: dict[str, Switch] = {
        "off": contextlib.nullcontext,
        "callback": lambda: used(False),
        "callback with tensors": lambda: used(True),
        "torch.profiler": lambda: profile(activities=[ProfilerActivity.CPU]),
    }
    return ways, use


def _pasta() -> dict[str, Switch]:
    import pasta

    @contextlib.contextmanager
    def on() -> Iterator[None]:
        pasta.start()
        yield
        pasta.stop()

    pasta.stop()
    return {"off": contextlib.nullcontext, "pasta": on}


def main() -> None:
    """Measure and print."""
    of = programs()
    found: dict[str, dict[str, float]] = {}
    counts: dict[str, int] = {}
    if sys.argv[1] == "callbacks":
        ways, use = _callbacks(sys.argv[2])
        for name, run in of.items():
            run()
            use(True, False)
            run()
            counts[name] = use(False, False)
    else:
        ways = _pasta()
    for name, run in of.items():
        found[name] = best_times(run, ways)
    found["cold add"] = cold_times(ways)
    sys.stdout.flush()
    os.write(1, (json.dumps({"times": found, "operators": counts}) + "\n").encode())


if __name__ == "__main__":
    main()
