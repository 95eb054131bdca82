"""The rotation of a running agent's token, seen from the cluster."""

import base64
import json
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from temporalio.testing import ActivityEnvironment

from activities.rotate_token import RotateTokenActivity
from agent_runs.contracts.errors import ClusterForbidden, SealedFieldUnreadable
from agent_runs.contracts.identity import AttemptKey, RunKey, workflow_id
from agent_runs.contracts.messages import JobRef, JoinedRun, RotateToken
from agent_runs.contracts.start import Binding, SealedJoin
from agent_runs.job.secrets import CONFIG_KEY, run_secret, token_files
from agent_runs.kube.client import Cluster
from agent_runs.kube.failures import ExecFailed
from agent_runs.kube.objects import Pod, decode
from agent_runs.kube.ownership import TOKEN_RUN_ID
from agent_runs.paperclip.sealing import Opener, Sealer, SealingKey
from dev_stack.cluster import EmbeddedCluster
from dev_stack.cluster.kinds import SECRETS

KEY = SealingKey.generate()
SEALER = Sealer(KEY.public)


@pytest.fixture(scope="module")
async def embedded(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EmbeddedCluster]:
    async with EmbeddedCluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture(scope="module")
async def kubernetes(embedded: EmbeddedCluster) -> AsyncIterator[Cluster]:
    async with await Cluster.connect(str(embedded.kubeconfig_path)) as cluster:
        yield cluster


def rotation_input(
    tools_token: str | None = None,
    auth_token: str | None = "token-2",  # noqa: S107 - of a test
    **sealed_for: str | None,
) -> RotateToken:
    run = RunKey(agent_id=str(uuid.uuid4()), company_id="co", run_id="run-1")
    use = {"workflow_id": workflow_id(run.agent_id), "company_id": "co", "run_id": "run-2", "task": "task"}
    binding = Binding.model_validate({"purpose": "join", **use, **sealed_for})
    sealed = SEALER.seal(SealedJoin(binding=binding, auth_token=auth_token, tools_token=tools_token))
    attempt = AttemptKey(run=run)
    return RotateToken(
        attempt=attempt,
        job=JobRef(namespace="default", name=attempt.job_name, uid="job-uid", has_api_proxy=True),
        joined=JoinedRun(run_id="run-2", task="task", sealed=sealed),
    )


class StartingProxy(Cluster):
    """Its pod runs, and commands in its proxy fail as `failures` say before one prints the new run id."""

    failures: list[Exception]
    annotations: list[str]

    async def pods_of(self, job: JobRef) -> list[Pod]:
        body = {"metadata": {"name": "pod", "namespace": job.namespace, "uid": "uid"}, "spec": {"nodeName": "node"}}
        return [decode(json.dumps(body).encode(), Pod)]

    async def annotate_pod(self, *about: Any) -> bool:
        self.annotations += about[-1].values()
        return True

    @asynccontextmanager
    async def exec_output(self, *_: object, **__: object) -> AsyncIterator[AsyncIterator[bytes]]:
        if self.failures:
            raise self.failures.pop(0)

        async def printed() -> AsyncIterator[bytes]:
            yield b"run-2\n"

        yield printed()


def secret_with(input: RotateToken, tokens: dict[str, bytes]) -> dict[str, Any]:
    return run_secret(input.attempt, "default", {}, "{}", tokens)


async def rotate_with(embedded: EmbeddedCluster, *failures: Exception) -> tuple[bool, list[str]]:
    async with await StartingProxy.connect(str(embedded.kubeconfig_path)) as cluster:
        cluster.failures, cluster.annotations = list(failures), []
        input = rotation_input()
        await cluster.create_secret(secret_with(input, token_files("run-1", "token-1", None)))
        return await rotate(cluster, input), cluster.annotations


async def rotate(kubernetes: Cluster, input: RotateToken) -> bool:
    seen: bool = await ActivityEnvironment().run(RotateTokenActivity(kubernetes, Opener([KEY])).rotate_token, input)
    return seen


def content(embedded: EmbeddedCluster, input: RotateToken) -> dict[str, str]:
    body = embedded.store.find(SECRETS, "default", input.attempt.run_secret_name)
    assert body is not None
    return {key: base64.b64decode(text).decode() for key, text in body["data"].items() if key != CONFIG_KEY}


async def test_the_secret_gets_the_later_runs_tokens_also_when_repeated(
    embedded: EmbeddedCluster, kubernetes: Cluster
) -> None:
    input = rotation_input("tools-2")
    await kubernetes.create_secret(secret_with(input, token_files("run-1", "token-1", "tools-1")))
    for _ in range(2):
        assert await rotate(kubernetes, input)
        assert content(embedded, input) == {"token": "token-2", "run-id": "run-2", "tools-token": "tools-2"}


async def test_a_rotation_without_a_tools_token_keeps_the_old_one(
    embedded: EmbeddedCluster, kubernetes: Cluster
) -> None:
    input = rotation_input()
    await kubernetes.create_secret(secret_with(input, token_files("run-1", "token-1", "tools-1")))
    assert await rotate(kubernetes, input)
    assert content(embedded, input) == {"token": "token-2", "run-id": "run-2", "tools-token": "tools-1"}


async def test_a_deleted_job_needs_no_token(kubernetes: Cluster) -> None:
    assert await rotate(kubernetes, rotation_input())


@pytest.mark.parametrize(
    "input",
    [
        rotation_input(run_id="run-3"),
        rotation_input(workflow_id="agent-run:another"),
        rotation_input(company_id="another"),
        rotation_input(task="another"),
        rotation_input(purpose="run"),
        rotation_input(auth_token=None),
    ],
    ids=["another run", "another agent", "another company", "another task", "a start", "no token"],
)
async def test_what_was_not_sealed_for_this_run_changes_nothing(
    embedded: EmbeddedCluster, kubernetes: Cluster, input: RotateToken
) -> None:
    await kubernetes.create_secret(secret_with(input, token_files("run-1", "token-1", None)))
    with pytest.raises(SealedFieldUnreadable) as caught:
        await rotate(kubernetes, input)
    assert "token-2" not in str(caught.value)
    assert content(embedded, input)["token"] == "token-1"


def test_the_input_shows_no_token() -> None:
    input = rotation_input()
    assert "token-2" not in repr(input)
    assert input.joined.sealed not in repr(input)


async def test_a_command_that_fails_in_the_pod_is_repeated(embedded: EmbeddedCluster) -> None:
    seen, annotations = await rotate_with(embedded, ExecFailed("the connection broke"), ExecFailed("no python3 yet"))
    assert seen
    assert annotations == ["run-2/0", "run-2/1", "run-2/2"]


async def test_a_worker_that_may_run_no_commands_does_not_know_whether_the_token_arrived(
    embedded: EmbeddedCluster,
) -> None:
    seen, annotations = await rotate_with(embedded, ClusterForbidden("cannot create pods/exec: 403"))
    assert not seen
    assert annotations == ["run-2/0"]


async def test_a_deleted_pod_is_not_annotated(kubernetes: Cluster) -> None:
    assert not await kubernetes.annotate_pod("default", "nobody", "uid", {TOKEN_RUN_ID: "x"})
