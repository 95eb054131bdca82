"""Paperclip's rules as pure functions.

What Paperclip hands over becomes a run request (`preparation`, `sealing`), its wake becomes a prompt (`prompt`,
`skills`) and an environment (`environment`, `wake`), and what OpenCode did becomes Paperclip's result (`result`,
`session`). Nothing here does I/O except reading one skill and one key file, where the function's name says so.
"""
