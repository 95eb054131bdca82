"""What docs/install.md installs, by its own commands; then runs of the real OpenCode.

Needs KUBECONFIG, the cluster's own tool, buildah and mmdebstrap. Temporal and the model run beside the cluster.
"""

import json
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import pytest

from agent_runs.client.connection import connect
from agent_runs.client.outcome import outcome_at_close
from agent_runs.client.settings import ClientSettings
from dev_stack.demo import later_context
from tests.real_cluster.installation import (
    WORKER,
    Installation,
    Outside,
    Page,
    deleted_at_the_end,
    endpoint,
    files_in,
    kubectl,
    left_in,
    opened_beside,
    own_provider,
    reached_at,
    until_agent_runs,
    volume,
    volume_name,
)
from tests.real_cluster.installed_images import InstalledImages
from tests.real_cluster.observed_runs import SMALL_RESOURCES, script
from tests.runs.real_opencode import playing
from tests.support.relay import open_relay

pytestmark = [pytest.mark.real_cluster, pytest.mark.installs, pytest.mark.timeout(1800)]

CLAIMS = ("agent-runs-workspaces", "agent-runs-transcripts")
OVERLAY = "deploy/overlays/mine"
FILES = {"changed": b"before", "gone": b"soon", "kept": b"as it is"}
RETURNED = {"changed": b"before, after\n", "made": b"by the agent\n", "key": b"given\n", "kept": b"as it is"}


@pytest.fixture
async def trial(tmp_path: Path, images: InstalledImages) -> AsyncIterator[tuple[Installation, Page]]:
    """The overlay `trial`, installed by the page's commands up to the first run."""
    agent = str(uuid.uuid4())
    async with AsyncExitStack() as ends:
        host, _, environment = await ends.enter_async_context(opened_beside(tmp_path))
        for_pods = await ends.enter_async_context(open_relay(partial(endpoint, "workspaces"), host))
        before = {
            "sqlite/transcripts.yaml": "kubectl apply -f ../volumes.yaml",
            f"kubectl apply -k {OVERLAY}\nkubectl --namespace paperclip rollout status": (
                own_provider(OVERLAY, "../../components") + reached_at(for_pods.address, OVERLAY)
            ),
        }
        page = Page.copy(tmp_path, environment | {"CONTEXT": str(tmp_path / "context.json")}, before, images)
        data = tmp_path / CLAIMS[0]
        volumes = [volume(claim, tmp_path / claim) for claim in CLAIMS]
        (tmp_path / "volumes.yaml").write_text("---\n".join(volumes))
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


async def test_an_installed_worker_is_the_pushed_one_and_carries_a_folder_and_the_session_without_a_shared_volume(
    trial: tuple[Installation, Page], images: InstalledImages, tmp_path: Path
) -> None:
    installation, page = trial
    selector = ("--selector", "app.kubernetes.io/name=agent-runs-worker")
    [pod] = json.loads(await kubectl("get", "pods", *selector, "--output", "json"))["items"]
    [container] = pod["status"]["containerStatuses"]
    [pushed] = [digest for name, digest in images.digests.items() if "agent-runs-worker" in name]
    assert container["imageID"].endswith(f"@{pushed}")
    raw = installation.wake_up(str(uuid.uuid4()), "script")
    raw["config"] |= {"workspace": "carried", "resources": SMALL_RESOURCES}
    raw["context"]["paperclipWorkspace"] = {"cwd": f"/home/ada/projects/{uuid.uuid4()}"}
    work = "echo , after >> changed; rm gone; echo by the agent > made; echo ${ANTHROPIC_API_KEY:+given} > key"
    raw = playing(raw, *script(1, command=work)["steps"])
    async with Outside.opened(page, installation.key) as outside:
        assert (await outside.tried_pod(raw["config"]))["workspaces_reached"]["level"] == "info"
        await outside.send(raw, FILES)
        first = await installation.outcome(raw)
        assert (first.error_code, first.receipt and first.receipt.state) == (None, "verified"), first
        assert await outside.returned(raw, tmp_path / "returned") == RETURNED
        again = later_context(raw, first.session_params)
        await outside.send(again, RETURNED)
        second = await installation.outcome(again)
        assert (second.error_code, second.receipt and second.receipt.state) == (None, "verified"), second
    assert first.session_params is not None
    assert second.session_params is not None
    assert second.session_params.session_id == first.session_params.session_id
    stored = files_in(installation.data)
    assert len(stored) > len(FILES)
    assert not any(b"by the agent" in content for content in stored.values())


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
    (installation.data / "kept").write_text("of an agent")
    raw = installation.wake_up(str(uuid.uuid4()), "script")
    at_work = await installation.start(playing(raw, *script(600, command="true")["steps"]))
    await until_agent_runs(WORKER)
    await page.follow("agent-runs list --open", "kubectl delete -k")
    assert (await outcome_at_close(at_work.handle(installation.temporal))).error_code == "cancelled"
    assert await left_in(WORKER) == {f"persistentvolumeclaim/{claim}" for claim in CLAIMS}
    assert (installation.data / "kept").read_text() == "of an agent"
    assert (installation.data.parent / CLAIMS[1] / "transcripts.db").stat().st_size > 0
