"""The driver: it has one turn of an agent done by an `opencode serve`, and writes what `opencode run` would.

`drive.drive` is all that others call. Like the rest of the sidecar it needs nothing but a Python from 3.9 on and h11.
"""
