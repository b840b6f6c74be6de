"""Campaigns: many trials of one kind, and a table of the failures.

`python -m tests.campaigns NAME` runs the module of that name here. It has a NAME, a docstring,
`add_arguments(parser)`, and `run(arguments)`, which returns rows of `tests.campaigns.result`.
"""
