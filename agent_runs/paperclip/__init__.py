"""Paperclip's rules as pure functions.

Paperclip's execution context becomes a run request (`preparation`, `sealing`), its wake becomes a prompt (`prompt`,
`skills`) and an environment (`environment`), and what OpenCode did becomes Paperclip's result (`result`, `session`).
Nothing here does I/O except with the key file of `sealing`. Imports only `agent_runs.contracts` and `agent_runs.files`;
workflows, activities and callers may import it.
"""
