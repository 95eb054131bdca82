"""What docs/install.md installs, by its own commands; then runs of the real OpenCode.

Needs KUBECONFIG, the cluster's own tool, buildah and mmdebstrap. Temporal and the model run beside the cluster.
"""

import json
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from agent_runs.client.connection import connect
from agent_runs.client.outcome import outcome_at_close
from agent_runs.client.settings import ClientSettings
from agent_runs.contracts.request import SessionParams
from tests.real_cluster.installation import (
    WORKER,
    Installation,
    Page,
    data_claim,
    deleted_at_the_end,
    kubectl,
    left_in,
    opened_beside,
    own_provider,
    until_agent_runs,
    volume,
    volume_name,
)
from tests.real_cluster.installed_images import InstalledImages
from tests.real_cluster.observed_runs import script
from tests.runs.real_opencode import playing

pytestmark = [pytest.mark.real_cluster, pytest.mark.installs, pytest.mark.timeout(1800)]

CLAIMS = ("paperclip-data", "agent-runs-transcripts")


@pytest.fixture
async def trial(tmp_path: Path, images: InstalledImages) -> AsyncIterator[tuple[Installation, Page]]:
    """The overlay `trial`, installed by the page's commands up to the first run."""
    agent = str(uuid.uuid4())
    async with AsyncExitStack() as ends:
        _, _, environment = await ends.enter_async_context(opened_beside(tmp_path))
        before = {
            "get persistentvolumeclaim": "kubectl apply -f ../volumes.yaml",
            "kubectl apply -k deploy/overlays/mine\nkubectl --namespace paperclip rollout status": own_provider(
                "deploy/overlays/mine", "../../components"
            ),
        }
        page = Page.copy(tmp_path, environment | {"CONTEXT": str(tmp_path / "context.json")}, before, images)
        data = tmp_path / CLAIMS[0]
        volumes = [volume(claim, tmp_path / claim) for claim in CLAIMS]
        (tmp_path / "volumes.yaml").write_text("---\n".join([*volumes, data_claim()]))
        await ends.enter_async_context(
            deleted_at_the_end(*(("persistentvolume", volume_name(claim)) for claim in CLAIMS), ("namespace", WORKER))
        )
        key = page.checkout / "sealing-key.pub.json"
        caller = ClientSettings.read(
            {"TEMPORAL_ADDRESS": environment["TEMPORAL"], "AGENT_RUNS_SEALING_KEY_FILE": str(key)}
        )
        installation = Installation(await connect(caller), data, key, caller)
        (tmp_path / "context.json").write_text(json.dumps(installation.wake_up(agent)))
        await page.follow("kubectl get namespace", "agent-runs start")
        yield installation, page


def as_paperclip_stores(params: SessionParams) -> dict[str, Any]:
    return params.model_dump(mode="json", by_alias=True, exclude_none=True)


async def test_an_installed_worker_is_the_pushed_one_and_runs_an_agent_and_resumes_its_session(
    trial: tuple[Installation, Page], images: InstalledImages
) -> None:
    installation, _ = trial
    selector = ("--selector", "app.kubernetes.io/name=agent-runs-worker")
    [pod] = json.loads(await kubectl("get", "pods", *selector, "--output", "json"))["items"]
    [container] = pod["status"]["containerStatuses"]
    [pushed] = [digest for name, digest in images.digests.items() if "agent-runs-worker" in name]
    assert container["imageID"].endswith(f"@{pushed}")
    agent = str(uuid.uuid4())
    first = await installation.outcome(installation.wake_up(agent))
    assert (first.error_code, first.receipt and first.receipt.state) == (None, "verified")
    assert first.session_params is not None
    again = installation.wake_up(agent, sessionParams=as_paperclip_stores(first.session_params))
    second = await installation.outcome(again)
    assert (second.error_code, second.receipt and second.receipt.state) == (None, "verified")
    assert second.session_params == first.session_params


async def test_an_installation_is_upgraded_and_gets_new_keys_mid_run_and_is_backed_up_restored_and_uninstalled(
    trial: tuple[Installation, Page],
) -> None:
    installation, page = trial
    raw = installation.wake_up(str(uuid.uuid4()), "script")
    ticket = await installation.start(playing(raw, *script(45, command="true")["steps"]))
    await page.follow("rollout restart")
    await page.follow("old-keys.yaml")
    outcome = await outcome_at_close(ticket.handle(installation.temporal))
    assert (outcome.error_code, len(outcome.attempts)) == (None, 1)
    assert outcome.receipt is not None
    assert (outcome.receipt.state, outcome.receipt.gaps) == ("verified", ())
    assert (await installation.outcome(installation.wake_up(str(uuid.uuid4())))).error_code is None
    await page.follow("import sqlite3", "backup.db transcripts.db")
    assert (await installation.outcome(installation.wake_up(str(uuid.uuid4())))).error_code is None
    (installation.data / "kept").write_text("of Paperclip's")
    raw = installation.wake_up(str(uuid.uuid4()), "script")
    at_work = await installation.start(playing(raw, *script(600, command="true")["steps"]))
    await until_agent_runs(WORKER)
    await page.follow("agent-runs list --open", "kubectl delete -k")
    assert (await outcome_at_close(at_work.handle(installation.temporal))).error_code == "cancelled"
    assert await left_in(WORKER) == {f"persistentvolumeclaim/{claim}" for claim in CLAIMS}
    assert (installation.data / "kept").read_text() == "of Paperclip's"
    assert (installation.data.parent / CLAIMS[1] / "transcripts.db").stat().st_size > 0
