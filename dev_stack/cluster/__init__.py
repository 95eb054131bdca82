"""The embedded cluster: a Kubernetes API, a Job controller and a kubelet that runs containers as processes.

For `./dev demo` and `./dev dev` without a cluster, and for tests. It listens on 127.0.0.1 only, requires its bearer
token for every request, and needs no root. **It is no security boundary**: the command of a Job runs as the user who
started the cluster, with that user's files in reach.

How containers run. Each has a supervisor process, which ends with the cluster and takes the container along. Where the
system permits namespaces (as root, or unprivileged through a user namespace) a container sees a root made of the host's
top-level directories with its volumes mounted at their paths, nothing of which appears on the host, and has process ids
of its own. Where process ids cannot be separated its main process is not pid 1, so SIGTERM ends it without a handler
too. Where mounts are not permitted the cluster logs that at its start, and pods with volumes wait with
`CreateContainerError`. The environment holds PATH of the host, HOME=/ and HOSTNAME unless the pod sets them, and
nothing else of the host's. An orderly end keeps objects, logs and claims for the next start on the same directory; a
killed cluster keeps only the claims.

What is imitated: current Kubernetes as seen by its API. The tests in tests/contract define it and run against a real
cluster too. What is not:

- kinds other than Namespaces, Nodes, Pods, Secrets, ConfigMaps, PersistentVolumeClaims, Jobs, Events and Deployments;
- pods of Deployments: a Deployment is stored and listed, and nothing else;
- Jobs of several pods: each has one pod and fails with it, whatever `parallelism` and `backoffLimit` are;
- restarts: every container runs once, whatever `restartPolicy` is;
- images: they are only names, any tool of the host works, `command` must be given, a pull fails only by a fault;
- volumes other than emptyDir, Secrets and claims (a claim is a directory); `envFrom`, fields and ConfigMaps in `env`;
- isolation and resources: same user, network, devices; no limits; securityContext is accepted and ignored;
- probes, lifecycle hooks, sidecar and ephemeral containers, attach, port-forward;
- terminals of exec, and waiting while a command does not read its stdin;
- `tailLines`, `limitBytes` and `previous` of logs; log rotation by size;
- strategic merge patches, server-side apply, dry runs but of creations, pages of lists (`limit` is ignored), tables,
  protobuf, sets in label selectors;
- foreground deletion;
- taints, affinity, priorities, quotas, several nodes, RBAC, admission, service accounts, Services and DNS;
- most semantic rules of validation: Kubernetes' schemas are checked, and the few rules that the contract tests name.
"""

from dev_stack.cluster.embedded_cluster import CannotStart, EmbeddedCluster
from dev_stack.cluster.faults import Faults, HttpFault

__all__ = ["CannotStart", "EmbeddedCluster", "Faults", "HttpFault"]
