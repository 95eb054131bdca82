"""What runs inside an agent pod: the runner (sh) and the sidecar (Python), each a file that travels in a Secret.

It imports nothing of ours. `job` and `activities` may import it; workflows may not.
"""
