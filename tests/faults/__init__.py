"""The fault table: what goes wrong on purpose, row by row, and what is kept all the same, column by column.

A row is a scenario (`scenarios.py`, `acp_scenarios.py`) in an environment of its own (`environment.py`; with the real
OpenCode `served.py`, with others `acp_environment.py`); the same checks (`checks.py`) read what each of them leaves.
`table.py` renders the results of a run of all rows as docs/guarantees.md.
"""
