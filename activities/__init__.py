"""What acts: one module per activity of a run. Each activity is idempotent and knows ports, not clients.

Imports everything of agent_runs below client. Only the worker imports it; activities do not import each other.
"""
