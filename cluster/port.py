"""The cluster as the rest of the program knows it: a handful of operations in the domain's own terms.

`KubernetesCluster` (cluster.client) implements it over the API; tests use the same over the embedded cluster. The
rules of every operation: 404 is None (or nothing to delete); 401 and 403 are `ClusterForbidden`, naming verb and
resource; 429, 5xx, timeouts and broken connections are `ClusterUnavailable`; 409 and 422 are `JobCreateFailed`. Only
the API server's reason and message are ever quoted, cut short: never bodies, never headers.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime, timedelta
from typing import Any, Literal, Protocol

from cluster.objects import Event, Held, Job, Metadata, Pod
from contracts.messages import JobRef

Manifest = Mapping[str, Any]
Kept = Literal["created", "adopted", "replaced"]


class AlreadyExists(Exception):
    """An object of that name exists. The caller reads it and decides whether it is its own."""


class LogRefused(Exception):
    """The log could not be opened. Not a failure of the run: the follower asks the container's status what to do.

    Attributes:
        status: HTTP status; 0 means that no answer came.
        reason: the API server's reason or the kind of connection error.
    """

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"{status} {reason}: {message}")
        self.status = status
        self.reason = reason


class LogGone(LogRefused):
    """404: pod or container is gone, and its log with it."""


class LogNotReady(LogRefused):
    """400: the container has not started, or its runtime has forgotten it."""


class LogUnavailable(LogRefused):
    """429, 5xx, no connection, a timeout: worth another try."""


class LogCut(Exception):
    """An open log ended by an error instead of an end of file: reset, idle for too long, broken encoding."""


class ExecFailed(Exception):
    """A command in a container gave no complete answer: it was not started, ended with an error, or was cut off.

    Attributes:
        exit_code: the command's; None when it did not run or its end was not learned.
        status: HTTP status of a refusal; 0 when the connection failed or broke.
    """

    def __init__(self, message: str, *, exit_code: int | None = None, status: int = 0) -> None:
        super().__init__(message)
        self.exit_code = exit_code
        self.status = status


class Cluster(Protocol):
    """What activities may ask of Kubernetes. All operations are safe to repeat.

    Every operation may raise ClusterUnavailable (tried again with back-off) and ClusterForbidden (what to grant).
    """

    @property
    def namespace(self) -> str:
        """Where the worker lives, or the kubeconfig's namespace, else `default`."""
        ...

    async def own_pod(self) -> dict[str, Any] | None:
        """The worker's own pod as raw JSON, a minute old at the most.

        None outside a pod (POD_NAME and HOSTNAME name none here).
        """
        ...

    async def version(self) -> str:
        """The API server's version, such as `v1.34.1`."""
        ...

    async def allowed(self, verb: str, resource: str, namespace: str) -> bool:
        """Whether the worker may do this. `resource` is `<plural>[/<subresource>][.<group>]`, as `jobs.batch`."""
        ...

    async def read_job(self, namespace: str, name: str) -> Job | None:
        """The Job, None when there is none."""
        ...

    async def create_job(self, manifest: Manifest) -> Job:
        """Create a Job.

        Raises:
            AlreadyExists: read it and adopt it if it is ours.
            JobCreateFailed: the API server refuses it (quota, admission, validation).
        """
        ...

    async def delete_job(self, namespace: str, name: str, uid: str, grace: timedelta | None = None) -> bool:
        """Delete this Job (never a later one of its name) and, in the background, its pods.

        The pods end by their own termination grace. Returns False when it is gone already.
        """
        ...

    async def jobs_of_agent(self, namespace: str, agent_id: str) -> list[Job]:
        """Every Job this program made for an agent, of whatever run."""
        ...

    async def pods_of_agent(self, namespace: str, agent_id: str) -> list[Pod]:
        """Every pod of an agent's Jobs, also of Jobs that are gone."""
        ...

    async def delete_secrets_of_agent(self, namespace: str, agent_id: str, *, but_of_run: str) -> None:
        """Delete the Secrets of an agent's other runs. None of them is read."""
        ...

    async def pods_of(self, job: JobRef) -> list[Pod]:
        """The Job's pods, oldest first: by label `job-name` and by the Job's uid as owner."""
        ...

    def watch_pods(self, job: JobRef) -> AbstractAsyncContextManager[AsyncIterator[list[Pod]]]:
        """The Job's pods, oldest first, and again whenever they change. Ends only by leaving the context.

        All Jobs of a namespace share one connection. A state that nobody took before the next one is skipped. A list
        that lacks a pod shown before, and an empty first one, were confirmed by asking: a watch that was cut or
        missed something never says that a pod is gone. So the first list may come as late as the pod.

        Rides out whatever ends a watch. Where watching is forbidden, lists every few seconds instead.

        Raises:
            ClusterForbidden: pods may not be listed either.
            ClusterUnavailable: the answer to a confirming question did not come.
        """
        ...

    async def read_pod(self, namespace: str, name: str) -> Pod | None:
        """The pod, None when there is none."""
        ...

    async def stop_pod(self, namespace: str, name: str, uid: str) -> bool:
        """Ask the kubelet to end the pod: SIGTERM, its grace, SIGKILL. Pod, log and exit code stay readable.

        Returns False when the pod is gone.
        """
        ...

    async def annotate_pod(self, namespace: str, name: str, uid: str, annotations: Mapping[str, str]) -> bool:
        """Set annotations of this pod. Its kubelet then looks at the whole pod again, its Secret volumes included.

        Returns False when the pod is gone.
        Source: kubernetes.io, Configure a Pod to Use a ConfigMap, Mounted ConfigMaps are updated automatically.
        """
        ...

    async def delete_pod(self, namespace: str, name: str, uid: str, grace: timedelta) -> bool:
        """Delete this pod with this grace, a second at the least. Returns False when it is gone already.

        Without any grace Kubernetes forgets a pod at once, whether or not its containers have ended.
        Source: kubernetes.io, Pod Lifecycle, Forced Pod termination.
        """
        ...

    async def events_of(self, namespace: str, uids: Sequence[str]) -> list[Event]:
        """The events about these objects, oldest first. Kubernetes forgets events after an hour."""
        ...

    async def put_secret(self, manifest: Manifest) -> Kept:
        """Create the Secret, or adopt the one that is there if its ownership labels and content digest are ours.

        Ours with other content is replaced.

        Raises:
            ForeignObject: a Secret of that name is not ours; it is left alone.
            JobCreateFailed: the API server refuses it.
        """
        ...

    async def create_secret(self, manifest: Manifest) -> bool:
        """Create the Secret. Returns False when one of its name is there, which is left as it is.

        Raises:
            JobCreateFailed: the API server refuses it.
        """
        ...

    async def change_secret(self, namespace: str, name: str, content: Mapping[str, bytes]) -> bool:
        """Give these keys of a Secret new values; other keys stay. Returns False when there is no such Secret."""
        ...

    async def read_secret_metadata(self, namespace: str, name: str) -> Metadata | None:
        """Labels, annotations and owners of a Secret, never its content."""
        ...

    async def own_secret(self, namespace: str, name: str, job: JobRef) -> bool:
        """Let the Job own the Secret, so that it goes when the Job goes. Returns False when there is no such Secret."""
        ...

    async def delete_secret(self, namespace: str, name: str, *, known_as_ours: bool = False) -> bool:
        """Delete the Secret, if it is ours. Returns False when it is gone already, or not ours.

        Args:
            known_as_ours: an earlier step has made or adopted it, so its labels need not be read again.
        """
        ...

    async def ensure_claim(self, manifest: Manifest) -> str:
        """The claim's name; it is created if it does not exist, and an existing one is used as it is.

        Raises:
            JobCreateFailed: the API server refuses it, or it is absent after its creation.
        """
        ...

    async def read_claim(self, namespace: str, name: str) -> Held | None:
        """The claim's metadata, None when there is none."""
        ...

    def open_log(
        self,
        namespace: str,
        pod: str,
        container: str,
        *,
        follow: bool,
        since: datetime | None = None,
        timestamps: bool = True,
        idle: timedelta | None = None,
    ) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """The container's log as it comes, in pieces of any size.

        Args:
            since: whole seconds, inclusive: Kubernetes' own resolution.
            idle: how long nothing may come before `LogCut` is raised; None means for ever.

        Raises:
            LogGone, LogNotReady, LogUnavailable: it could not be opened.
            LogCut: while reading. A plain end of the iterator proves nothing about the container.
        """
        ...

    def exec_output(
        self, namespace: str, pod: str, container: str, argv: Sequence[str], *, limit: int, idle: timedelta
    ) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """What a command prints on stdout when it is run in a living container, in pieces of any size.

        Needs the verbs `get` and `create` on `pods/exec`. Leaving the context early ends the connection, which does
        not end the command.

        Args:
            limit: bytes after which the rest is refused.
            idle: how long nothing may come.

        Raises:
            ExecFailed: while reading at the latest: the end of the iterator means exit code 0.
        """
        ...

    async def close(self) -> None:
        """Close all connections."""
        ...
