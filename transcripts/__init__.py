"""The append-only output of runs: where every line an agent wrote is kept once, and how it is read back.

`store` keeps lines under (run, attempt, sequence), so a repeated batch changes nothing and the last sequence
kept is the cursor to resume from. `follow` turns the store into a live stream, and `service` serves both over HTTP.
"""
