"""`KubernetesCluster`: the port over the official client, `kubernetes.aio` 37.

The official client is used for what it does well (configuration, credentials, TLS) and only through its raw call
interface, for reasons measured with 37.0.2: its generated calls have no `sinceTime`, cut every request after 300 s,
do not raise on refused raw replies, and read replies into strict, slow models. Its pool of 100 connections makes the
101st log follow block every other call, so follows and watches have a client of their own without a limit.
"""

import asyncio
import copy
import os
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import quote

import aiohttp
import msgspec
import structlog
from kubernetes.aio.client import ApiClient
from kubernetes.aio.config import ConfigException
from kubernetes.aio.stream import WsApiClient

from cluster.credentials import Access, access
from cluster.objects import (
    AccessReview,
    ApiObject,
    Event,
    EventList,
    Held,
    Job,
    JobList,
    Metadata,
    Model,
    Pod,
    PodList,
    RawList,
    Status,
    Unreadable,
    Version,
    WatchEvent,
    decode,
)
from cluster.ownership import CONTENT_DIGEST, RUN, agent_selector, content_digest, ours, same_owner, secret_data
from cluster.port import (
    AlreadyExists,
    ExecFailed,
    Kept,
    LogCut,
    LogGone,
    LogNotReady,
    LogRefused,
    LogUnavailable,
    Manifest,
)
from cluster.watching import Expired, PodWatches, WatchPace, owned
from contracts.errors import ClusterForbidden, ClusterUnavailable, ForeignObject, JobCreateFailed, RunError
from contracts.identity import label_value
from contracts.messages import JobRef

CALL: Final = timedelta(seconds=30)
"""Time for one plain call. The API server itself gives up after 60 s."""
CONNECT: Final = timedelta(seconds=10)
OWN_POD: Final = timedelta(minutes=1)
"""How long a look at the worker's own pod is good for: of a running pod hardly anything can change."""
SHORTEST_GRACE: Final = timedelta(seconds=1)
"""For a pod to be deleted: with none Kubernetes does not wait for its containers."""
_QUOTED: Final = 500
_REFUSAL: Final = 64 * 1024
_BROKEN: Final = (aiohttp.ClientError, TimeoutError, OSError, ConfigException, ValueError)

Query = Sequence[tuple[str, str]]

log: Final[Any] = structlog.get_logger()


class Cause(ApiObject, frozen=True):
    """One detail of a Status; the reason `ExitCode` has the code as its message."""

    reason: str = ""
    message: str = ""


class Details(ApiObject, frozen=True):
    """The causes of a Status."""

    causes: tuple[Cause, ...] = ()


class CommandEnd(Status, frozen=True):
    """How a command in a container ended."""

    status: str = ""
    details: Details = Details()

    @property
    def exit_code(self) -> int | None:
        """None when the command did not run."""
        codes = [cause.message for cause in self.details.causes if cause.reason == "ExitCode"]
        return int(codes[0]) if codes and codes[0].isdecimal() and len(codes[0]) < 10 else None


class Refusal(msgspec.Struct, frozen=True):
    """What the API server answered instead of what was asked. Without a `reason` it was not Kubernetes' own answer."""

    verb: str
    resource: str
    status: int
    reason: str
    message: str

    def __str__(self) -> str:
        return (
            f"cannot {self.verb} {self.resource}: {self.status} {self.reason or 'no Kubernetes answer'}: {self.message}"
        )

    @property
    def absent(self) -> bool:
        """Kubernetes itself says that the object does not exist. A proxy's 404 says nothing."""
        return self.status == 404 and self.reason == "NotFound"

    @property
    def denied(self) -> bool:
        """RBAC says no. A 403 is also how quotas and admission refuse; only RBAC names the user.

        An API server that has just started says no for roles that it has not loaded yet, which is no answer.
        """
        if self._loading:
            return False
        return self.status == 401 or (self.status == 403 and "cannot" in self.message and "User" in self.message)

    @property
    def _loading(self) -> bool:
        return self.status == 403 and "RBAC:" in self.message and "not found" in self.message

    def as_error(self, *, refused: type[RunError] = ClusterUnavailable) -> RunError:
        """The failure this refusal is; `refused` for what the API server judges to be wrong in the request itself."""
        if self._loading:
            return ClusterUnavailable(str(self), verb=self.verb, resource=self.resource, status=self.status)
        if self.denied or (self.status == 403 and refused is ClusterUnavailable):
            return ClusterForbidden(str(self), verb=self.verb, resource=self.resource, status=self.status)
        unavailable = self.status == 429 or self.status >= 500 or not self.reason or self.reason == "Conflict"
        kind = ClusterUnavailable if unavailable else refused
        return kind(str(self), verb=self.verb, resource=self.resource, status=self.status)


CALLS: Final = 100
"""Connections for short calls. Each costs half a megabyte and a handshake; hundreds of runs may end in one second."""


class KubernetesCluster:
    """The `Cluster` port over a Kubernetes API server. Use `connect`, and close it or use it with `async with`."""

    def __init__(self, to: Access, pace: WatchPace | None = None) -> None:
        self._access = to
        self._watches = PodWatches(self, pace or WatchPace())
        self._own_pod: tuple[float, dict[str, Any]] | None = None
        briefly = copy.copy(to.configuration)
        briefly.connection_pool_maxsize = CALLS
        self._calls: Any = ApiClient(briefly)  # Any: much of it is untyped upstream
        self._streams: Any = ApiClient(to.configuration)
        sockets: Any = WsApiClient
        self._sockets: Any = sockets(to.configuration)

    @classmethod
    async def connect(
        cls,
        kubeconfig: str | None = None,
        context: str | None = None,
        namespace: str | None = None,
        environ: Mapping[str, str] = os.environ,
        pace: WatchPace | None = None,
    ) -> Self:
        """A client by the kubeconfig's path, else by the pod's service account. Makes no connection yet.

        Raises:
            cluster.credentials.NoCluster: one line that says what is missing.
        """
        return cls(await access(kubeconfig, context, namespace, environ), pace)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections; open logs end with an error, watches fall silent."""
        await self._watches.close()
        await self._sockets.close()
        await self._streams.close()
        await self._calls.close()

    @property
    def namespace(self) -> str:
        """Where the worker lives, or the kubeconfig's namespace, else `default`."""
        return self._access.namespace

    # what the worker is and may do

    async def own_pod(self) -> dict[str, Any] | None:
        """The worker's own pod as raw JSON, a minute old at the most; None outside a pod."""
        name, now = self._access.own_name, time.monotonic()
        if name is None:
            return None
        if self._own_pod is None or now - self._own_pod[0] > OWN_POD.total_seconds():
            reply = await self._find("get", "pods", _core(self._access.own_namespace, "pods", name))
            if reply is None:
                return None
            self._own_pod = (now, _raw(reply, "get pods"))
        return self._own_pod[1]

    async def version(self) -> str:
        """The API server's version, such as `v1.34.1`."""
        return (await self._get("get", "version", "/version", Version)).git_version

    async def allowed(self, verb: str, resource: str, namespace: str) -> bool:
        """Whether the worker may do this; see the port for the spelling of `resource`."""
        plural, _, group = resource.partition(".")
        kind, _, part = plural.partition("/")
        attributes = {"namespace": namespace, "verb": verb, "group": group, "resource": kind, "subresource": part}
        body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": attributes},
        }
        path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
        reply = await self._insist("POST", "create", "selfsubjectaccessreviews", path, body)
        return _as(reply, AccessReview, "create selfsubjectaccessreviews").status.allowed

    # Jobs

    async def read_job(self, namespace: str, name: str) -> Job | None:
        """The Job, None when there is none."""
        reply = await self._find("get", "jobs.batch", _batch(namespace, "jobs", name))
        return None if reply is None else _as(reply, Job, "get jobs.batch")

    async def create_job(self, manifest: Manifest) -> Job:
        """Create a Job; see the port."""
        namespace = manifest["metadata"]["namespace"]
        return _as(await self._create("jobs.batch", _batch(namespace, "jobs"), manifest), Job, "create jobs.batch")

    async def delete_job(self, namespace: str, name: str, uid: str, grace: timedelta | None = None) -> bool:
        """Delete this Job and, in the background, its pods. False when it is gone already."""
        return await self._delete("jobs.batch", _batch(namespace, "jobs", name), uid, grace)

    async def jobs_of_agent(self, namespace: str, agent_id: str) -> list[Job]:
        """Every Job this program made for an agent, of whatever run."""
        query = [("labelSelector", agent_selector(agent_id))]
        return list((await self._get("list", "jobs.batch", _batch(namespace, "jobs"), JobList, query)).items)

    # pods

    async def pods_of_agent(self, namespace: str, agent_id: str) -> list[Pod]:
        """Every pod of an agent's Jobs, also of Jobs that are gone."""
        query = [("labelSelector", agent_selector(agent_id))]
        return list((await self._get("list", "pods", _core(namespace, "pods"), PodList, query)).items)

    async def pods_of(self, job: JobRef) -> list[Pod]:
        """The Job's pods, oldest first."""
        query = [("labelSelector", f"job-name={job.name}")]
        page = await self._get("list", "pods", _core(job.namespace, "pods"), PodList, query)
        return owned(page.items, job)

    @asynccontextmanager
    async def watch_pods(self, job: JobRef) -> AsyncIterator[AsyncIterator[list[Pod]]]:
        """The Job's pods whenever they change, by a watch that all Jobs of a namespace share; see the port."""
        async with self._watches.of(job) as states:
            yield states

    async def read_pod(self, namespace: str, name: str) -> Pod | None:
        """The pod, None when there is none."""
        reply = await self._find("get", "pods", _core(namespace, "pods", name))
        return None if reply is None else _as(reply, Pod, "get pods")

    async def stop_pod(self, namespace: str, name: str, uid: str) -> bool:
        """Ask the kubelet to end the pod, keeping pod, log and exit code. False when the pod is gone.

        A deadline that has passed makes the kubelet kill the containers with the pod's own grace; deleting the pod
        would do the same but take log and status with it. Source: core/v1 PodSpec.activeDeadlineSeconds, which may
        be set on a running pod.
        """
        return await self._change_pod(namespace, name, {"metadata": {"uid": uid}, "spec": {"activeDeadlineSeconds": 1}})

    async def annotate_pod(self, namespace: str, name: str, uid: str, annotations: Mapping[str, str]) -> bool:
        """Set annotations of this pod. False when the pod is gone. See the port."""
        return await self._change_pod(namespace, name, {"metadata": {"uid": uid, "annotations": dict(annotations)}})

    async def _change_pod(self, namespace: str, name: str, patch: Manifest) -> bool:
        answer = await self._patch("pods", _core(namespace, "pods", name), patch, "application/merge-patch+json")
        if isinstance(answer, Refusal):
            another = answer.reason == "Conflict" or (answer.status == 422 and "metadata.uid" in answer.message)
            if answer.absent or another:
                return False
            raise answer.as_error()
        return True

    async def delete_pod(self, namespace: str, name: str, uid: str, grace: timedelta) -> bool:
        """Delete this pod with this grace, a second at the least; see the port."""
        return await self._delete("pods", _core(namespace, "pods", name), uid, max(grace, SHORTEST_GRACE))

    async def events_of(self, namespace: str, uids: Sequence[str]) -> list[Event]:
        """The events about these objects, oldest first."""
        found: list[Event] = []
        for uid in uids:
            query = [("fieldSelector", f"involvedObject.uid={uid}")]
            found += (await self._get("list", "events", _core(namespace, "events"), EventList, query)).items
        return sorted(found, key=lambda event: event.when or datetime.min.replace(tzinfo=UTC))

    # Secrets and claims

    async def put_secret(self, manifest: Manifest) -> Kept:
        """Create the Secret, adopt an equal one, replace one of ours with other content; see the port."""
        return "created" if await self.create_secret(manifest) else await self._adopt_secret(manifest)

    async def create_secret(self, manifest: Manifest) -> bool:
        """Create the Secret. False when one of its name is there."""
        try:
            await self._create("secrets", _core(manifest["metadata"]["namespace"], "secrets"), manifest)
        except AlreadyExists:
            return False
        return True

    async def _adopt_secret(self, manifest: Manifest) -> Kept:
        wanted = manifest["metadata"]
        namespace, name = wanted["namespace"], wanted["name"]
        there = await self.read_secret_metadata(namespace, name)
        if there is None or there.deletion_timestamp is not None:
            raise ClusterUnavailable(f"Secret {name} in namespace {namespace} is just being deleted")
        if not same_owner(there.labels, wanted["labels"]):
            raise ForeignObject(f"Secret {name} in namespace {namespace} exists and belongs to somebody else")
        digest = wanted["annotations"][CONTENT_DIGEST]
        if there.annotations.get(CONTENT_DIGEST) == digest:
            return "adopted"
        versioned = {**manifest, "metadata": {**wanted, "resourceVersion": there.resource_version, "uid": there.uid}}
        await self._insist("PUT", "update", "secrets", _core(namespace, "secrets", name), versioned, JobCreateFailed)
        return "replaced"

    async def change_secret(self, namespace: str, name: str, content: Mapping[str, bytes]) -> bool:
        """Give these keys of a Secret new values. False when there is no such Secret."""
        digest = {CONTENT_DIGEST: content_digest(content)}
        patch = {"metadata": {"annotations": digest}, "data": secret_data(content)}
        answer = await self._patch("secrets", _core(namespace, "secrets", name), patch, "application/merge-patch+json")
        if isinstance(answer, Refusal):
            if answer.absent:
                return False
            raise answer.as_error()
        return True

    async def read_secret_metadata(self, namespace: str, name: str) -> Metadata | None:
        """Labels, annotations and owners of a Secret, never its content."""
        return await self._metadata("secrets", _core(namespace, "secrets", name))

    async def own_secret(self, namespace: str, name: str, job: JobRef) -> bool:
        """Let the Job own the Secret. False when there is no such Secret."""
        owner = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "name": job.name,
            "uid": job.uid,
            "blockOwnerDeletion": False,
        }
        patch = [{"op": "add", "path": "/metadata/ownerReferences", "value": [owner]}]
        answer = await self._patch("secrets", _core(namespace, "secrets", name), patch, "application/json-patch+json")
        if isinstance(answer, Refusal):
            if answer.absent:
                return False
            raise answer.as_error(refused=JobCreateFailed)
        return True

    async def delete_secret(self, namespace: str, name: str, *, known_as_ours: bool = False) -> bool:
        """Delete the Secret if this program made it. False when it is gone or not ours."""
        there = None if known_as_ours else await self.read_secret_metadata(namespace, name)
        if not known_as_ours and (there is None or not ours(there)):
            return False
        return await self._delete("secrets", _core(namespace, "secrets", name), there.uid if there else None)

    async def delete_secrets_of_agent(self, namespace: str, agent_id: str, *, but_of_run: str) -> None:
        """Delete the Secrets of an agent's other runs. None of them is read."""
        labels = f"{agent_selector(agent_id)},{RUN},{RUN}!={label_value(but_of_run)}"
        reply = await self._call(
            "DELETE", "deletecollection", "secrets", _core(namespace, "secrets"), [("labelSelector", labels)]
        )
        if isinstance(reply, Refusal):
            raise reply.as_error()

    async def ensure_claim(self, manifest: Manifest) -> str:
        """The claim's name; created if it does not exist. See the port."""
        namespace, name = manifest["metadata"]["namespace"], manifest["metadata"]["name"]
        if await self.read_claim(namespace, name) is not None:
            return str(name)
        if not manifest["spec"].get("storageClassName"):
            raise JobCreateFailed(
                'agentDbStorageClass is required when agentDbMode is "dedicated_pvc" but is not configured. '
                f"Set it, or create PersistentVolumeClaim {name} in namespace {namespace} yourself."
            )
        try:
            await self._create("persistentvolumeclaims", _core(namespace, "persistentvolumeclaims"), manifest)
        except AlreadyExists:
            return str(name)
        if await self.read_claim(namespace, name) is None:
            raise JobCreateFailed(f"PVC {name} was not created in namespace {namespace}")
        return str(name)

    async def read_claim(self, namespace: str, name: str) -> Held | None:
        """The claim's metadata, None when there is none."""
        found = await self._metadata("persistentvolumeclaims", _core(namespace, "persistentvolumeclaims", name))
        return None if found is None else Held(metadata=found)

    # logs

    @asynccontextmanager
    async def open_log(
        self,
        namespace: str,
        pod: str,
        container: str,
        *,
        follow: bool,
        since: datetime | None = None,
        timestamps: bool = True,
        idle: timedelta | None = None,
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """The container's log as it comes; see the port."""
        query = [("container", container), ("follow", _flag(follow)), ("timestamps", _flag(timestamps))]
        if since is not None:
            query.append(("sinceTime", since.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")))
        timeout = aiohttp.ClientTimeout(total=None, connect=CONNECT.total_seconds(), sock_read=_seconds(idle))
        try:
            response = await self._send(self._streams, "GET", _core(namespace, "pods", pod) + "/log", query, timeout)
        except _BROKEN as error:
            raise LogUnavailable(0, type(error).__name__, _bounded(str(error))) from None
        async with response:
            if response.status != 200:
                raise _log_refusal(await _refusal(response, "get", "pods/log"))
            async with aclosing(_pieces(response)) as pieces:
                yield pieces

    @asynccontextmanager
    async def exec_output(
        self, namespace: str, pod: str, container: str, argv: Sequence[str], *, limit: int, idle: timedelta
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """What a command in a living container prints on stdout; see the port."""
        try:
            async with asyncio.timeout(CALL.total_seconds()):
                socket = await self._open_socket(
                    _core(namespace, "pods", pod) + "/exec",
                    [
                        *(("container", container), ("stdout", "true"), ("stderr", "true")),
                        *(("command", word) for word in argv),
                    ],
                )
        except aiohttp.WSServerHandshakeError as error:
            if error.status in {401, 403}:
                facts: dict[str, Any] = {"verb": "create", "resource": "pods/exec", "status": error.status}
                raise ClusterForbidden(f"cannot create pods/exec: {error.status}", **facts) from None
            raise ExecFailed(f"cannot create pods/exec: {error.status}", status=error.status) from None
        except _BROKEN as error:
            raise ExecFailed(f"cannot create pods/exec: {type(error).__name__}: {_bounded(str(error))}") from None
        async with socket, aclosing(_printed(socket, limit, idle)) as pieces:
            yield pieces

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
        if isinstance(reply, Refusal):
            raise reply.as_error()
        return _as(reply, model, f"{verb} {resource}")

    async def _find(self, verb: str, resource: str, path: str) -> bytes | None:
        reply = await self._call("GET", verb, resource, path)
        if isinstance(reply, Refusal):
            if reply.absent:
                return None
            raise reply.as_error()
        return reply

    async def _metadata(self, resource: str, path: str) -> Metadata | None:
        """Only the metadata leaves the API server, if it knows how (1.15 and later)."""
        accept = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"
        reply = await self._call("GET", "get", resource, path, accept=accept)
        if isinstance(reply, Refusal):
            if reply.absent:
                return None
            raise reply.as_error()
        return _as(reply, Held, f"get {resource}").metadata

    async def _create(self, resource: str, path: str, manifest: Manifest) -> bytes:
        reply = await self._call("POST", "create", resource, path, body=dict(manifest))
        if isinstance(reply, Refusal):
            if reply.reason == "AlreadyExists":
                raise AlreadyExists(str(reply))
            raise reply.as_error(refused=JobCreateFailed)
        return reply

    async def _insist(
        self,
        method: str,
        verb: str,
        resource: str,
        path: str,
        body: Manifest,
        refused: type[RunError] = ClusterUnavailable,
    ) -> bytes:
        reply = await self._call(method, verb, resource, path, body=dict(body))
        if isinstance(reply, Refusal):
            raise reply.as_error(refused=refused)
        return reply

    async def _patch(self, resource: str, path: str, patch: object, content_type: str) -> bytes | Refusal:
        return await self._call("PATCH", "patch", resource, path, body=patch, content_type=content_type)

    async def _delete(self, resource: str, path: str, uid: str | None, grace: timedelta | None = None) -> bool:
        """Delete the object, only if it has this `uid`; False when it is gone."""
        options: dict[str, Any] = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
        if uid is not None:
            options["preconditions"] = {"uid": uid}
        if grace is not None:
            options["gracePeriodSeconds"] = max(0, int(grace.total_seconds()))
        reply = await self._call("DELETE", "delete", resource, path, body=options)
        if not isinstance(reply, Refusal):
            return True
        if reply.absent:
            return False
        if reply.reason == "Conflict":
            there = await self._metadata(resource, path)
            if there is None or (uid is not None and there.uid != uid):
                return False
        raise reply.as_error()

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
        """The reply's body, or the API server's refusal.

        Raises:
            ClusterUnavailable: no reply.
        """
        timeout = aiohttp.ClientTimeout(total=CALL.total_seconds(), connect=CONNECT.total_seconds())
        try:
            response = await self._send(self._calls, method, path, query, timeout, body, content_type, accept)
            async with response:
                if not 200 <= response.status < 300:
                    return await _refusal(response, verb, resource)
                return await response.read()
        except _BROKEN as error:
            told = _bounded(str(error)) or "no answer in time"
            raise ClusterUnavailable(
                f"cannot {verb} {resource}: {type(error).__name__}: {told}", verb=verb, resource=resource
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
        return response

    # watching

    async def list_pods(self, namespace: str, labels: str) -> tuple[list[Pod], str]:
        """The pods of a label selector and the list's version. One that cannot be read is left out, not believed."""
        query = [("labelSelector", labels)]
        page = await self._get("list", "pods", _core(namespace, "pods"), RawList, query)
        return [pod for item in page.items if (pod := _readable(item)) is not None], page.metadata.resource_version

    async def pod_events(
        self, namespace: str, labels: str, version: str, *, lasting: timedelta, idle: timedelta
    ) -> AsyncGenerator[tuple[str, Pod]]:
        """One watch until it ends, however it ends: the next one goes on from the last version seen."""
        query = [
            ("labelSelector", labels),
            ("watch", "true"),
            ("allowWatchBookmarks", "true"),
            ("resourceVersion", version),
            ("timeoutSeconds", str(max(1, int(lasting.total_seconds())))),
        ]
        timeout = aiohttp.ClientTimeout(total=None, connect=CONNECT.total_seconds(), sock_read=idle.total_seconds())
        try:
            response = await self._send(self._streams, "GET", _core(namespace, "pods"), query, timeout)
        except _BROKEN as error:
            raise ClusterUnavailable(
                f"cannot watch pods: {type(error).__name__}", verb="watch", resource="pods"
            ) from None
        async with response:
            if response.status != 200:
                refusal = await _refusal(response, "watch", "pods")
                raise Expired if refusal.status == 410 else refusal.as_error()
            try:
                async for line in _lines(response):
                    event = _watched(line)
                    if (pod := _readable(event.object)) is not None:
                        yield event.type, pod
            except _BROKEN:
                return


def _watched(line: bytes) -> WatchEvent:
    """An event. A line that is none ends the connection like a cut: what it was comes again on the next.

    Raises:
        Unreadable, Expired, RunError: see the text.
    """
    event = decode(line, WatchEvent)
    if event.type != "ERROR":
        return event
    status = decode(bytes(event.object), Status)
    if status.code == 410:
        raise Expired
    raise Refusal("watch", "pods", status.code or 500, status.reason, _bounded(status.message)).as_error()


def _readable(item: msgspec.Raw) -> Pod | None:
    """One odd pod must not blind the runs of all others; its own run asks for it and hears what is wrong."""
    try:
        return decode(bytes(item), Pod)
    except Unreadable as error:
        log.warning("watch.unreadable_pod", cause=str(error))
        return None


async def _lines(response: aiohttp.ClientResponse) -> AsyncGenerator[bytes]:
    rest = b""
    async for piece in response.content.iter_any():
        *whole, rest = (rest + piece).split(b"\n")
        for line in whole:
            if line.strip():
                yield line


async def _pieces(response: aiohttp.ClientResponse) -> AsyncGenerator[bytes]:
    try:
        async for piece in response.content.iter_any():
            yield piece
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
        raise LogCut(type(error).__name__) from None


async def _printed(socket: aiohttp.ClientWebSocketResponse, limit: int, idle: timedelta) -> AsyncGenerator[bytes]:
    """The messages of the protocol v4.channel.k8s.io: their first byte is 1 stdout, 2 stderr, 3 the end's Status."""
    complaints, seen = bytearray(), 0
    while True:
        try:
            message = await socket.receive(idle.total_seconds())
        except (*_BROKEN, RuntimeError) as error:  # RuntimeError: aiohttp's, for a socket that was closed meanwhile
            raise ExecFailed(f"the connection broke: {type(error).__name__}") from None
        if message.type is not aiohttp.WSMsgType.BINARY:
            raise ExecFailed(f"the connection ended before the command did: {message.type.name}")
        channel, data = message.data[:1], message.data[1:]
        if channel == b"\x03":
            _check_end(data, bytes(complaints))
            return
        if channel == b"\x02":
            complaints += data[: _QUOTED - len(complaints)]
        elif channel == b"\x01" and data:
            seen += len(data)
            if seen > limit:
                raise ExecFailed(f"the command printed more than {limit} bytes")
            yield data


def _check_end(data: bytes, complaints: bytes) -> None:
    """Raises for a Status that is no success; its words come from container runtimes."""
    try:
        status = decode(data[:_REFUSAL], CommandEnd)
    except Unreadable:
        raise ExecFailed("the command's end is not Kubernetes' own") from None
    if status.status == "Success":
        return
    told = _bounded(f"{status.message}: {complaints.decode(errors='replace')}")
    raise ExecFailed(told, exit_code=status.exit_code, status=status.code)


async def _refusal(response: aiohttp.ClientResponse, verb: str, resource: str) -> Refusal:
    """Reason and message of a refusal. Whatever else the answer holds stays here.

    An answer that breaks off proves nothing, whatever its status was: half of a 403 may say that RBAC is not loaded.
    """
    try:
        async with asyncio.timeout(CALL.total_seconds()):
            status = decode(await _beginning(response, _REFUSAL), Status)
    except Unreadable:
        status = Status(message="the answer is not Kubernetes' own")
    except _BROKEN as error:
        return Refusal(verb, resource, 0, "", f"{response.status}, then the connection broke: {type(error).__name__}")
    return Refusal(verb, resource, response.status, _bounded(status.reason), _bounded(status.message))


async def _beginning(response: aiohttp.ClientResponse, limit: int) -> bytes:
    """The body, at most so many bytes of it. aiohttp's own `read(n)` stops at whatever has come by then."""
    read = b""
    async for piece in response.content.iter_any():
        read += piece
        if len(read) >= limit:
            break
    return read[:limit]


def _log_refusal(refusal: Refusal) -> Exception:
    if refusal.denied or refusal.status == 403:
        return refusal.as_error()
    kind: type[LogRefused] = LogUnavailable
    if refusal.absent:
        kind = LogGone
    elif refusal.status == 400 and refusal.reason:
        kind = LogNotReady
    return kind(refusal.status, refusal.reason, refusal.message)


def _as(reply: bytes, model: type[Model], asked: str) -> Model:
    try:
        return decode(reply, model)
    except Unreadable as error:
        raise ClusterUnavailable(f"cannot {asked}: {error}") from None


def _raw(reply: bytes, asked: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(reply, type=dict[str, Any])
    except msgspec.MsgspecError:
        raise ClusterUnavailable(f"cannot {asked}: the reply is not a JSON object") from None


def _core(namespace: str, plural: str, name: str | None = None) -> str:
    return _path("/api/v1", namespace, plural, name)


def _batch(namespace: str, plural: str, name: str | None = None) -> str:
    return _path("/apis/batch/v1", namespace, plural, name)


def _path(api: str, namespace: str, plural: str, name: str | None) -> str:
    base = f"{api}/namespaces/{quote(namespace, safe='')}/{plural}"
    return base if name is None else f"{base}/{quote(name, safe='')}"


def _bounded(text: str) -> str:
    return " ".join(text.split())[:_QUOTED]


def _flag(value: bool) -> str:
    return "true" if value else "false"


def _seconds(duration: timedelta | None) -> float | None:
    return None if duration is None else duration.total_seconds()
