"""The overlay `production`, installed by docs/install.md's commands, and runs during which its workers are replaced.

Needs what test_installation.py needs. PostgreSQL asks for a password, and Temporal for a client certificate.
"""

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest
import trustme

from agent_runs.client.attach import Ticket
from agent_runs.client.connection import connect
from agent_runs.client.outcome import outcome_at_close
from agent_runs.client.settings import ClientSettings
from agent_runs.contracts.identity import AttemptKey, RunKey
from agent_runs.contracts.outcome import Outcome
from agent_runs.transcript.store import TranscriptStore
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
from tests.real_cluster.observed_runs import SMALL_RESOURCES, script, steps_in
from tests.runs.real_opencode import playing
from tests.support.tls import server_context, tls_front
from tests.transcript.postgres import Postgres

pytestmark = [pytest.mark.real_cluster, pytest.mark.installs, pytest.mark.timeout(1800)]

AGENTS = "paperclip-agents"
CLAIM = "paperclip-data"
NAMESPACE_FILE = "deploy/overlays/production/namespace.yaml"
NAMESPACES = [f"kubectl create namespace {each}" for each in (WORKER, AGENTS)]
STEPS = 45
"""Of a second each: longer than two workers take to be replaced one after the other."""


@dataclass(frozen=True)
class Production:
    """An installation, the page that made it, and its database."""

    installation: Installation
    page: Page
    postgres: Postgres

    async def start(self) -> tuple[AttemptKey, Ticket]:
        raw = self.installation.wake_up(str(uuid.uuid4()), "script")
        raw["config"]["resources"] = SMALL_RESOURCES
        ticket = await self.installation.start(playing(raw, *script(STEPS, command="true")["steps"]))
        agent = raw["agent"]
        key = RunKey(agent_id=agent["id"], company_id=agent["companyId"], run_id=raw["runId"])
        return AttemptKey(run=key, attempt=1), ticket


def write_certificates(authority: trustme.CA, folder: Path) -> None:
    """Write the files of which the page makes a Secret."""
    client = authority.issue_cert("worker@acme.example")
    authority.cert_pem.write_to_path(str(folder / "ca.crt"))
    client.cert_chain_pems[0].write_to_path(str(folder / "tls.crt"))
    client.private_key_pem.write_to_path(str(folder / "tls.key"))


@pytest.fixture
async def production(tmp_path: Path, images: InstalledImages) -> AsyncIterator[Production]:
    async with AsyncExitStack() as ends:
        host, temporal, environment = await ends.enter_async_context(opened_beside(tmp_path))
        authority = trustme.CA()
        secured = await ends.enter_async_context(tls_front(temporal, server_context(authority, host), host))
        postgres = Postgres(host)
        ends.callback(postgres.remove)
        postgres.start()
        database = await postgres.remote_url("runs", uuid.uuid4().hex)
        before = {
            NAMESPACE_FILE: "\n".join([*NAMESPACES, "kubectl apply -f ../volumes.yaml"]),
            "kubectl apply -k deploy/overlays/mine\nkubectl --namespace paperclip rollout status": own_provider(
                "deploy/overlays/mine/worker", "../../../components"
            ),
        }
        key = tmp_path / "checkout" / "sealing-key.pub.json"
        callers = {"TEMPORAL_ADDRESS": temporal, "AGENT_RUNS_SEALING_KEY_FILE": str(key)}
        variables = {"TEMPORAL": secured, "DATABASE": database, **callers}
        page = Page.copy(tmp_path, environment | variables, before, images)
        write_certificates(authority, page.checkout)
        data = tmp_path / CLAIM
        objects = [part for each in (WORKER, AGENTS) for part in (volume(CLAIM, data, each), data_claim(each))]
        (tmp_path / "volumes.yaml").write_text("---\n".join(objects))
        volumes = [("persistentvolume", volume_name(CLAIM, each)) for each in (WORKER, AGENTS)]
        namespaces = [("namespace", WORKER), ("namespace", AGENTS)]
        await ends.enter_async_context(deleted_at_the_end(*volumes, *namespaces))
        await page.follow(NAMESPACE_FILE, "rollout status")
        public = ("get", "configmap", "agent-runs-public-key", "--output", r"jsonpath={.data.sealing-key\.json}")
        key.write_text(await kubectl(*public))
        caller = ClientSettings.read(callers)
        yield Production(Installation(await connect(caller), data, key, caller), page, postgres)


async def until_writing(store: TranscriptStore, key: AttemptKey, end: asyncio.Task[Outcome]) -> None:
    """Wait until output of this attempt is stored, which must be before the end of its run."""
    notifier = store.notifier(key)
    while not await store.read(key):
        assert not end.done(), end.result()
        await notifier.wait_for_change(notifier.changes, timedelta(milliseconds=200))


async def steps_of(store: TranscriptStore, key: AttemptKey) -> list[int]:
    """The steps whose ends are stored, in the order of the transcript."""
    return steps_in([line.data for line in await store.read(key) if line.stream == "stdout"])


async def test_runs_lose_no_line_while_both_workers_are_replaced_and_the_database_is_killed(
    production: Production,
) -> None:
    temporal = production.installation.temporal
    store = await TranscriptStore.open(production.postgres.url("runs"))
    runs = [await production.start() for _ in range(3)]
    ends = [asyncio.create_task(outcome_at_close(ticket.handle(temporal))) for _, ticket in runs]
    try:
        for (key, _), end in zip(runs, ends, strict=True):
            await until_writing(store, key, end)
        await production.page.follow("rollout restart")
        production.postgres.stop("immediate")
        production.postgres.start()
        for (key, _), end in zip(runs, ends, strict=True):
            outcome = await end
            assert (outcome.error_code, len(outcome.attempts)) == (None, 1), outcome
            assert outcome.receipt is not None
            assert (outcome.receipt.state, outcome.receipt.gaps) == ("verified", ())
            assert await steps_of(store, key) == list(range(1, STEPS + 1))
    finally:
        for end in ends:
            end.cancel()
        await store.close()


async def test_an_installation_with_an_agent_at_work_is_uninstalled_and_leaves_its_data_and_nothing_else(
    production: Production,
) -> None:
    installation = production.installation
    _, ticket = await production.start()
    (installation.data / "kept").write_text("of Paperclip's")
    await until_agent_runs(AGENTS)
    await production.page.follow("agent-runs list --open", "kubectl delete -k")
    assert (await outcome_at_close(ticket.handle(installation.temporal))).error_code == "cancelled"
    for namespace in (WORKER, AGENTS):
        assert await left_in(namespace) == {f"persistentvolumeclaim/{CLAIM}"}
    assert (installation.data / "kept").read_text() == "of Paperclip's"
