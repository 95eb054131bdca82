"""The port over a Kubernetes API: repeated steps find their objects, and invalid answers are never believed."""

import asyncio
import json
import traceback
from contextlib import AsyncExitStack, suppress
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from agent_runs.contracts.errors import ClusterForbidden, ClusterUnavailable, ForeignObject, JobCreateFailed, RunError
from agent_runs.contracts.messages import JobRef
from agent_runs.job.secrets import run_secret
from agent_runs.job.volumes import database_claim
from agent_runs.kube.client import Cluster
from agent_runs.kube.failures import AlreadyExists, ExecFailed, LogCut, LogGone, LogNotReady, LogUnavailable
from agent_runs.kube.objects import Pod
from agent_runs.kube.ownership import owner_labels
from dev_stack.cluster import EmbeddedCluster
from tests.job.inputs import create_job_input
from tests.kube.conftest import Scripted, kubeconfig

NAMESPACE = "default"
LABELS = owner_labels(create_job_input().attempt)


def job_manifest(name: str, script: str, **spec: Any) -> dict[str, Any]:
    container = {"name": "opencode", "image": "busybox:1.36", "command": ["sh", "-c", script]}
    pod = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": [container], **spec}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"backoffLimit": 0, "template": {"metadata": {"labels": LABELS}, "spec": pod}},
    }


def secret_manifest(name: str, value: str = "x", **labels: str) -> dict[str, Any]:
    manifest = run_secret(create_job_input(run=name).attempt, NAMESPACE, {"TOKEN": value}, "{}", {})
    manifest["metadata"]["labels"] |= labels
    return manifest


async def start_job(cluster: Cluster, manifest: dict[str, Any]) -> JobRef:
    job = await cluster.create_job(manifest)
    return JobRef(namespace=NAMESPACE, name=job.metadata.name, uid=job.metadata.uid)


async def wait_for_phase(cluster: Cluster, job: JobRef, *phases: str) -> Pod:
    async with cluster.watch_pods(job) as states, asyncio.timeout(60):
        async for pods in states:
            if pods and pods[0].status.phase in phases:
                return pods[0]
    raise AssertionError("the watch ended")


# on the embedded cluster


async def test_a_job_is_created_once_and_read_back(cluster: Cluster, name: str) -> None:
    job = await start_job(cluster, job_manifest(name, "exit 3"))
    with pytest.raises(AlreadyExists):
        await cluster.create_job(job_manifest(name, "exit 3"))
    pod = await wait_for_phase(cluster, job, "Failed")
    status = pod.container("opencode")
    assert status is not None
    assert status.state.terminated is not None
    assert status.state.terminated.exit_code == 3
    assert [each.metadata.uid for each in await cluster.pods_of(job)] == [pod.metadata.uid]
    assert {event.reason for event in await cluster.events_of(NAMESPACE, [job.uid, pod.metadata.uid])} >= {
        "SuccessfulCreate",
        "Started",
    }
    read = await cluster.read_job(NAMESPACE, name)
    assert read is not None
    assert read.metadata.uid == job.uid


async def test_a_later_job_of_the_same_name_is_not_mistaken_for_ours(cluster: Cluster, name: str) -> None:
    job = await start_job(cluster, job_manifest(name, "sleep 60"))
    other = job.model_copy(update={"uid": "00000000-0000-0000-0000-000000000000"})
    await wait_for_phase(cluster, job, "Running")
    assert await cluster.pods_of(other) == []
    assert await cluster.delete_job(NAMESPACE, name, other.uid) is False
    assert await cluster.read_job(NAMESPACE, name) is not None
    assert await cluster.delete_job(NAMESPACE, name, job.uid) is True
    assert await cluster.delete_job(NAMESPACE, name, job.uid) is False
    assert await cluster.read_job(NAMESPACE, name) is None


async def test_a_stopped_pod_keeps_its_log_and_exit_code(cluster: Cluster, name: str) -> None:
    script = "trap 'echo stopping; exit 7' TERM; echo up; while :; do sleep 0.05; done"
    job = await start_job(cluster, job_manifest(name, script))
    pod = (await wait_for_phase(cluster, job, "Running")).metadata
    async with cluster.open_log(NAMESPACE, pod.name, "opencode", follow=True, timestamps=False) as pieces:
        text = b""
        async for piece in pieces:
            if not text:
                assert await cluster.stop_pod(NAMESPACE, pod.name, "another-uid") is False
                assert await cluster.stop_pod(NAMESPACE, pod.name, pod.uid) is True
            text += piece
    assert text == b"up\nstopping\n"
    ended = (await wait_for_phase(cluster, job, "Failed")).container("opencode")
    assert ended is not None
    assert ended.state.terminated is not None
    assert ended.state.terminated.exit_code == 7
    await cluster.delete_job(NAMESPACE, name, job.uid)
    assert await cluster.stop_pod(NAMESPACE, "no-such-pod", pod.uid) is False


async def test_a_deleted_pod_is_the_one_that_was_meant(cluster: Cluster, name: str) -> None:
    job = await start_job(cluster, job_manifest(name, "sleep 60"))
    pod = (await wait_for_phase(cluster, job, "Running")).metadata
    assert await cluster.delete_pod(NAMESPACE, pod.name, "another-uid", timedelta(0)) is False
    assert await cluster.read_pod(NAMESPACE, pod.name) is not None
    assert await cluster.delete_pod(NAMESPACE, pod.name, pod.uid, timedelta(0)) is True
    await cluster.delete_job(NAMESPACE, name, job.uid)


async def test_a_secret_is_created_adopted_or_replaced(cluster: Cluster, name: str) -> None:
    manifest = secret_manifest(name)
    secret = manifest["metadata"]["name"]
    assert await cluster.put_secret(manifest) == "created"
    assert await cluster.put_secret(manifest) == "adopted"
    assert await cluster.put_secret(secret_manifest(name, "other")) == "replaced"
    assert await cluster.put_secret(secret_manifest(name, "other")) == "adopted"
    assert await cluster.delete_secret(NAMESPACE, secret) is True
    assert await cluster.delete_secret(NAMESPACE, secret) is False
    assert await cluster.delete_secret(NAMESPACE, secret, known_as_ours=True) is False
    assert await cluster.read_secret_metadata(NAMESPACE, secret) is None
    assert await cluster.create_secret(manifest) is True
    assert await cluster.create_secret(secret_manifest(name, "other")) is False
    assert await cluster.delete_secret(NAMESPACE, secret, known_as_ours=True) is True


async def test_a_foreign_secret_is_not_changed(cluster: Cluster, name: str) -> None:
    theirs = secret_manifest(name, **{"app.kubernetes.io/managed-by": "somebody"})
    secret = theirs["metadata"]["name"]
    await cluster.put_secret(theirs)
    with pytest.raises(ForeignObject, match=secret):
        await cluster.put_secret(secret_manifest(name))
    assert await cluster.delete_secret(NAMESPACE, secret) is False
    existing = await cluster.read_secret_metadata(NAMESPACE, secret)
    assert existing is not None
    assert existing.labels["app.kubernetes.io/managed-by"] == "somebody"


async def test_a_secret_is_deleted_with_its_job(cluster: Cluster, name: str) -> None:
    job = await start_job(cluster, job_manifest(name, "sleep 60"))
    manifest = secret_manifest(name)
    secret = manifest["metadata"]["name"]
    assert await cluster.set_secret_owner(NAMESPACE, secret, job) is False
    await cluster.put_secret(manifest)
    assert await cluster.set_secret_owner(NAMESPACE, secret, job) is True
    assert await cluster.set_secret_owner(NAMESPACE, secret, job) is True
    owned = await cluster.read_secret_metadata(NAMESPACE, secret)
    assert owned is not None
    assert [owner.uid for owner in owned.owner_references] == [job.uid]
    await cluster.delete_job(NAMESPACE, name, job.uid)
    async with asyncio.timeout(60):
        while await cluster.read_secret_metadata(NAMESPACE, secret) is not None:  # noqa: ASYNC110 - another server's
            await asyncio.sleep(0.05)


async def test_a_claim_is_created_once_and_an_existing_one_used(cluster: Cluster, name: str) -> None:
    config = {"agentDbMode": "dedicated_pvc", "namespace": NAMESPACE}
    without = database_claim(create_job_input(agent=name, config=config))
    assert without is not None
    with pytest.raises(JobCreateFailed, match="agentDbStorageClass is required"):
        await cluster.ensure_claim(without)
    claim = database_claim(create_job_input(agent=name, config={**config, "agentDbStorageClass": "standard"}))
    assert claim is not None
    await cluster.ensure_claim(claim)
    assert await cluster.read_claim(NAMESPACE, f"opencode-db-{name}") is not None
    await cluster.ensure_claim(without)


async def test_a_job_that_the_api_server_refuses_is_a_failed_creation(cluster: Cluster) -> None:
    with pytest.raises(JobCreateFailed, match="422 Invalid"):
        await cluster.create_job(job_manifest("No_Such-Name", "true"))


async def test_the_worker_can_ask_what_it_may_do(cluster: Cluster) -> None:
    assert await cluster.allowed("create", "jobs.batch", NAMESPACE) is True
    assert await cluster.allowed("get", "pods/log", NAMESPACE) is True
    assert (await cluster.version()).startswith("v1.")
    assert await cluster.own_pod() is None


async def test_the_workers_own_pod_is_cached_for_a_minute(scripted: Scripted, tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(json.dumps(kubeconfig(scripted.url, {})))
    environ = {"POD_NAME": "worker-0", "POD_NAMESPACE": "agents"}
    async with await Cluster.connect(str(path), environ=environ) as client:
        scripted.refuse_with(503, "ServiceUnavailable", "not now")
        with pytest.raises(ClusterUnavailable):
            await client.own_pod()
        scripted.answer_with(200, {"metadata": {"name": "worker-0"}})
        assert await client.own_pod() == await client.own_pod() == {"metadata": {"name": "worker-0"}}
    assert len(scripted.requests) == 2


async def test_runs_that_ask_for_the_workers_own_pod_at_once_cause_one_read(scripted: Scripted, tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(json.dumps(kubeconfig(scripted.url, {})))
    environ = {"POD_NAME": "worker-0", "POD_NAMESPACE": "agents"}
    async with await Cluster.connect(str(path), environ=environ) as client:
        scripted.answer_with(200, {"metadata": {"name": "worker-0"}})
        assert len(await asyncio.gather(*(client.own_pod() for _ in range(20)))) == 20
        await client.own_pod()
    assert len(scripted.requests) == 1


async def test_a_worker_whose_own_pod_does_not_exist_looks_for_it_once_a_minute(
    scripted: Scripted, tmp_path: Path
) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(json.dumps(kubeconfig(scripted.url, {})))
    async with await Cluster.connect(str(path), environ={"POD_NAME": "no-pod"}) as client:
        scripted.refuse_with(404, "NotFound", 'pods "no-pod" not found')
        assert [await client.own_pod() for _ in range(3)] == [None] * 3
    assert len(scripted.requests) == 1


async def test_deployments_are_listed_by_label_once_a_minute_for_each_namespace(
    client: Cluster, scripted: Scripted
) -> None:
    scripted.refuse_with(403, "Forbidden", "no")
    with pytest.raises(ClusterForbidden, match=r"deployments\.apps"):
        await client.deployments("paperclip", "a=b")
    scripted.answer_with(200, {"items": [{"metadata": {"name": "server"}}]})
    for _ in range(3):
        assert await client.deployments("paperclip", "a=b") == [{"metadata": {"name": "server"}}]
    await client.deployments("other", "a=b")
    assert [path for _, path, _, _ in scripted.requests] == [
        "/apis/apps/v1/namespaces/paperclip/deployments?labelSelector=a%3Db",
        "/apis/apps/v1/namespaces/paperclip/deployments?labelSelector=a%3Db",
        "/apis/apps/v1/namespaces/other/deployments?labelSelector=a%3Db",
    ]


async def test_a_log_that_cannot_be_opened_raises_the_reason(cluster: Cluster, name: str) -> None:
    with pytest.raises(LogGone):
        await read_log(cluster, "no-such-pod")
    job = await start_job(cluster, job_manifest(name, "exit 0"))
    pod = (await wait_for_phase(cluster, job, "Succeeded")).metadata.name
    with pytest.raises(LogNotReady):
        await read_log(cluster, pod, "no-such-container")


async def read_log(cluster: Cluster, pod: str, container: str = "opencode", **how: Any) -> bytes:
    async with cluster.open_log(NAMESPACE, pod, container, **{"follow": False, **how}) as pieces:
        return b"".join([piece async for piece in pieces])


async def test_a_log_can_be_read_from_a_second_on(cluster: Cluster, name: str) -> None:
    job = await start_job(cluster, job_manifest(name, "echo one"))
    pod = (await wait_for_phase(cluster, job, "Succeeded")).metadata.name
    stamped = await read_log(cluster, pod, since=datetime(2020, 1, 1, tzinfo=UTC))
    assert stamped.endswith(b"Z one\n")
    assert await read_log(cluster, pod, since=datetime.now(UTC) + timedelta(hours=1)) == b""


# answers that no Kubernetes should give


@pytest.mark.parametrize(
    ("status", "reason", "message", "error"),
    [
        pytest.param(429, "TooManyRequests", "slow down", ClusterUnavailable, id="throttled"),
        pytest.param(500, "InternalError", "etcdserver: leader changed", ClusterUnavailable, id="500"),
        pytest.param(503, "ServiceUnavailable", "apiserver not ready", ClusterUnavailable, id="503"),
        pytest.param(401, "Unauthorized", "Unauthorized", ClusterUnavailable, id="our identity is refused"),
        pytest.param(
            403,
            "Forbidden",
            'jobs.batch is forbidden: User "x" cannot get resource "jobs"',
            ClusterForbidden,
            id="RBAC",
        ),
        pytest.param(
            403,
            "Forbidden",
            'jobs.batch is forbidden: User "x" cannot get resource "jobs": RBAC: role "y" not found',
            ClusterUnavailable,
            id="RBAC not loaded yet",
        ),
    ],
)
async def test_a_refused_read_raises_the_right_error(
    client: Cluster, scripted: Scripted, status: int, reason: str, message: str, error: type[RunError]
) -> None:
    scripted.refuse_with(status, reason, message)
    with pytest.raises(error, match=r"get jobs\.batch") as refused:
        await client.read_job(NAMESPACE, "j")
    assert type(refused.value) is error
    assert message[:20] in str(refused.value)


@pytest.mark.parametrize(
    ("status", "reason", "message", "error"),
    [
        pytest.param(403, "Forbidden", 'pods "x" is forbidden: exceeded quota: q', JobCreateFailed, id="quota"),
        pytest.param(400, "BadRequest", "admission webhook denied the request", JobCreateFailed, id="webhook"),
        pytest.param(422, "Invalid", "spec.template: Invalid value", JobCreateFailed, id="invalid"),
        pytest.param(404, "NotFound", 'namespaces "x" not found', JobCreateFailed, id="no namespace"),
        pytest.param(409, "Conflict", "the object has been modified", ClusterUnavailable, id="conflict"),
        pytest.param(
            403, "Forbidden", 'jobs is forbidden: User "x" cannot create resource', ClusterForbidden, id="RBAC"
        ),
        pytest.param(503, "ServiceUnavailable", "shutting down", ClusterUnavailable, id="503"),
        pytest.param(401, "Unauthorized", "Unauthorized", ClusterUnavailable, id="our identity is refused"),
    ],
)
async def test_a_refused_creation_raises_the_right_error(
    client: Cluster, scripted: Scripted, status: int, reason: str, message: str, error: type[RunError]
) -> None:
    scripted.refuse_with(status, reason, message)
    with pytest.raises(error) as refused:
        await client.create_job(job_manifest("j", "true"))
    assert type(refused.value) is error


@pytest.mark.parametrize(
    ("status", "body"),
    [
        pytest.param(404, "<html>404 page not found</html>", id="a proxy's 404"),
        pytest.param(200, "<html>please log in</html>", id="a login page"),
        pytest.param(200, '{"metadata": {"uid": 7}}', id="wrong types"),
        pytest.param(404, '{"reason": null}', id="a 404 with nulls"),
        pytest.param(404, "[]", id="a 404 with a list"),
    ],
)
async def test_an_answer_that_is_not_kubernetes_own_proves_nothing(
    client: Cluster, scripted: Scripted, status: int, body: str
) -> None:
    scripted.answer_with(status, body, "text/html")
    with pytest.raises(ClusterUnavailable):
        await client.read_job(NAMESPACE, "j")
    if status == 200:  # an answer to a deletion is not read
        return
    with pytest.raises(ClusterUnavailable):
        await client.delete_job(NAMESPACE, "j", "u")


async def test_refusals_never_quote_bodies_or_headers(client: Cluster, scripted: Scripted) -> None:
    scripted.refuse_with(422, "Invalid", "m" * 5000, details={"canary": "in-the-body"})
    with pytest.raises(JobCreateFailed) as refused:
        await client.put_secret(secret_manifest("n", "canary-value"))
    text = f"{refused.value} {refused.value.details}"
    assert len(text) < 1500
    assert "in-the-body" not in text
    assert "canary-value" not in text
    assert "the-token" not in text


async def test_no_answer_is_unavailable(tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    body = kubeconfig("http://127.0.0.1:1", {})
    path.write_text(json.dumps(body))
    async with await Cluster.connect(str(path), environ={}) as lonely:
        with pytest.raises(ClusterUnavailable, match=r"cannot get jobs\.batch"):
            await lonely.read_job(NAMESPACE, "j")
        with pytest.raises(LogUnavailable):
            await read_log(lonely, "p")


async def test_a_cut_answer_is_unavailable(cluster: Cluster, embedded: EmbeddedCluster, name: str) -> None:
    await start_job(cluster, job_manifest(name, "exit 0"))
    embedded.faults.http(method="GET", path=f"jobs/{name}", cut_after=40)
    with pytest.raises(ClusterUnavailable):
        await cluster.read_job(NAMESPACE, name)
    assert await cluster.read_job(NAMESPACE, name) is not None


async def half_a_refusal(request: web.Request) -> web.StreamResponse:
    """Half of a refusal, then an aborted connection."""
    response = web.StreamResponse(status=403, headers={"Content-Length": "1000"})
    await response.prepare(request)
    await response.write(b'{"reason": "Forbidden", "message": "pods is forb')
    assert request.transport is not None
    request.transport.abort()
    return response


async def read_watch(client: Cluster) -> None:
    once = timedelta(seconds=5)
    async for _ in client.pod_events(NAMESPACE, "a=b", "1", lifetime=once, idle_timeout=once):
        raise AssertionError("nothing comes")


async def test_a_refusal_that_breaks_off_proves_nothing(client: Cluster, scripted: Scripted) -> None:
    scripted.answer = half_a_refusal
    with pytest.raises(LogUnavailable):
        await read_log(client, "p", follow=True)
    with pytest.raises(ClusterUnavailable):
        await read_watch(client)
    with pytest.raises(ClusterUnavailable):
        await client.read_job(NAMESPACE, "j")
    with pytest.raises(ClusterUnavailable):
        await client.create_job(job_manifest("j", "true"))


async def test_every_request_has_our_user_agent(client: Cluster, scripted: Scripted) -> None:
    scripted.refuse_with(503, "ServiceUnavailable", "not now")
    with pytest.raises(ClusterUnavailable):
        await client.version()
    with pytest.raises(ClusterUnavailable):
        await client.create_job(job_manifest("j", "true"))
    with pytest.raises(ClusterUnavailable):
        await read_watch(client)
    with pytest.raises(LogUnavailable):
        await read_log(client, "p", follow=True)
    opened = client.exec_output(NAMESPACE, "p", "opencode", ["true"], limit=100, idle_timeout=timedelta(seconds=5))
    with pytest.raises(ExecFailed):
        async with opened:
            pass
    assert [headers["user-agent"] for _, _, headers, _ in scripted.requests] == [
        f"agent-runs/{version('agent-runs')}"
    ] * 5
    assert [headers.get("upgrade", "") for _, _, headers, _ in scripted.requests] == ["", "", "", "", "websocket"]


async def test_a_refusal_that_comes_in_pieces_is_read_whole(client: Cluster, scripted: Scripted) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(status=404)
        await response.prepare(request)
        for piece in (b'{"reason": "Not', b'Found", "message": "no such Job"}'):
            await response.write(piece)
            await asyncio.sleep(0.02)  # nobody can tell when the client has read it; too short only hides the bug
        return response

    scripted.answer = answer
    assert await client.read_job(NAMESPACE, "j") is None
    with pytest.raises(LogGone):
        await read_log(client, "p")


@pytest.mark.parametrize(
    ("status", "body", "error"),
    [
        pytest.param(500, "kubelet is down", LogUnavailable, id="500"),
        pytest.param(429, '{"reason": "TooManyRequests"}', LogUnavailable, id="429"),
        pytest.param(404, "404 page not found", LogUnavailable, id="a proxy's 404"),
        pytest.param(404, '{"reason": "NotFound", "message": "pods not found"}', LogGone, id="404"),
        pytest.param(400, '{"reason": "BadRequest", "message": "is waiting to start"}', LogNotReady, id="400"),
        pytest.param(403, '{"reason": "Forbidden", "message": "no"}', ClusterForbidden, id="403"),
        pytest.param(401, '{"reason": "Unauthorized", "message": "no"}', LogUnavailable, id="our identity is refused"),
    ],
)
async def test_a_refused_log_raises_the_right_error(
    client: Cluster, scripted: Scripted, status: int, body: str, error: type[Exception]
) -> None:
    scripted.answer_with(status, body)
    with pytest.raises(error):
        await read_log(client, "p")


async def test_a_silent_log_is_cut_and_a_broken_one_too(client: Cluster, scripted: Scripted) -> None:
    silent = asyncio.Event()

    async def one_line(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"one\n")
        with suppress(ConnectionError):
            await silent.wait()
        return response

    scripted.answer = one_line
    async with client.open_log(NAMESPACE, "p", "c", follow=True, idle_timeout=timedelta(milliseconds=50)) as pieces:
        assert await anext(pieces) == b"one\n"
        with pytest.raises(LogCut):
            await anext(pieces)
    silent.set()


async def test_a_log_is_asked_for_by_whole_seconds(client: Cluster, scripted: Scripted) -> None:
    scripted.answer_with(200, "", "text/plain")
    since = datetime(2026, 11, 21, 23, 0, 1, 999_999, tzinfo=UTC)
    assert await read_log(client, "p/../q", since=since) == b""
    method, path, headers, _ = scripted.requests[-1]
    assert method == "GET"
    assert path.startswith("/api/v1/namespaces/default/pods/p%2F..%2Fq/log?")
    assert "sinceTime=2026-11-21T23:00:01Z" in path
    assert headers["authorization"] == "Bearer the-token"


async def test_a_log_is_asked_for_by_the_nodes_own_clock(client: Cluster, scripted: Scripted) -> None:
    scripted.answer_with(200, "", "text/plain")
    for since, seconds in ((timedelta(minutes=7), 420), (timedelta(milliseconds=1500), 2), (timedelta(), 1)):
        assert await read_log(client, "p", since=since) == b""
        assert f"sinceSeconds={seconds}" in scripted.requests[-1][1]
        assert "sinceTime" not in scripted.requests[-1][1]


async def test_many_open_logs_do_not_block_other_calls(client: Cluster, scripted: Scripted) -> None:
    done = asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        if not request.path.endswith("/log"):
            return web.json_response({"metadata": {"uid": "u"}})
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"x\n")
        with suppress(ConnectionError):
            await done.wait()
        return response

    scripted.answer = answer
    async with asyncio.timeout(60), AsyncExitStack() as opened:
        for _ in range(130):
            pieces = await opened.enter_async_context(client.open_log(NAMESPACE, "p", "c", follow=True))
            assert await anext(pieces) == b"x\n"
        assert await client.read_job(NAMESPACE, "j") is not None
        done.set()


# commands in containers, with answers that no Kubernetes should give


async def read_exec(client: Cluster) -> bytes:
    opened = client.exec_output(NAMESPACE, "p", "opencode", ["true"], limit=100, idle_timeout=timedelta(seconds=5))
    async with opened as pieces:
        return b"".join([piece async for piece in pieces])


async def test_a_forbidden_exec_reports_what_to_grant(client: Cluster, scripted: Scripted) -> None:
    scripted.refuse_with(403, "Forbidden", "no")
    with pytest.raises(ClusterForbidden, match="create pods/exec"):
        await read_exec(client)


async def test_an_exec_whose_refusal_breaks_off_failed(client: Cluster, scripted: Scripted) -> None:
    async def abort(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    scripted.answer = abort
    with pytest.raises(ExecFailed, match="cannot create pods/exec"):
        await read_exec(client)


async def test_an_exec_without_credentials_failed(tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(json.dumps(kubeconfig("http://127.0.0.1:1", {"token": "t"})))
    async with await Cluster.connect(str(path), environ={}) as client:

        async def refresh(_: object) -> None:
            raise OSError("the token file is missing")

        for part in (client._calls, client._sockets):
            part.configuration.refresh_api_key_hook = refresh
        with pytest.raises(ExecFailed, match="the token file is missing"):
            await read_exec(client)
        with pytest.raises(ClusterUnavailable, match="the token file is missing"):
            await client.read_job(NAMESPACE, "j")


@pytest.mark.parametrize("status", [200, 401, 404, 500, 503])
async def test_an_exec_that_is_refused_failed(client: Cluster, scripted: Scripted, status: int) -> None:
    scripted.answer_with(status, "nonsense", "text/plain")
    with pytest.raises(ExecFailed) as failed:
        await read_exec(client)
    assert (failed.value.status, failed.value.exit_code) == (status, None)


@pytest.mark.parametrize(
    ("messages", "error"),
    [
        pytest.param([b"\x01half"], "ended before the command did", id="closed early"),
        pytest.param([b"\x03nonsense"], "not Kubernetes' own", id="a nonsensical end"),
        pytest.param([b"\x03{}"], ":", id="an empty end"),
        pytest.param(["text"], "ended before the command did: TEXT", id="a text message"),
        pytest.param([b"\x01" + bytes(101)], "more than 100 bytes", id="too much"),
        pytest.param([b"", b"\x09?", b"\x02oops", b'\x03{"status":"Failure","message":"m"}'], "m: oops", id="odd ones"),
        pytest.param(
            [b'\x03{"status":"Failure","details":{"causes":[{"reason":"ExitCode","message":"x"}]}}'], ":", id="x"
        ),
    ],
)
async def test_an_exec_without_a_proper_end_failed(
    client: Cluster, scripted: Scripted, messages: list[bytes | str], error: str
) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        socket = web.WebSocketResponse(protocols=["v4.channel.k8s.io"])
        await socket.prepare(request)
        for message in messages:
            await (socket.send_str(message) if isinstance(message, str) else socket.send_bytes(message))
        await socket.close()
        return socket

    scripted.answer = answer
    with pytest.raises(ExecFailed, match=error) as failed:
        await read_exec(client)
    assert failed.value.exit_code is None


SECRET = b"pct_0123456789abcdefgh"


async def enter_secret(client: Cluster, stdin: bytes = SECRET) -> bytes:
    idle = timedelta(seconds=5)
    return await client.exec_input(NAMESPACE, "p", "opencode", ["cat"], stdin, limit=100, idle_timeout=idle)


async def test_stdin_needs_the_permission_of_exec(client: Cluster, scripted: Scripted) -> None:
    scripted.refuse_with(403, "Forbidden", "no")
    with pytest.raises(ClusterForbidden, match="create pods/exec"):
        await enter_secret(client)


async def test_a_connection_that_breaks_while_stdin_is_sent_fails_without_quoting_it(
    client: Cluster, scripted: Scripted
) -> None:
    async def take_one(request: web.Request) -> web.StreamResponse:
        socket = web.WebSocketResponse(protocols=("v4.channel.k8s.io",))
        await socket.prepare(request)
        await socket.receive()
        assert request.transport is not None
        request.transport.abort()
        return socket

    scripted.answer = take_one
    with pytest.raises(ExecFailed, match="the connection") as failed:
        await enter_secret(client, SECRET * 100_000)
    assert "pct_" not in "".join(traceback.format_exception(failed.value))
