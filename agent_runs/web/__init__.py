"""The HTTP service of transcripts and of the pages of runs: rendered on the server, one small script, no build step.

`service`, `cli`, `dev_stack` and `worker` may import it; it imports `client` and `transcripts`.
"""
