"""The Kubernetes API behind the port `Cluster`: client, objects, ownership labels, watch, diagnosis of pods.

It imports contracts only. `job`, `logs`, `activities` and `service` may import it; workflows may not.
"""
