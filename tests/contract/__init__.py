"""Promises of a Kubernetes API, tested on the embedded cluster or, with KUBECONFIG set, on a real one."""
