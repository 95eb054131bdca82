"""Recorded histories of every scenario of a run; `tests/workflows/test_replay.py` replays them under the current code.

`python -m tests.histories.record` records all of them anew.
"""
