"""What is secret reaches the agent and nothing that anybody else may read."""

import base64
import json
import re

from temporalio.client import WorkflowHistory

from contracts.identity import workflow_id
from tests.faults.facts import forms, stored_bytes
from tests.paperclip_server.agents import Plan
from tests.paperclip_server.stage import Act, story
from tests.paperclip_server.system import STEADY, System

JWT = re.compile(rb"eyJ[\w-]+\.(eyJ[\w-]+)\.[\w-]+")
CANARIES = {
    "config.env": "canary-env-5b1e0f73",
    "MCP header": "canary-mcp-91c4d6aa",
    "secret binding": "canary-bound-7d20e3f8",
}


@story(Act.TOGETHER)
async def test_no_secret_is_in_histories_transcripts_logs_or_specs(whole: System) -> None:
    office = await whole.office(STEADY)
    secret = await office.api.post(
        f"/companies/{office.company}/secrets", {"name": "CANARY_BOUND", "value": CANARIES["secret binding"]}
    )
    header = {"Authorization": f"Bearer {CANARIES['MCP header']}"}
    ada = await office.scripted(
        "Canary",
        Plan(lines=3, keeps=["CANARY_ENV", "CANARY_BOUND", "PAPERCLIP_API_KEY", "OPENCODE_CONFIG"]),
        env={
            "CANARY_ENV": {"type": "plain", "value": CANARIES["config.env"]},
            "CANARY_BOUND": {"type": "secret_ref", "secretId": secret["id"], "version": "latest"},
        },
        mcpServers={"tracker": {"type": "remote", "url": "http://127.0.0.1:9/", "headers": header}},
    )
    issue = await office.issue(ada.agent, "Keep it")
    run = await office.api.ended(await office.run(issue))
    assert run["status"] == "succeeded", run["error"]
    kept = ada.program.kept()
    assert kept["CANARY_ENV"] == CANARIES["config.env"]
    assert kept["CANARY_BOUND"] == CANARIES["secret binding"]
    assert "canary-mcp" in json.dumps(kept["files"]), "the MCP header never reached OpenCode's configuration"
    for place, content in (await places(whole, run["id"], ada.agent)).items():
        found = [name for name, value in CANARIES.items() if any(form in content for form in forms(value))]
        assert found == [], f"{found} in {place}"
        assert not run_tokens(content), f"a run's token in {place}"


def run_tokens(content: bytes) -> list[object]:
    """Tokens of Paperclip's for a run. Those of links to a transcript are meant to be read."""
    claims = (decoded(token) for token in JWT.findall(content))
    return [claim for claim in claims if isinstance(claim, dict) and "company_id" in claim]


def decoded(part: bytes) -> object:
    try:
        return json.loads(base64.urlsafe_b64decode(part + b"=" * (-len(part) % 4)))
    except ValueError:
        return None


async def places(whole: System, run: str, agent: str) -> dict[str, bytes]:
    """Everything that somebody may read: name and content."""
    office = await whole.office(STEADY)
    history = await history_of(whole, agent)
    return {
        "the history, decoded": b"".join(event.SerializeToString() for event in history.events),
        "the history, exported": history.to_json().encode(),
        "the transcript store": stored_bytes(whole.stack.plan.state / "transcripts.db"),
        "the worker's log": (whole.stack.plan.state / "log" / "worker.log").read_bytes(),
        "Jobs and pods": whole.witness.described(),
        "the run's log": json.dumps([entry.chunk for entry in await office.api.log(run)]).encode(),
        "the run's events": json.dumps(await office.api.events(run)).encode(),
        "the run": json.dumps(await office.api.run(run)).encode(),
        "Paperclip's own log": office.server.log.read_bytes(),
    }


async def history_of(whole: System, agent: str) -> WorkflowHistory:
    return await whole.stack.client.get_workflow_handle(workflow_id(agent)).fetch_history()
