"""What is created for one attempt: pod profile, Job manifest, Secrets, placement, and what of it is redacted.

All of it is pure but `redactions`, which reads what the worker itself puts into pods.

It imports kube, pod, paperclip and contracts. `logs` and `activities` may import it; workflows may not.
"""
