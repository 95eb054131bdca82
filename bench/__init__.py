"""Measurements, each runnable as `python -m bench.<name>`; the results are tables for docs/benchmarks.md."""
