"""Secrets reach the agent, and nothing that anybody else may read."""

import base64
import json
import re

from temporalio.client import WorkflowHistory

from agent_runs.contracts.identity import workflow_id
from tests.faults.checks import encodings, stored_bytes
from tests.paperclip_server.environment import STABLE, Environment
from tests.paperclip_server.scenarios import Schedule, scenario
from tests.paperclip_server.scripted_agents import Plan

JWT = re.compile(rb"eyJ[\w-]+\.(eyJ[\w-]+)\.[\w-]+")
CANARIES = {
    "config.env": "canary-env-5b1e0f73",
    "MCP header": "canary-mcp-91c4d6aa",
    "secret binding": "canary-bound-7d20e3f8",
}


@scenario(Schedule.CONCURRENT)
async def test_no_secret_is_in_histories_transcripts_logs_or_specs(env: Environment) -> None:
    instance = await env.instance(STABLE)
    secret = await instance.api.post(
        f"/companies/{instance.company}/secrets", {"name": "CANARY_BOUND", "value": CANARIES["secret binding"]}
    )
    header = {"Authorization": f"Bearer {CANARIES['MCP header']}"}
    ada = await instance.create_scripted_agent(
        "Canary",
        Plan(lines=3, records=["CANARY_ENV", "CANARY_BOUND", "PAPERCLIP_API_KEY", "OPENCODE_CONFIG"]),
        env={
            "CANARY_ENV": {"type": "plain", "value": CANARIES["config.env"]},
            "CANARY_BOUND": {"type": "secret_ref", "secretId": secret["id"], "version": "latest"},
        },
        mcpServers={"tracker": {"type": "remote", "url": "http://127.0.0.1:9/", "headers": header}},
    )
    issue = await instance.issue(ada.agent, "Keep it")
    run = await instance.api.wait_ended(await instance.run(issue))
    assert run["status"] == "succeeded", run["error"]
    recorded = ada.program.recorded()
    assert recorded["CANARY_ENV"] == CANARIES["config.env"]
    assert recorded["CANARY_BOUND"] == CANARIES["secret binding"]
    assert "canary-mcp" in json.dumps(recorded["files"]), "the MCP header never reached OpenCode's configuration"
    for place, content in (await places(env, run["id"], ada.agent)).items():
        found = [name for name, value in CANARIES.items() if any(form in content for form in encodings(value))]
        assert found == [], f"{found} in {place}"
        assert not run_tokens(content), f"a run's token in {place}"


def run_tokens(content: bytes) -> list[object]:
    """Paperclip's run tokens in the content. Tokens in links to a transcript are no secrets."""
    claims = (decoded(token) for token in JWT.findall(content))
    return [claim for claim in claims if isinstance(claim, dict) and "company_id" in claim]


def decoded(part: bytes) -> object:
    try:
        return json.loads(base64.urlsafe_b64decode(part + b"=" * (-len(part) % 4)))
    except ValueError:
        return None


async def places(env: Environment, run: str, agent: str) -> dict[str, bytes]:
    """The content of every place that somebody may read, by name."""
    instance = await env.instance(STABLE)
    history = await history_of(env, agent)
    return {
        "the history, decoded": b"".join(event.SerializeToString() for event in history.events),
        "the history, exported": history.to_json().encode(),
        "the transcript store": stored_bytes(env.stack.plan.state / "transcripts.db"),
        "the worker's log": (env.stack.plan.state / "log" / "worker.log").read_bytes(),
        "Jobs and pods": env.observer.snapshot(),
        "the run's log": json.dumps([entry.chunk for entry in await instance.api.log(run)]).encode(),
        "the run's events": json.dumps(await instance.api.events(run)).encode(),
        "the run": json.dumps(await instance.api.run(run)).encode(),
        "Paperclip's own log": instance.server.log.read_bytes(),
    }


async def history_of(env: Environment, agent: str) -> WorkflowHistory:
    return await env.stack.client.get_workflow_handle(workflow_id(agent)).fetch_history()
