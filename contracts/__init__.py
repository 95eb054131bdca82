"""What crosses a boundary: run request, activity messages, outcome, errors, names.

Everything here is small and frozen, and lives in Temporal histories for weeks: new fields get defaults, old
ones keep name and meaning. This room depends on pydantic and on Temporal's exception type, and on nothing else.
"""
