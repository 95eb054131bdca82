"""Paperclip's rules as pure functions.

Paperclip's execution context becomes a run request (`preparation`, `sealing`), its wake becomes a prompt (`prompt`,
`skills`) and an environment (`environment`), and what OpenCode did becomes Paperclip's result (`result`, `session`).
Nothing here does I/O except the key file of `sealing.load_or_create`. Imports only `agent_runs.contracts`; workflows,
activities and callers may import it.
"""
