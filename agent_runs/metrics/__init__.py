"""The metrics of a worker: which there are (`definitions`), and how they are recorded (`recorder`).

Every package but `agent_runs.contracts` may import it.
"""
