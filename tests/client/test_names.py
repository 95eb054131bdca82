"""People find a run in Temporal and in lists by the names of its agent and its task, which are harmless texts."""

import json
import uuid
from pathlib import Path
from typing import Any, Final

from temporalio.api.common.v1 import Memo, Payload
from temporalio.client import Client, WorkflowExecutionDescription

from agent_runs.client.attach import attach
from agent_runs.client.names import RunNames
from agent_runs.client.runs import RunSummary, summary_of
from agent_runs.client.settings import ClientSettings
from agent_runs.client.wake import build_wake
from tests.paperclip.contexts import SEALER, minimal
from tests.support.cases import case

CASES: Final = json.loads((Path(__file__).parents[1] / "fixtures" / "run-names.json").read_text())
NAMES: Final = ("agentName", "taskName")


async def described(client: Client, settings: ClientSettings, named: dict[str, Any]) -> WorkflowExecutionDescription:
    """What Temporal has of a run that was started with these names."""
    context = {**named["context"], "taskId": "task-1"}
    agent = {"id": f"agent-{uuid.uuid4()}", "companyId": "acme", "name": named["agent"]}
    raw = minimal() | {"runId": str(uuid.uuid4()), "agent": agent, "context": context}
    ticket = await attach(client, settings, build_wake(raw, SEALER))
    return await ticket.handle(client).describe()


def with_id(summary: str, run: RunSummary) -> str:
    return summary.replace("agent-1", run.key.agent_id)


async def test_memo_and_summary_of_a_run_have_its_names_in_one_line_of_visible_text(
    temporal: Client, queue: str
) -> None:
    for named in CASES:
        with case(named["what"]):
            found = await described(temporal, ClientSettings(task_queue=queue), named)
            run = summary_of(found)
            memo = await found.memo()
            assert {key: memo[key] for key in NAMES if key in memo} == named["memo"]
            assert await found.static_summary() == with_id(named["summary"], run)
            assert (run.names.agent, run.names.task) == tuple(named["memo"].get(key, "") for key in NAMES)


async def test_a_setting_leaves_the_names_out(temporal: Client, queue: str) -> None:
    settings = ClientSettings.read({"AGENT_RUNS_NAMES": "false", "AGENT_RUNS_TASK_QUEUE": queue})
    found = await described(temporal, settings, CASES[0])
    run = summary_of(found)
    assert not set(NAMES) & set(await found.memo())
    assert await found.static_summary() == f"`{run.key.agent_id} · task-1`"
    assert run.names.title == ""


def test_a_memo_of_anybody_gives_harmless_names() -> None:
    values = [b'"A\\u202eda\\n"', b'["x"]', b"\xff", b""]
    agent, *others = (RunNames.of_memo(Memo(fields={"agentName": Payload(data=value)})).agent for value in values)
    assert (agent, others) == ("Ada", ["", "", ""])
