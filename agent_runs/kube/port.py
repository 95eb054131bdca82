"""The port `Cluster`: what the rest of the program may ask of Kubernetes.

`KubernetesCluster` (agent_runs.kube.client) implements it over the API; tests use the same over the embedded cluster.
The rules of every operation: 404 is None (or nothing to delete); 403 is `ClusterForbidden`, naming verb and resource;
401, 429, 5xx, timeouts and broken connections are `ClusterUnavailable`; 409 and 422 are `JobCreateFailed`. Only the API
server's reason and message are quoted, cut short: never bodies, never headers.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime, timedelta
from typing import Any, Literal, Protocol

from agent_runs.contracts.messages import JobRef
from agent_runs.kube.objects import Claim, Event, Job, Metadata, Pod, ResourceRule

Manifest = Mapping[str, Any]
ApplyResult = Literal["created", "adopted", "replaced"]


class AlreadyExists(Exception):
    """An object of that name exists already. The caller reads it and decides whether it is its own."""


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
    """404: pod or container no longer exists, so its log is lost."""


class LogNotReady(LogRefused):
    """400: the container has not started, or its runtime no longer knows it."""


class LogUnavailable(LogRefused):
    """429, 5xx, no connection, a timeout: opening the log may be retried."""


class LogCut(Exception):
    """An open log ended with an error instead of an end of file: reset, idle for too long, broken encoding."""


class ExecFailed(Exception):
    """A command in a container gave no complete output: it was not started, ended with an error, or was cut off.

    Attributes:
        exit_code: the command's; None when it did not run or its end is not known.
        status: HTTP status of a refusal; 0 when the connection failed or broke.
    """

    def __init__(self, message: str, *, exit_code: int | None = None, status: int = 0) -> None:
        super().__init__(message)
        self.exit_code = exit_code
        self.status = status


class Cluster(Protocol):
    """What activities may ask of Kubernetes. All operations are safe to repeat.

    Every operation may raise ClusterUnavailable (Temporal retries it) and ClusterForbidden (it names what to grant).
    """

    @property
    def namespace(self) -> str:
        """The worker's own namespace, or the kubeconfig's, else `default`."""
        ...

    @property
    def own_namespace(self) -> str | None:
        """The namespace of the worker's own pod; None outside a pod."""
        ...

    async def own_pod(self) -> dict[str, Any] | None:
        """Return the worker's own pod as raw JSON, a minute old at the most: all runs of the worker share the answer.

        None outside a pod (POD_NAME and HOSTNAME name no pod of this cluster).
        """
        ...

    async def deployments(self, namespace: str, selector: str) -> list[dict[str, Any]]:
        """Return the Deployments with these labels as raw JSON, a minute old at the most: all runs share the answer."""
        ...

    async def version(self) -> str:
        """Return the API server's version, such as `v1.34.1`."""
        ...

    async def allowed(self, verb: str, resource: str, namespace: str) -> bool:
        """Return whether the worker may do this. `resource` is `<plural>[/<subresource>][.<group>]`: `jobs.batch`."""
        ...

    async def rules(self, namespace: str) -> Sequence[ResourceRule] | None:
        """Return all that the worker may do in the namespace, None when the API server cannot list all of it."""
        ...

    async def dry_run(self, manifest: Manifest) -> None:
        """Ask whether the API server would create this object, a Job, Pod, Secret or PersistentVolumeClaim.

        Everything that judges a creation does: permission, validation, admission, quota. Nothing is stored.

        Raises:
            AlreadyExists: an object of that name exists.
            JobCreateFailed: the API server refuses it (quota, admission, validation).
        """
        ...

    async def read_job(self, namespace: str, name: str) -> Job | None:
        """Return the Job, None when there is none."""
        ...

    async def create_job(self, manifest: Manifest) -> Job:
        """Create a Job.

        Raises:
            AlreadyExists: a Job of that name exists; read it and adopt it if it is ours.
            JobCreateFailed: the API server refuses it (quota, admission, validation).
        """
        ...

    async def delete_job(self, namespace: str, name: str, uid: str, grace: timedelta | None = None) -> bool:
        """Delete this Job (never a later one of its name) and, in the background, its pods.

        The pods end by their own termination grace. Returns False when the Job no longer exists.
        """
        ...

    async def jobs_of_agent(self, namespace: str, agent_id: str) -> list[Job]:
        """Return every Job that this program created for an agent, of whatever run."""
        ...

    async def jobs_of_all_agents(self, namespace: str) -> list[Job]:
        """Return every Job that this program created in a namespace."""
        ...

    async def annotate_job(
        self,
        namespace: str,
        name: str,
        uid: str,
        resource_version: str,
        annotations: Mapping[str, str | None],
        spec: Mapping[str, int | None] | None = None,
    ) -> Job | None:
        """Set annotations of this Job, or remove them (None), if it is still as it was in this version.

        With `spec`, also these fields of its specification.
        Of several that change the same version one succeeds. Needs the verb `patch` on `jobs.batch`.

        Returns:
            The Job as it is now, also if it has these annotations already, because the reply to an earlier call was
            lost: so the values must be the caller's own. None when the Job has changed, in whatever way (the Job's
            controller writes its status too), or no longer exists.
        """
        ...

    async def pods_of_agent(self, namespace: str, agent_id: str) -> list[Pod]:
        """Return every pod of an agent's Jobs, also of deleted ones."""
        ...

    async def delete_secrets_of_agent(self, namespace: str, agent_id: str, *, except_run: str) -> None:
        """Delete the Secrets of an agent except those of one run. None of them is read."""
        ...

    async def pods_of(self, job: JobRef) -> list[Pod]:
        """Return the Job's pods, oldest first: by label `job-name` and by the Job's uid as owner."""
        ...

    def watch_pods(self, job: JobRef) -> AbstractAsyncContextManager[AsyncIterator[list[Pod]]]:
        """Yield the Job's pods, oldest first, now and whenever they change, until the context is left.

        All Jobs of a namespace share one connection. A state that was not taken before the next one is skipped. A
        list that lacks a pod of an earlier one, and an empty first one, were confirmed by reading the pods by name: a
        watch that was cut or missed a change never reports a pod as deleted. So the first list may be as late as the
        pod itself.

        Survives whatever ends a watch. Where watching is forbidden, it lists every few seconds instead.

        Raises:
            ClusterForbidden: pods may not be listed either.
            ClusterUnavailable: a confirming read failed.
        """
        ...

    def watch_refusal(self, namespace: str) -> str | None:
        """Return why the API server refuses to have this namespace's pods watched, so that they are listed; or None."""
        ...

    async def read_pod(self, namespace: str, name: str) -> Pod | None:
        """Return the pod, None when there is none."""
        ...

    async def stop_pod(self, namespace: str, name: str, uid: str) -> bool:
        """Make the kubelet end the pod: SIGTERM, its grace, SIGKILL. Pod, log and exit code stay readable.

        Returns False when the pod no longer exists.
        """
        ...

    async def annotate_pod(self, namespace: str, name: str, uid: str, annotations: Mapping[str, str]) -> bool:
        """Set annotations of this pod. Its kubelet then syncs the whole pod, its Secret volumes included.

        Returns False when the pod no longer exists.
        Source: kubernetes.io, Configure a Pod to Use a ConfigMap, Mounted ConfigMaps are updated automatically.
        """
        ...

    async def delete_pod(self, namespace: str, name: str, uid: str, grace: timedelta) -> bool:
        """Delete this pod with this grace, a second at the least. Return False when it no longer exists.

        Without any grace Kubernetes removes the pod object at once, whether or not its containers have ended.
        Source: kubernetes.io, Pod Lifecycle, Forced Pod termination.
        """
        ...

    async def events_of(self, namespace: str, uids: Sequence[str]) -> list[Event]:
        """Return the events about these objects, oldest first. Kubernetes keeps events for an hour."""
        ...

    async def put_secret(self, manifest: Manifest) -> ApplyResult:
        """Create the Secret, or adopt an existing one whose ownership labels and content digest are the same.

        One with our labels and other content is replaced.

        Raises:
            ForeignObject: a Secret of that name is not ours; it is not changed.
            JobCreateFailed: the API server refuses it.
        """
        ...

    async def create_secret(self, manifest: Manifest) -> bool:
        """Create the Secret. Return False when one of its name exists, which is not changed.

        Raises:
            JobCreateFailed: the API server refuses it.
        """
        ...

    async def change_secret(self, namespace: str, name: str, content: Mapping[str, bytes]) -> bool:
        """Give these keys of a Secret new values; other keys stay. Return False when there is no such Secret."""
        ...

    async def read_secret_metadata(self, namespace: str, name: str) -> Metadata | None:
        """Return labels, annotations and owners of a Secret, never its content; None when there is none."""
        ...

    async def set_secret_owner(self, namespace: str, name: str, job: JobRef) -> bool:
        """Make the Job the Secret's owner, so that it is deleted with it. Return False when there is no such Secret."""
        ...

    async def delete_secret(self, namespace: str, name: str, *, known_as_ours: bool = False) -> bool:
        """Delete the Secret, if it is ours. Return False when it does not exist or is not ours.

        Args:
            known_as_ours: an earlier step has created or adopted it, so its labels need not be read.
        """
        ...

    async def ensure_claim(self, manifest: Manifest) -> str:
        """Return the claim's name. The claim is created if it does not exist; an existing one is used as it is.

        Raises:
            JobCreateFailed: the API server refuses it, or it is absent after its creation.
        """
        ...

    async def has_storage_class(self, name: str) -> bool:
        """Return whether there is a StorageClass of this name.

        Raises:
            ClusterForbidden: StorageClasses belong to no namespace, and few workers may read them.
        """
        ...

    async def read_claim(self, namespace: str, name: str) -> Claim | None:
        """Return the claim, None when there is none."""
        ...

    def open_log(
        self,
        namespace: str,
        pod: str,
        container: str,
        *,
        follow: bool,
        since: datetime | timedelta | None = None,
        timestamps: bool = True,
        idle_timeout: timedelta | None = None,
    ) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """Open the container's log and yield it in pieces of any size as it comes.

        Args:
            since: a moment, in whole seconds, inclusive: Kubernetes' own resolution. Or whole seconds, at least one,
                counted back from now by the node's own clock.
            idle_timeout: how long nothing may come before `LogCut` is raised; None means for ever.

        Raises:
            LogGone, LogNotReady, LogUnavailable: the log could not be opened.
            LogCut: while reading. A plain end of the iterator proves nothing about the container.
        """
        ...

    def exec_output(
        self, namespace: str, pod: str, container: str, argv: Sequence[str], *, limit: int, idle_timeout: timedelta
    ) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """Run a command in a running container and yield what it prints on stdout, in pieces of any size.

        Needs the verbs `get` and `create` on `pods/exec`. Leaving the context early ends the connection, which does
        not end the command.

        Args:
            limit: bytes after which `ExecFailed` is raised.
            idle_timeout: how long nothing may come before `ExecFailed` is raised.

        Raises:
            ExecFailed: while reading at the latest: the end of the iterator means exit code 0.
        """
        ...

    async def exec_input(
        self,
        namespace: str,
        pod: str,
        container: str,
        argv: Sequence[str],
        stdin: bytes,
        *,
        limit: int,
        idle_timeout: timedelta,
    ) -> bytes:
        """Run a command in a running container, give it `stdin`, and return what it prints on stdout.

        The command finds on its standard input the number of bytes in decimal digits, a line feed, and so many bytes;
        it must not read further. Kubernetes before 1.30 cannot tell a command that its standard input has ended, and
        may lose the exit code of a command that leaves much of it unread. If the container ends, the standard input
        may end first: a command takes it as given only when it has read the whole number of bytes.

        Needs the verbs `get` and `create` on `pods/exec`. No error quotes anything of `stdin`, even if the command
        prints it on stderr: each run of 8 bytes that is in both is replaced. A cancel does not end the command.

        Args:
            stdin: 4 MiB at the most.
            limit: bytes of stdout after which `ExecFailed` is raised.
            idle_timeout: how long the command may print nothing before `ExecFailed` is raised.

        Raises:
            ExecFailed: the command did not end with 0. It may have read all of `stdin`, some or nothing.
        """
        ...

    async def close(self) -> None:
        """Close all connections."""
        ...
