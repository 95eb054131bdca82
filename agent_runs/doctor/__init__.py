"""What a run needs of its surroundings, checked before a run: permissions, the objects of a run by dry run, the store.

It imports job, kube and contracts. `activities`, `service` and `cli` may import it; workflows may not.
"""
