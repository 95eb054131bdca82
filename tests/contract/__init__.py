"""What a Kubernetes API promises: run against the embedded cluster or, with KUBECONFIG set, against a real one."""
