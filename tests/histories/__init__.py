"""Recorded histories of every shape of run; `tests/workflows/test_replay.py` replays them under the current code.

Those in this folder were made before the patch "deadlines, budgets and lingering", those in a folder by the code with
the patch that names it. `python -m tests.histories.record` makes those that are missing in the newest one. A recorded
one is never made again: it stands for the runs that were started by the code of its day.
"""
