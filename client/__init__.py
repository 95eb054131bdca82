"""How callers talk to a run: prepare a request, attach, follow, cancel."""
