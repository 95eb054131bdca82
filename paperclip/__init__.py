"""Paperclip's rules as pure functions.

What Paperclip hands over becomes a run request (`preparation`, `sealing`), its wake becomes a prompt (`prompt`,
`skills`) and an environment (`environment`, `wake`), and what OpenCode did becomes Paperclip's result (`result`,
`session`). Nothing here does I/O except `reading` (files that an agent's configuration names) and the key file of
`sealing.load_or_create`.
"""
