"""What agents write: its lines and events, how a run is judged by them, and the store that keeps them.

`fold.Fold` takes what an agent wrote, line by line, and reports how the run ended; `verdict` holds the order of
judgement; `store.TranscriptStore` keeps every line once. The events have the form of OpenCode's; the drivers of other
agents write the same.
Everything above the lowest layer may import it; it imports only `contracts` and `metrics`.
"""
