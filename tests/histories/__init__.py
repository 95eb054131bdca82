"""Recorded histories of every shape of run; `tests/workflows/test_replay.py` replays them under the current code.

`python -m tests.histories.record` makes those that are missing. A recorded one is never made again: it stands for the
runs that were started by the code of its day.
"""
