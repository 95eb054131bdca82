"""The fault table: what goes wrong on purpose, row by row, and what is kept all the same, column by column.

A row is a story (`stories.py`) in a system of its own (`scene.py`); one checker (`facts.py`) judges all of them by what
can be found afterwards. `table.py` renders the verdicts of a real run as docs/guarantees.md.
"""
