"""What crosses a boundary: request, activity inputs and results, updates, outcome, errors, names. Small and frozen.

They live in Temporal histories for weeks: new fields get defaults, existing ones keep name and meaning. This package
imports pydantic and Temporal's exception type, nothing else; everything may import it.
"""
