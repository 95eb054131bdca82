"""What the rest of the program may ask of Kubernetes, over the official client, `kubernetes.aio` 37.

The official client is used for configuration, credentials and TLS, and only through its raw call interface, for
reasons measured with 37.0.2: its generated calls have no `sinceTime`, cut every request after 300 s, do not raise on
refused raw replies, and read replies into strict, slow models. With its pool of 100 connections the 101st log follow
blocks every other call, so follows and watches have a client of their own without a limit.
"""

import asyncio
import copy
import os
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from math import ceil
from types import TracebackType
from typing import Any, Final, Literal, Self
from urllib.parse import quote

import aiohttp
import msgspec
import structlog
from kubernetes.aio.stream import WsApiClient

from agent_runs.background import in_background
from agent_runs.contracts.errors import ClusterForbidden, ClusterUnavailable, ForeignObject, JobCreateFailed
from agent_runs.contracts.identity import identity_label
from agent_runs.contracts.messages import JobRef
from agent_runs.kube.credentials import ApiAccess, api_client, load_access
from agent_runs.kube.exec import MAX_STDIN_BYTES, iter_stdout, send_stdin
from agent_runs.kube.failures import (
    CONNECTION_ERRORS,
    MAX_STATUS_BYTES,
    AlreadyExists,
    ExecFailed,
    LogCut,
    LogUnavailable,
    Refusal,
    accepted,
    bounded,
    found,
    is_other_object,
    log_refusal,
)
from agent_runs.kube.objects import (
    AccessReview,
    Claim,
    Deployment,
    DeploymentList,
    Event,
    EventList,
    InvalidReply,
    Job,
    JobList,
    Manifest,
    Metadata,
    Model,
    PartialObjectMetadata,
    Pod,
    PodList,
    RawList,
    Status,
    Version,
    WatchEvent,
    decode,
)
from agent_runs.kube.ownership import (
    CONTENT_DIGEST,
    OURS,
    RUN,
    agent_selector,
    content_digest,
    ours,
    same_owner,
    secret_data,
    selector,
)
from agent_runs.kube.watch import NamespaceWatch, ResourceVersionExpired, WatchTiming, owned

CALL_TIMEOUT: Final = timedelta(seconds=30)
"""For one plain call. The API server itself gives up after 60 s."""
CONNECT_TIMEOUT: Final = timedelta(seconds=10)
OWN_POD_MAX_AGE: Final = timedelta(minutes=1)
"""How long the worker's own pod is not read again: of a running pod hardly anything can change."""
MIN_GRACE: Final = timedelta(seconds=1)
"""Of a deleted pod: without any grace Kubernetes does not wait for its containers."""
CALL_POOL_SIZE: Final = 100
"""Connections for short calls. Each costs 0.5 MB and a TLS handshake; hundreds of runs may end in one second."""

_KINDS: Final = {
    "Job": ("jobs.batch", "/apis/batch/v1"),
    "Pod": ("pods", "/api/v1"),
    "Secret": ("secrets", "/api/v1"),
    "PersistentVolumeClaim": ("persistentvolumeclaims", "/api/v1"),
}
"""What can be created: the resource, as for `Cluster.allowed`, and its API."""

ApplyResult = Literal["created", "adopted", "replaced"]
Query = Sequence[tuple[str, str]]

log: Final[Any] = structlog.get_logger()


class Cluster:
    """A Kubernetes API server. Create it with `connect`; close it or use `async with`.

    Every operation is safe to repeat. 404 is None (or nothing to delete); 403 is `ClusterForbidden`, naming verb and
    resource; 401, 429, 5xx, time-outs and broken connections are `ClusterUnavailable`, which Temporal retries; 409 and
    422 are `JobCreateFailed`. Only the API server's reason and message are quoted, cut short: never bodies or headers.
    """

    def __init__(self, to: ApiAccess, timing: WatchTiming | None = None) -> None:
        self._access = to
        self._watch_timing = timing or WatchTiming()
        self._watches: dict[str, NamespaceWatch] = {}
        self._own_pod: tuple[float, dict[str, Any] | None] | None = None
        self._own_pod_lock = asyncio.Lock()  # of runs that start at once the first reads it for all
        self._deployments: dict[tuple[str, str], tuple[float, list[dict[str, Any]]]] = {}
        call_configuration = copy.copy(to.configuration)
        call_configuration.connection_pool_maxsize = CALL_POOL_SIZE
        self._calls = api_client(call_configuration)
        self._streams = api_client(to.configuration)
        self._sockets = api_client(to.configuration, WsApiClient)

    @classmethod
    async def connect(
        cls,
        kubeconfig: str | None = None,
        context: str | None = None,
        namespace: str | None = None,
        environ: Mapping[str, str] = os.environ,
        timing: WatchTiming | None = None,
    ) -> Self:
        """Return a client for the kubeconfig at this path, else for the pod's service account. Does not connect yet.

        Raises:
            ClusterConfigError: its message is one line that says what is missing.
        """
        return cls(await load_access(kubeconfig, context, namespace, environ), timing)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections: open logs end with an error, watches yield nothing more."""
        for watch in self._watches.values():
            await watch.close()
        await self._sockets.close()
        await self._streams.close()
        await self._calls.close()

    @property
    def namespace(self) -> str:
        """The worker's own namespace, or the kubeconfig's, else `default`."""
        return self._access.namespace

    @property
    def own_namespace(self) -> str | None:
        """The namespace of the worker's own pod; None outside a pod."""
        return self._access.own_namespace if self._access.own_name else None

    # what the worker is and may do

    async def own_pod(self) -> dict[str, Any] | None:
        """Return the worker's own pod as raw JSON, a minute old at the most: all runs of the worker share the answer.

        None outside a pod (POD_NAME and HOSTNAME name no pod of this cluster).
        """
        name = self._access.own_name
        if name is None:
            return None
        async with self._own_pod_lock:
            now = time.monotonic()
            if self._own_pod is None or now - self._own_pod[0] > OWN_POD_MAX_AGE.total_seconds():
                reply = await self._get_optional("pods", _core(self._access.own_namespace, "pods", name))
                self._own_pod = (now, None if reply is None else _decode_object(reply, "get pods"))
            return self._own_pod[1]

    async def deployments(self, namespace: str, selector: str) -> list[dict[str, Any]]:
        """Return the Deployments with these labels as raw JSON, a minute old at the most: all runs share the answer."""
        async with self._own_pod_lock:
            now, key = time.monotonic(), (namespace, selector)
            if key not in self._deployments or now - self._deployments[key][0] > OWN_POD_MAX_AGE.total_seconds():
                path = _path("/apis/apps/v1", namespace, "deployments")
                query = [("labelSelector", selector)]
                listed = await self._get("list", "deployments.apps", path, RawList, query)
                self._deployments[key] = (now, [_decode_object(each, "list deployments.apps") for each in listed.items])
            return self._deployments[key][1]

    async def version(self) -> str:
        """Return the API server's version, such as `v1.34.1`."""
        return (await self._get("get", "version", "/version", Version)).git_version

    async def allowed(self, verb: str, resource: str, namespace: str) -> bool:
        """Return whether the worker may do this. `resource` is `<plural>[/<subresource>][.<group>]`: `jobs.batch`."""
        plural, _, group = resource.partition(".")
        kind, _, part = plural.partition("/")
        attributes = {"namespace": namespace, "verb": verb, "group": group, "resource": kind, "subresource": part}
        body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": attributes},
        }
        path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
        reply = await self._call("POST", "create", "selfsubjectaccessreviews", path, body=body)
        return _decode(accepted(reply), AccessReview, "create selfsubjectaccessreviews").status.allowed

    async def dry_run(self, manifest: Manifest) -> None:
        """Ask whether the API server would create this object, a Job, Pod, Secret or PersistentVolumeClaim.

        Everything that judges a creation does: permission, validation, admission, quota. Nothing is stored.

        Raises:
            AlreadyExists: an object of that name exists.
            JobCreateFailed: the API server refuses it (quota, admission, validation).
        """
        await self._create(manifest, [("dryRun", "All")])

    async def list_deployments(self, namespace: str, labels: str) -> Sequence[Deployment]:
        """Return the Deployments with these labels, as `kubectl --selector` takes them."""
        path = _path("/apis/apps/v1", namespace, "deployments")
        return (await self._get("list", "deployments.apps", path, DeploymentList, [("labelSelector", labels)])).items

    # Jobs

    async def read_job(self, namespace: str, name: str) -> Job | None:
        return await self._read(Job, "jobs.batch", _batch(namespace, "jobs", name))

    async def create_job(self, manifest: Manifest) -> Job:
        """Create a Job.

        Raises:
            AlreadyExists: a Job of that name exists; read it and adopt it if it is ours.
            JobCreateFailed: the API server refuses it (quota, admission, validation).
        """
        return _decode(await self._create(manifest), Job, "create jobs.batch")

    async def delete_job(self, namespace: str, name: str, uid: str, grace: timedelta | None = None) -> bool:
        """Delete this Job (never a later one of its name) and, in the background, its pods.

        The pods end by their own termination grace. Returns False when the Job no longer exists.
        """
        return await self._delete("jobs.batch", _batch(namespace, "jobs", name), uid, grace)

    async def jobs_of_agent(self, namespace: str, agent_id: str) -> list[Job]:
        """Return every Job that this program created for an agent, of whatever run."""
        return await self._jobs(namespace, agent_selector(agent_id))

    async def jobs_of_all_agents(self, namespace: str) -> list[Job]:
        """Return every Job that this program created in a namespace."""
        return await self._jobs(namespace, selector(OURS))

    async def _jobs(self, namespace: str, labels: str) -> list[Job]:
        query = [("labelSelector", labels)]
        return list((await self._get("list", "jobs.batch", _batch(namespace, "jobs"), JobList, query)).items)

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
        Source: kubernetes.io, Kubernetes API Concepts, Updates to existing resources: a resourceVersion in a patch is a
        precondition.
        """
        metadata = {"uid": uid, "resourceVersion": resource_version, "annotations": dict(annotations)}
        patch = {"metadata": metadata} | ({"spec": dict(spec)} if spec else {})
        path = _batch(namespace, "jobs", name)
        answer = await self._patch("jobs.batch", path, patch)
        if not isinstance(answer, Refusal):
            return _decode(answer, Job, "patch jobs.batch")
        if answer.is_not_found or is_other_object(answer):
            job = await self.read_job(namespace, name)
            return job if job and job.metadata.uid == uid and _has_annotations(job, annotations) else None
        raise answer.as_error()

    # pods

    async def pods_of_agent(self, namespace: str, agent_id: str) -> list[Pod]:
        """Return every pod of an agent's Jobs, also of deleted ones."""
        query = [("labelSelector", agent_selector(agent_id))]
        return list((await self._get("list", "pods", _core(namespace, "pods"), PodList, query)).items)

    async def pods_of(self, job: JobRef) -> list[Pod]:
        """Return the Job's pods, oldest first: by label `job-name` and by the Job's uid as owner."""
        query = [("labelSelector", f"job-name={job.name}")]
        page = await self._get("list", "pods", _core(job.namespace, "pods"), PodList, query)
        return owned(page.items, job)

    @asynccontextmanager
    async def watch_pods(self, job: JobRef) -> AsyncIterator[AsyncIterator[list[Pod]]]:
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
        watch = self._watches.get(job.namespace)
        if watch is None:
            watch = self._watches[job.namespace] = NamespaceWatch(self, job.namespace, self._watch_timing)
        async with aclosing(watch.states(job)) as states:
            yield states

    def watch_refusal(self, namespace: str) -> str | None:
        """Return why the API server refuses to have this namespace's pods watched, so that they are listed; or None."""
        watch = self._watches.get(namespace)
        return None if watch is None else watch.refusal

    async def read_pod(self, namespace: str, name: str) -> Pod | None:
        return await self._read(Pod, "pods", _core(namespace, "pods", name))

    async def stop_pod(self, namespace: str, name: str, uid: str) -> bool:
        """Make the kubelet end the pod: SIGTERM, its grace, SIGKILL. Pod, log and exit code stay readable.

        Returns False when the pod no longer exists.
        After a deadline the kubelet ends the containers with the pod's own grace; deleting the pod would do the same
        but remove log and status. Source: core/v1 PodSpec.activeDeadlineSeconds, which may be set on a running pod.
        """
        return await self._change_pod(namespace, name, {"metadata": {"uid": uid}, "spec": {"activeDeadlineSeconds": 1}})

    async def annotate_pod(self, namespace: str, name: str, uid: str, annotations: Mapping[str, str]) -> bool:
        """Set annotations of this pod. Its kubelet then syncs the whole pod, its Secret volumes included.

        Returns False when the pod no longer exists.
        Source: kubernetes.io, Configure a Pod to Use a ConfigMap, Mounted ConfigMaps are updated automatically.
        """
        return await self._change_pod(namespace, name, {"metadata": {"uid": uid, "annotations": dict(annotations)}})

    async def _change_pod(self, namespace: str, name: str, patch: Manifest) -> bool:
        answer = await self._patch("pods", _core(namespace, "pods", name), patch)
        if isinstance(answer, Refusal) and is_other_object(answer):
            return False
        return found(answer)

    async def delete_pod(self, namespace: str, name: str, uid: str, grace: timedelta) -> bool:
        """Delete this pod with this grace, a second at the least. Return False when it no longer exists.

        Without any grace Kubernetes removes the pod object at once, whether or not its containers have ended.
        Source: kubernetes.io, Pod Lifecycle, Forced Pod termination.
        """
        return await self._delete("pods", _core(namespace, "pods", name), uid, max(grace, MIN_GRACE))

    async def events_of(self, namespace: str, uids: Sequence[str]) -> list[Event]:
        """Return the events about these objects, oldest first. Kubernetes keeps events for an hour."""
        events: list[Event] = []
        for uid in uids:
            query = [("fieldSelector", f"involvedObject.uid={uid}")]
            events += (await self._get("list", "events", _core(namespace, "events"), EventList, query)).items
        return sorted(events, key=lambda event: event.when or datetime.min.replace(tzinfo=UTC))

    # Secrets and claims

    async def put_secret(self, manifest: Manifest) -> ApplyResult:
        """Create the Secret, or adopt an existing one whose ownership labels and content digest are the same.

        One with our labels and other content is replaced.

        Raises:
            ForeignObject: a Secret of that name is not ours; it is not changed.
            JobCreateFailed: the API server refuses it.
        """
        return "created" if await self.create_secret(manifest) else await self._adopt_secret(manifest)

    async def create_secret(self, manifest: Manifest) -> bool:
        """Create the Secret. Return False when one of its name exists, which is not changed.

        Raises:
            JobCreateFailed: the API server refuses it.
        """
        try:
            await self._create(manifest)
        except AlreadyExists:
            return False
        return True

    async def _adopt_secret(self, manifest: Manifest) -> ApplyResult:
        metadata = manifest["metadata"]
        namespace, name = metadata["namespace"], metadata["name"]
        existing = await self.read_secret_metadata(namespace, name)
        if existing is None or existing.deletion_timestamp is not None:
            raise ClusterUnavailable(f"Secret {name} in namespace {namespace} is being deleted")
        if not same_owner(existing.labels, metadata["labels"]):
            raise ForeignObject(f"Secret {name} in namespace {namespace} exists and belongs to somebody else")
        digest = metadata["annotations"][CONTENT_DIGEST]
        if existing.annotations.get(CONTENT_DIGEST) == digest:
            return "adopted"
        versioned = {
            **manifest,
            "metadata": {**metadata, "resourceVersion": existing.resource_version, "uid": existing.uid},
        }
        path = _core(namespace, "secrets", name)
        accepted(await self._call("PUT", "update", "secrets", path, body=versioned), refused=JobCreateFailed)
        return "replaced"

    async def change_secret(self, namespace: str, name: str, content: Mapping[str, bytes]) -> bool:
        """Give these keys of a Secret new values; other keys stay. Return False when there is no such Secret."""
        digest = {CONTENT_DIGEST: content_digest(content)}
        patch = {"metadata": {"annotations": digest}, "data": secret_data(content)}
        return found(await self._patch("secrets", _core(namespace, "secrets", name), patch))

    async def read_secret_metadata(self, namespace: str, name: str) -> Metadata | None:
        """Return labels, annotations and owners of a Secret, never its content; None when there is none."""
        return await self._metadata("secrets", _core(namespace, "secrets", name))

    async def set_secret_owner(self, namespace: str, name: str, job: JobRef) -> bool:
        """Make the Job the Secret's owner, so that it is deleted with it. Return False when there is no such Secret."""
        owner = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "name": job.name,
            "uid": job.uid,
            "blockOwnerDeletion": False,
        }
        patch = [{"op": "add", "path": "/metadata/ownerReferences", "value": [owner]}]
        answer = await self._patch("secrets", _core(namespace, "secrets", name), patch, "application/json-patch+json")
        return found(answer, refused=JobCreateFailed)

    async def delete_secret(self, namespace: str, name: str, *, known_as_ours: bool = False) -> bool:
        """Delete the Secret, if it is ours. Return False when it does not exist or is not ours.

        Args:
            known_as_ours: an earlier step has created or adopted it, so its labels need not be read.
        """
        existing = None if known_as_ours else await self.read_secret_metadata(namespace, name)
        if not known_as_ours and (existing is None or not ours(existing)):
            return False
        return await self._delete("secrets", _core(namespace, "secrets", name), existing.uid if existing else None)

    async def delete_secrets_of_agent(self, namespace: str, agent_id: str, *, except_run: str) -> None:
        """Delete the Secrets of an agent except those of one run. None of them is read."""
        labels = f"{agent_selector(agent_id)},{RUN},{RUN}!={identity_label(except_run)}"
        path, query = _core(namespace, "secrets"), [("labelSelector", labels)]
        accepted(await self._call("DELETE", "deletecollection", "secrets", path, query))

    async def ensure_claim(self, manifest: Manifest) -> None:
        """Create the claim if it does not exist; an existing one is used as it is.

        Raises:
            JobCreateFailed: it has no StorageClass, or the API server refuses it.
        """
        namespace, name = manifest["metadata"]["namespace"], manifest["metadata"]["name"]
        if await self.read_claim(namespace, name) is not None:
            return
        if not manifest["spec"].get("storageClassName"):
            raise JobCreateFailed(
                'agentDbStorageClass is required when agentDbMode is "dedicated_pvc" but is not configured. '
                f"Set it, or create PersistentVolumeClaim {name} in namespace {namespace} yourself."
            )
        with suppress(AlreadyExists):
            await self._create(manifest)

    async def has_storage_class(self, name: str) -> bool:
        """Return whether there is a StorageClass of this name.

        Raises:
            ClusterForbidden: StorageClasses belong to no namespace, and few workers may read them.
        """
        path = f"/apis/storage.k8s.io/v1/storageclasses/{quote(name, safe='')}"
        return await self._get_optional("storageclasses.storage.k8s.io", path) is not None

    async def read_claim(self, namespace: str, name: str) -> Claim | None:
        return await self._read(Claim, "persistentvolumeclaims", _core(namespace, "persistentvolumeclaims", name))

    # logs

    @asynccontextmanager
    async def open_log(
        self,
        namespace: str,
        pod: str,
        container: str,
        *,
        follow: bool,
        since: datetime | timedelta | None = None,
        timestamps: bool = True,
        idle_timeout: timedelta | None = None,
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """Open the container's log and yield it in pieces of any size as it comes.

        Args:
            since: a moment, in whole seconds, inclusive: Kubernetes' own resolution. Or whole seconds, at least one,
                counted back from now by the node's own clock.
            idle_timeout: how long nothing may come before `LogCut` is raised; None means for ever.

        Raises:
            LogGone, LogNotReady, LogUnavailable: the log could not be opened.
            LogCut: while reading. A plain end of the iterator proves nothing about the container.
        """
        query = [("container", container), ("follow", _flag(follow)), ("timestamps", _flag(timestamps))]
        if isinstance(since, timedelta):
            query.append(("sinceSeconds", str(max(ceil(since.total_seconds()), 1))))
        elif since is not None:
            query.append(("sinceTime", since.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")))
        timeout = aiohttp.ClientTimeout(
            total=None, connect=CONNECT_TIMEOUT.total_seconds(), sock_read=_seconds(idle_timeout)
        )
        try:
            response = await self._send(self._streams, "GET", _core(namespace, "pods", pod) + "/log", query, timeout)
        except CONNECTION_ERRORS as error:
            raise LogUnavailable(0, type(error).__name__, bounded(str(error))) from None
        async with response:
            if response.status != 200:
                raise log_refusal(await _refusal(response, "get", "pods/log"))
            async with aclosing(_iter_log(response)) as pieces:
                yield pieces

    @asynccontextmanager
    async def exec_output(
        self, namespace: str, pod: str, container: str, argv: Sequence[str], *, limit: int, idle_timeout: timedelta
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """Run a command in a running container and yield what it prints on stdout, in pieces of any size.

        Needs the verbs `get` and `create` on `pods/exec`. Leaving the context early ends the connection, which does
        not end the command.

        Args:
            limit: bytes after which `ExecFailed` is raised.
            idle_timeout: how long nothing may come before `ExecFailed` is raised.

        Raises:
            ExecFailed: while reading at the latest: the end of the iterator means exit code 0.
        """
        socket = await self._exec(namespace, pod, container, argv)
        async with socket, aclosing(iter_stdout(socket, limit, idle_timeout)) as pieces:
            yield pieces

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
        if len(stdin) > MAX_STDIN_BYTES:
            raise ExecFailed(f"stdin has {len(stdin)} bytes, more than {MAX_STDIN_BYTES}")
        async with (
            await self._exec(namespace, pod, container, argv, stdin=True) as socket,
            in_background(send_stdin(socket, stdin)),  # a command may end without reading all of it
            aclosing(iter_stdout(socket, limit, idle_timeout, secret=stdin)) as pieces,
        ):
            return b"".join([piece async for piece in pieces])

    async def _exec(
        self, namespace: str, pod: str, container: str, argv: Sequence[str], *, stdin: bool = False
    ) -> aiohttp.ClientWebSocketResponse:
        query = [("container", container), ("stdout", "true"), ("stderr", "true"), ("stdin", _flag(stdin))]
        query += [("command", word) for word in argv]
        try:
            async with asyncio.timeout(CALL_TIMEOUT.total_seconds()):
                return await self._open_socket(_core(namespace, "pods", pod) + "/exec", query)
        except aiohttp.WSServerHandshakeError as error:
            if error.status == 401:
                await self._access.credentials.reload()
            if error.status == 403:
                details: dict[str, Any] = {"verb": "create", "resource": "pods/exec", "status": error.status}
                raise ClusterForbidden(f"cannot create pods/exec: {error.status}", **details) from None
            raise ExecFailed(f"cannot create pods/exec: {error.status}", status=error.status) from None
        except CONNECTION_ERRORS as error:
            raise ExecFailed(f"cannot create pods/exec: {type(error).__name__}: {bounded(str(error))}") from None

    async def _open_socket(self, path: str, query: Query) -> aiohttp.ClientWebSocketResponse:
        request = await self._sockets.param_serialize(
            method="GET",
            resource_path=path,
            query_params=list(query),
            header_params={"sec-websocket-protocol": "v4.channel.k8s.io"},
            auth_settings=["BearerToken"],
        )
        answer = await self._sockets.call_api(*request, _preload_content=False)
        socket: aiohttp.ClientWebSocketResponse = await answer.response
        return socket

    # the calls

    async def _get(self, verb: str, resource: str, path: str, model: type[Model], query: Query = ()) -> Model:
        reply = await self._call("GET", verb, resource, path, query)
        return _decode(accepted(reply), model, f"{verb} {resource}")

    async def _get_optional(self, resource: str, path: str, accept: str = "application/json") -> bytes | None:
        reply = await self._call("GET", "get", resource, path, accept=accept)
        return accepted(reply) if found(reply) else None

    async def _read(
        self, model: type[Model], resource: str, path: str, accept: str = "application/json"
    ) -> Model | None:
        reply = await self._get_optional(resource, path, accept)
        return None if reply is None else _decode(reply, model, f"get {resource}")

    async def _metadata(self, resource: str, path: str) -> Metadata | None:
        """Read only the metadata, if the API server supports that (1.15 and later)."""
        accept = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"
        reply = await self._read(PartialObjectMetadata, resource, path, accept)
        return None if reply is None else reply.metadata

    async def _create(self, manifest: Manifest, query: Query = ()) -> bytes:
        resource, api = _KINDS[manifest["kind"]]
        path = _path(api, manifest["metadata"]["namespace"], resource.partition(".")[0])
        reply = await self._call("POST", "create", resource, path, query, body=dict(manifest))
        if isinstance(reply, Refusal) and reply.reason == "AlreadyExists":
            raise AlreadyExists(str(reply))
        return accepted(reply, refused=JobCreateFailed)

    async def _patch(
        self, resource: str, path: str, patch: object, content_type: str = "application/merge-patch+json"
    ) -> bytes | Refusal:
        return await self._call("PATCH", "patch", resource, path, body=patch, content_type=content_type)

    async def _delete(self, resource: str, path: str, uid: str | None, grace: timedelta | None = None) -> bool:
        """Delete the object, only if it has this `uid`. Return False when it no longer exists."""
        options: dict[str, Any] = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
        if uid is not None:
            options["preconditions"] = {"uid": uid}
        if grace is not None:
            options["gracePeriodSeconds"] = max(0, int(grace.total_seconds()))
        reply = await self._call("DELETE", "delete", resource, path, body=options)
        if isinstance(reply, Refusal) and reply.reason == "Conflict":
            existing = await self._metadata(resource, path)
            if existing is None or (uid is not None and existing.uid != uid):
                return False
        return found(reply)

    async def _call(
        self,
        method: str,
        verb: str,
        resource: str,
        path: str,
        query: Query = (),
        body: object = None,
        content_type: str = "application/json",
        accept: str = "application/json",
    ) -> bytes | Refusal:
        """Return the reply's body, or the API server's refusal.

        Raises:
            ClusterUnavailable: no reply.
        """
        timeout = aiohttp.ClientTimeout(total=CALL_TIMEOUT.total_seconds(), connect=CONNECT_TIMEOUT.total_seconds())
        try:
            response = await self._send(self._calls, method, path, query, timeout, body, content_type, accept)
            async with response:
                if not 200 <= response.status < 300:
                    return await _refusal(response, verb, resource)
                return await response.read()
        except CONNECTION_ERRORS as error:
            message = bounded(str(error)) or "no answer in time"
            raise ClusterUnavailable(
                f"cannot {verb} {resource}: {type(error).__name__}: {message}", verb=verb, resource=resource
            ) from None

    async def _send(
        self,
        client: Any,
        method: str,
        path: str,
        query: Query,
        limits: aiohttp.ClientTimeout,
        body: object = None,
        content_type: str = "application/json",
        accept: str = "application/json, */*",
    ) -> aiohttp.ClientResponse:
        request = await client.param_serialize(
            method=method,
            resource_path=path,
            query_params=list(query),
            header_params={"Accept": accept, "Content-Type": content_type},
            body=body,
            auth_settings=["BearerToken"],
        )
        answer = await client.call_api(*request, _request_timeout=limits)
        response: aiohttp.ClientResponse = answer.response
        if response.status == 401:
            await self._access.credentials.reload()
        return response

    # watching

    async def list_pods(self, namespace: str, labels: str) -> tuple[list[Pod], str]:
        """Return the pods of a label selector and the list's version. A pod that cannot be decoded is left out."""
        query = [("labelSelector", labels)]
        page = await self._get("list", "pods", _core(namespace, "pods"), RawList, query)
        return [pod for item in page.items if (pod := _decode_pod(item)) is not None], page.metadata.resource_version

    async def pod_events(
        self, namespace: str, labels: str, version: str, *, lifetime: timedelta, idle_timeout: timedelta
    ) -> AsyncGenerator[tuple[str, Pod]]:
        """Yield the changes of one watch until it ends in whatever way; the next continues from the last version.

        Raises:
            ResourceVersionExpired: the version is too old.
        """
        query = [
            ("labelSelector", labels),
            ("watch", "true"),
            ("allowWatchBookmarks", "true"),
            ("resourceVersion", version),
            ("timeoutSeconds", str(max(1, int(lifetime.total_seconds())))),
        ]
        timeout = aiohttp.ClientTimeout(
            total=None, connect=CONNECT_TIMEOUT.total_seconds(), sock_read=idle_timeout.total_seconds()
        )
        try:
            response = await self._send(self._streams, "GET", _core(namespace, "pods"), query, timeout)
        except CONNECTION_ERRORS as error:
            raise ClusterUnavailable(
                f"cannot watch pods: {type(error).__name__}", verb="watch", resource="pods"
            ) from None
        async with response:
            if response.status != 200:
                refusal = await _refusal(response, "watch", "pods")
                raise ResourceVersionExpired if refusal.status == 410 else refusal.as_error()
            try:
                async for line in _iter_lines(response):
                    event = _parse_event(line)
                    if (pod := _decode_pod(event.object)) is not None:
                        yield event.type, pod
            except CONNECTION_ERRORS:
                return


def _parse_event(line: bytes) -> WatchEvent:
    """Parse one line of a watch. An invalid one ends the connection like a cut: the next connection repeats it.

    Raises:
        InvalidReply: the line is no event.
        ResourceVersionExpired: the event reports that the version is no longer known.
        RunError: the event reports another error.
    """
    event = decode(line, WatchEvent)
    if event.type != "ERROR":
        return event
    status = decode(bytes(event.object), Status)
    if status.code == 410:
        raise ResourceVersionExpired
    raise Refusal("watch", "pods", status.code or 500, status.reason, bounded(status.message)).as_error()


def _decode_pod(item: msgspec.Raw) -> Pod | None:
    """Decode a pod, None if it is invalid: the runs of all others must not suffer. Its own run reads it by name."""
    try:
        return decode(bytes(item), Pod)
    except InvalidReply as error:
        log.warning("watch.pod_skipped", cause=str(error))
        return None


async def _iter_lines(response: aiohttp.ClientResponse) -> AsyncGenerator[bytes]:
    rest = b""
    async for piece in response.content.iter_any():
        *whole, rest = (rest + piece).split(b"\n")
        for line in whole:
            if line.strip():
                yield line


async def _iter_log(response: aiohttp.ClientResponse) -> AsyncGenerator[bytes]:
    try:
        async for piece in response.content.iter_any():
            yield piece
    except CONNECTION_ERRORS as error:
        raise LogCut(type(error).__name__) from None


async def _refusal(response: aiohttp.ClientResponse, verb: str, resource: str) -> Refusal:
    """Return reason and message of a refusal, and nothing else of the answer.

    An answer that breaks off proves nothing, whatever its status was: the rest of a 403 may be that RBAC is not loaded.
    """
    try:
        async with asyncio.timeout(CALL_TIMEOUT.total_seconds()):
            status = decode(await _read_at_most(response, MAX_STATUS_BYTES), Status)
    except InvalidReply:
        status = Status(message="the answer is not Kubernetes' own")
    except CONNECTION_ERRORS as error:
        return Refusal(verb, resource, 0, "", f"{response.status}, then the connection broke: {type(error).__name__}")
    return Refusal(verb, resource, response.status, bounded(status.reason), bounded(status.message))


async def _read_at_most(response: aiohttp.ClientResponse, limit: int) -> bytes:
    """Read the body up to a number of bytes. aiohttp's own `read(n)` returns whatever has come by then."""
    body = b""
    async for piece in response.content.iter_any():
        body += piece
        if len(body) >= limit:
            break
    return body[:limit]


def _has_annotations(job: Job, annotations: Mapping[str, str | None]) -> bool:
    return all(job.metadata.annotations.get(key) == value for key, value in annotations.items())


def _decode(reply: bytes, model: type[Model], request: str) -> Model:
    try:
        return decode(reply, model)
    except InvalidReply as error:
        raise ClusterUnavailable(f"cannot {request}: {error}") from None


def _decode_object(reply: bytes | msgspec.Raw, request: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(reply, type=dict[str, Any])
    except msgspec.MsgspecError:
        raise ClusterUnavailable(f"cannot {request}: the reply is not a JSON object") from None


def _core(namespace: str, plural: str, name: str | None = None) -> str:
    return _path("/api/v1", namespace, plural, name)


def _batch(namespace: str, plural: str, name: str | None = None) -> str:
    return _path("/apis/batch/v1", namespace, plural, name)


def _path(api: str, namespace: str, plural: str, name: str | None = None) -> str:
    base = f"{api}/namespaces/{quote(namespace, safe='')}/{plural}"
    return base if name is None else f"{base}/{quote(name, safe='')}"


def _flag(value: bool) -> str:
    return "true" if value else "false"


def _seconds(duration: timedelta | None) -> float | None:
    return None if duration is None else duration.total_seconds()
