"""The command line `agent-runs`: its commands, and how they show runs to people and to programs.

Only `dev_stack` may import it; it may import everything except `worker` and `dev_stack`.
"""
