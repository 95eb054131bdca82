"""Kubernetes behind a port we own: client, manifest, diagnosis of failures, log follower, introspection.

What decides is pure (`manifest`, `diagnosis`, `introspection`, the core of `follower`); what talks is `client`, and
only through the raw call interface of the official library. `port` is what the rest of the program sees.
"""
