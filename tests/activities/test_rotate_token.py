"""The exchange of a running agent's token, seen from the cluster."""

import base64
import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest
from temporalio.testing import ActivityEnvironment

from activities.rotate_token import TokenRotation
from cluster.client import KubernetesCluster
from cluster.ownership import SPEAKS_FOR
from cluster.secrets import token_files, token_secret
from contracts.errors import SealedFieldUnreadable
from contracts.identity import AttemptKey, RunKey
from contracts.messages import JobRef, JoinedRun, RotateToken
from contracts.request import Secrets
from local.cluster import EmbeddedCluster
from local.cluster.kinds import SECRETS
from paperclip.sealing import Opener, Sealer, SealingKey

KEY = SealingKey.generate()
SEALER = Sealer(KEY.public)


@pytest.fixture(scope="module")
async def embedded(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EmbeddedCluster]:
    async with EmbeddedCluster(tmp_path_factory.mktemp("cluster")) as made:
        yield made


@pytest.fixture(scope="module")
async def kubernetes(embedded: EmbeddedCluster) -> AsyncIterator[KubernetesCluster]:
    async with await KubernetesCluster.connect(str(embedded.kubeconfig_path)) as made:
        yield made


def order(run_id: str = "run-2", sealed_for: str | None = None, **secrets: Any) -> RotateToken:
    attempt = AttemptKey(run=RunKey(agent_id=str(uuid.uuid4()), company_id="co", run_id="run-1"))
    given = {"auth_token": "token-2", **secrets}
    sealed = SEALER.seal(Secrets(run_id=sealed_for or run_id, **given))
    return RotateToken(
        attempt=attempt,
        job=JobRef(namespace="default", name=attempt.job_name, uid="job-uid", rotates=True),
        joined=JoinedRun(run_id=run_id, sealed_secrets=sealed),
    )


async def rotated(kubernetes: KubernetesCluster, asked: RotateToken) -> bool:
    seen: bool = await ActivityEnvironment().run(TokenRotation(kubernetes, Opener([KEY])).rotate_token, asked)
    return seen


def content(embedded: EmbeddedCluster, asked: RotateToken) -> dict[str, str]:
    body = embedded.store.find(SECRETS, "default", asked.attempt.token_secret_name)
    assert body is not None
    return {key: base64.b64decode(text).decode() for key, text in body["data"].items()}


async def test_the_secret_gets_the_later_runs_tokens_however_often_it_is_asked(
    embedded: EmbeddedCluster, kubernetes: KubernetesCluster
) -> None:
    asked = order(paperclip_env={"PAPERCLIP_RUNTIME_TOOLS_TOKEN": "tools-2", "OTHER": "x"})
    await kubernetes.create_secret(token_secret(asked.attempt, "default", token_files("run-1", "token-1", "tools-1")))
    for _ in range(2):
        assert await rotated(kubernetes, asked)
        assert content(embedded, asked) == {"token": "token-2", "run-id": "run-2", "tools-token": "tools-2"}


async def test_a_tools_token_that_does_not_come_along_stays(
    embedded: EmbeddedCluster, kubernetes: KubernetesCluster
) -> None:
    asked = order()
    await kubernetes.create_secret(token_secret(asked.attempt, "default", token_files("run-1", "token-1", "tools-1")))
    assert await rotated(kubernetes, asked)
    assert content(embedded, asked) == {"token": "token-2", "run-id": "run-2", "tools-token": "tools-1"}


async def test_a_job_that_is_gone_needs_no_token(kubernetes: KubernetesCluster) -> None:
    assert await rotated(kubernetes, order())


@pytest.mark.parametrize("asked", [order(sealed_for="run-3"), order(auth_token=None)], ids=["another run", "no token"])
async def test_what_was_not_sealed_for_this_run_changes_nothing(
    embedded: EmbeddedCluster, kubernetes: KubernetesCluster, asked: RotateToken
) -> None:
    await kubernetes.create_secret(token_secret(asked.attempt, "default", token_files("run-1", "token-1", None)))
    with pytest.raises(SealedFieldUnreadable) as caught:
        await rotated(kubernetes, asked)
    assert "token-2" not in str(caught.value)
    assert content(embedded, asked)["token"] == "token-1"


def test_an_order_shows_no_token() -> None:
    asked = order()
    assert "token-2" not in repr(asked)
    assert asked.joined.sealed_secrets not in repr(asked)


async def test_a_pod_that_is_gone_is_not_annotated(kubernetes: KubernetesCluster) -> None:
    assert not await kubernetes.annotate_pod("default", "nobody", "uid", {SPEAKS_FOR: "x"})
