"""Mutation testing: a changed program must fail its own tests. `python -m tests.mutation` runs a sample."""
