"""The whole system on one machine, for `./dev demo`, `./dev dev`, `./dev cluster` and tests.

Belongs here: the embedded cluster, the scripted model, and the stack that starts them with Temporal and a worker.
Only tests and benchmarks import it; production code never does.
"""
