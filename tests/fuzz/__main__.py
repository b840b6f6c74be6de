"""`python -m tests.fuzz [--minutes N] [TARGET…]`: exits with 1 if an input crashed."""

from __future__ import annotations

import argparse
import sys

from tests.fuzz.targets import TARGETS


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"of {', '.join(TARGETS)}")
    parser.add_argument("--minutes", type=float, default=1, help="for each (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    unknown = set(options.targets) - set(TARGETS)
    if unknown:
        parser.error(f"no target {', '.join(sorted(unknown))}: there are {', '.join(TARGETS)}")
    failed = False
    print(f"{'target':10} {'executions':>12} {'crashes':>8} {'slowest':>10}", flush=True)
    for name in options.targets or TARGETS:
        target = TARGETS[name]
        known, found = target.replay(), target.fuzz(60 * options.minutes, options.seed)
        crashes = [*known.crashes, *found.crashes]
        slowest = max(known.slowest, found.slowest)
        executions = known.executions + found.executions
        print(f"{name:10} {executions:12,} {len(crashes):8,} {slowest:8.3f} s", flush=True)
        for text in crashes[:5]:
            sys.stderr.write(f"{name}: {text}\n")
        failed |= bool(crashes)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
