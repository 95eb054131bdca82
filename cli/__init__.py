"""`agent-runs`: the command line. `main` holds the commands, `demo` and `follow` what the long ones do.

`transcript` turns OpenCode's events into what a person reads, `display` shows runs to people or to programs. Nothing
here decides about a run: Ctrl-C detaches from it.
"""
