"""What is created for one attempt: pod profile, Job manifest, Secrets, placement. All of it is pure.

It imports kube, pod and contracts. `logs` and `activities` may import it; workflows may not.
"""
