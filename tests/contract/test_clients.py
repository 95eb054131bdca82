"""The programs people use: discovery, the official Python clients and kubectl."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from kubernetes import client as sync
from kubernetes.aio import client as aio
from kubernetes.aio.client import Configuration
from kubernetes.config import load_kube_config as _load_kube_config

from tests.contract.api import IMAGE, Api, job, state

load_kube_config: Any = _load_kube_config  # it has no annotations


async def test_discovery_names_jobs_and_pods(api: Api) -> None:
    version = await api.call("GET", "/version")
    assert version.body["major"] == "1"
    assert "buildDate" in version.body
    core = (await api.call("GET", "/api/v1")).body["resources"]
    assert {"pods", "pods/log", "secrets", "events"} <= {one["name"] for one in core}
    batch = (await api.call("GET", "/apis/batch/v1")).body["resources"]
    assert "jobs" in {one["name"] for one in batch}
    groups = (await api.call("GET", "/apis")).body["groups"]
    assert "batch" in [one["name"] for one in groups]


async def test_what_is_not_served_is_404(api: Api) -> None:
    answer = await api.call("GET", "/apis/example.com/v1/things")
    assert answer.code == 404


async def test_requests_without_credentials_are_refused(api: Api, access: Configuration) -> None:
    async with (
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=False)) as stranger,
        stranger.get(f"{access.host}/api/v1/pods", headers={"Authorization": "Bearer wrong"}) as reply,
    ):
        assert reply.status == 401
        assert (await reply.json())["reason"] == "Unauthorized"
    assert (await api.get("pods")).code == 200


async def test_a_permission_can_be_checked(api: Api) -> None:
    attributes = {"namespace": api.namespace, "verb": "create", "group": "batch", "resource": "jobs"}
    about = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview"}
    body = {**about, "spec": {"resourceAttributes": attributes}}
    answer = await api.call("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body)
    assert (answer.code, answer.body["status"]["allowed"]) == (201, True)


async def test_the_async_client_understands_every_answer(api: Api, access: Configuration, name: str) -> None:
    async with aio.ApiClient(access) as connection:
        core, batch = aio.CoreV1Api(connection), aio.BatchV1Api(connection)
        body = aio.V1Job.from_dict(job(name, "echo hello"))
        assert body is not None
        created = (await batch.create_namespaced_job(api.namespace, body)).to_dict()
        assert created["metadata"]["name"] == name
        await api.until_finished(name)
        assert (await batch.read_namespaced_job(name, api.namespace)).to_dict()["status"]["succeeded"] == 1
        (pod,) = (await core.list_namespaced_pod(api.namespace, label_selector=f"job-name={name}")).items
        pod_body = pod.to_dict()
        assert pod_body["status"]["phase"] == "Succeeded"
        assert (await core.read_namespaced_pod_log(pod_body["metadata"]["name"], api.namespace)) == "hello\n"
        events = await core.list_namespaced_event(api.namespace)
        assert any(event.reason == "SuccessfulCreate" for event in events.items)
        assert (await aio.VersionApi(connection).get_code()).major == "1"
        assert (await core.list_node()).items
        await batch.delete_namespaced_job(name, api.namespace, propagation_policy="Background")
        await api.until_deleted(f"jobs/{name}")


async def test_the_sync_client_understands_every_answer(api: Api, kubeconfig: Path, name: str) -> None:
    def use() -> str:
        configuration = sync.Configuration()
        load_kube_config(str(kubeconfig), client_configuration=configuration)
        with sync.ApiClient(configuration) as connection:
            core = sync.CoreV1Api(connection)
            body = sync.V1Secret(metadata=sync.V1ObjectMeta(name=name), string_data={"a": "b"})
            core.create_namespaced_secret(api.namespace, body)
            (found,) = core.list_namespaced_secret(api.namespace, field_selector=f"metadata.name={name}").items
            core.delete_namespaced_secret(name, api.namespace)
            return str(found.to_dict()["metadata"]["name"])

    assert await asyncio.to_thread(use) == name


@pytest.fixture
def kubectl(kubeconfig: Path, api: Api) -> list[str]:
    program = Path(sys.executable).parent / "kubectl"
    return [str(program), f"--kubeconfig={kubeconfig}", f"--namespace={api.namespace}"]


async def run(words: list[str], given: str = "") -> str:
    process = await asyncio.create_subprocess_exec(
        *words, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, err = await process.communicate(given.encode())
    assert process.returncode == 0, err.decode()
    return out.decode()


JOB = """
apiVersion: batch/v1
kind: Job
metadata: {name: NAME}
spec:
  backoffLimit: 0
  template:
    spec:
      restartPolicy: Never
      containers:
      - {name: main, image: "IMAGE", command: [sh, -c, "echo one; sleep 0.5; echo two"]}
"""


async def until_started(api: Api, job_name: str) -> str:
    """The name of the Job's pod, once it has a log."""
    return str(
        (await api.pod_of(job_name, lambda pod: bool(state(pod)) and "waiting" not in state(pod)))["metadata"]["name"]
    )


async def test_kubectl_creates_follows_gets_and_deletes(api: Api, kubectl: list[str], name: str) -> None:
    manifest = JOB.replace("NAME", name).replace("IMAGE", IMAGE)
    assert await run([*kubectl, "create", "--validate=false", "-f", "-"], manifest) == f"job.batch/{name} created\n"
    assert await run([*kubectl, "logs", "-f", await until_started(api, name)]) == "one\ntwo\n"
    assert json.loads(await run([*kubectl, "get", "job", name, "-o", "json"]))["metadata"]["name"] == name
    assert name in await run([*kubectl, "get", "pods", "-l", f"job-name={name}"])
    assert (await run([*kubectl, "delete", "job", name])).startswith(f'job.batch "{name}" deleted')
    await api.until("pods", lambda body: not body["items"], labelSelector=f"job-name={name}")
