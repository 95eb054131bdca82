"""The embedded cluster: a Kubernetes API, a Job controller and a kubelet that runs containers as processes.

For `agent-runs demo` and `dev` without a cluster, and a double for tests. It listens on 127.0.0.1 only, asks every
request for its bearer token, and needs no root. **It is no security boundary**: what a Job says is run as the user who
started the cluster, with that user's files in reach.

How containers run. Each has a supervisor process that keeps its log and its exit code on disk, so containers outlive
a killed cluster and are taken up again by the next start on the same state directory (a normal stop ends them, with a
grace). Where the system permits namespaces (as root, or unprivileged through a user namespace) a container sees a root
made of the host's top-level directories with its volumes mounted at their paths, nothing of which appears on the host,
and has process ids of its own. Where process ids cannot be separated its main process is not pid 1, so SIGTERM ends it
without a handler too, and what descends from it is found by parentage. Where mounts are not permitted the cluster says
so at its start and pods with volumes wait with `CreateContainerError`. The environment holds PATH of the host, HOME=/
and HOSTNAME unless the pod says otherwise, nothing else of the host's, and a mark by which leftovers are found.

What is imitated: current Kubernetes as seen by its API (the contract tests in tests/contract say what exactly and run
against a real cluster too). What is not, honestly:

- images are only names: any tool of the host works, `command` must be given, a pull fails only by fault injection;
- isolation and resources: same user, network, devices; no limits, no OOMKilled; securityContext is accepted, ignored;
- probes, lifecycle hooks, native sidecars, ephemeral containers, exec, attach, port-forward, proxy;
- Indexed Jobs, podFailurePolicy, successPolicy, podReplacementPolicy; CronJobs, Deployments and all other workloads;
- taints, affinity, priorities, quotas, several nodes, storage classes, access modes; every claim is a directory;
- RBAC, admission, service accounts and their tokens, Services and DNS;
- most of validation: what a manifest builder gets wrong is checked, not every field; unknown fields are kept;
- server-side apply merges without owners; later pages of a list show the present; no protobuf; OpenAPI is a stub;
- log rotation happens only by `faults.rotate_log`.
"""

from local.cluster.embedded import CannotStart, EmbeddedCluster
from local.cluster.faults import Faults, HttpFault

__all__ = ["CannotStart", "EmbeddedCluster", "Faults", "HttpFault"]
