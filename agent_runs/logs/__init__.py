"""Following a container's log without loss: frames of the sidecar, resuming after cuts, the follower, what is stored.

`activities` may import it; workflows may not.
"""
