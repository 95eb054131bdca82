"""The sidecar of an agent: forwards its output, is its API proxy, and ends last. See `main`.

Only the standard library of any Python from 3.9 on, and h11: it travels to the pod as an archive in a Secret, with h11
in it.
"""
