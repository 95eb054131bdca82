"""Behaviours that the existing adapters pin with tests, replayed by their ids; deviations are in docs/deviations.md."""
