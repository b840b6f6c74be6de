"""All campaigns: python -m tests.campaigns NAME [OPTION ...]"""

from __future__ import annotations

import argparse
import sys

from tests.campaigns import configurations, foreign, kills, namespaces, umasks
from tests.campaigns.result import print_table

CAMPAIGNS = {each.NAME: each for each in (configurations, foreign, kills, namespaces, umasks)}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.campaigns", description=__doc__)
    verbs = parser.add_subparsers(dest="name", required=True)
    for name, each in CAMPAIGNS.items():
        each.add_arguments(verbs.add_parser(name, description=each.__doc__))
    arguments = parser.parse_args()
    return int(not print_table(CAMPAIGNS[arguments.name].run(arguments)))


if __name__ == "__main__":
    sys.exit(main())
