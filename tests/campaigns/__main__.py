"""Campaigns: python -m tests.campaigns NAME [options]; exits with 1 if anything failed."""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import sys
from dataclasses import replace
from types import ModuleType

import tests.campaigns
from tests.campaigns.result import Row, print_table


def campaigns() -> dict[str, ModuleType]:
    """Modules of this package that are campaigns, by name."""
    names = [each.name for each in pkgutil.iter_modules(tests.campaigns.__path__)]
    modules = [
        importlib.import_module(f"tests.campaigns.{name}") for name in names if name[0] != "_"
    ]
    return {module.NAME: module for module in modules if hasattr(module, "NAME")}


def _run_all(_options: argparse.Namespace) -> list[Row]:
    """Their rows, each of which names its campaign."""
    rows = []
    for name, module in campaigns().items():
        parser = argparse.ArgumentParser()
        module.add_arguments(parser)
        for row in module.run(parser.parse_args([])):
            rows.append(replace(row, what=f"{name}: {row.what}"))
    return rows


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.campaigns", description=__doc__)
    names = parser.add_subparsers(required=True, metavar="NAME")
    every = names.add_parser("all", help="each of them, with its defaults")
    every.set_defaults(run=_run_all)
    for name, module in campaigns().items():
        child = names.add_parser(name, help=(module.__doc__ or "").splitlines()[0])
        module.add_arguments(child)
        child.set_defaults(run=module.run)
    options = parser.parse_args(arguments)
    return 0 if print_table(options.run(options)) else 1


if __name__ == "__main__":
    sys.exit(main())
