"""Following a container's log without loss: frames of the sidecar, resuming after cuts, the follower.

It imports kube, job and contracts. `activities` may import it; workflows may not.
"""
