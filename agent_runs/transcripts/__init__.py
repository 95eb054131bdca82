"""The append-only output of runs: the store, following it, its retention, and the tokens that open a transcript.

Everything above the lowest layer may import it (activities, client, web, service, cli); it imports only `contracts`.
"""
