"""A run id is chosen by its caller, so two agents can have runs with one id: a run is named by both."""

import json
from collections.abc import Awaitable, Callable
from functools import partial
from io import StringIO
from typing import Any

import aiohttp
import pytest

from agent_runs.cli import runs
from agent_runs.cli.display import JsonDisplay
from agent_runs.client import links
from agent_runs.client.runs import UnknownRun
from agent_runs.transcript.tokens import authorization
from agent_runs.web.run_info import TemporalRunInfo
from agent_runs.web.serving import transcript_service
from tests.runs.system import System, attempt_key


def with_id_of(raw: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """The run of one agent with the id of another's."""
    return {**raw, "runId": other["runId"], "context": {**raw["context"], "executionIdentityRunId": other["runId"]}}


async def shown(command: Callable[[JsonDisplay], Awaitable[int]]) -> list[dict[str, Any]]:
    output = StringIO()
    await command(JsonDisplay(output))
    return [json.loads(line) for line in output.getvalue().splitlines()]


async def test_agents_with_runs_of_one_id_share_nothing(system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    first = system.agent("cat > /dev/null; echo of the first agent")
    second = with_id_of(system.agent("cat > /dev/null; echo of the second agent"), first)
    second["agent"]["companyId"] = "another-company"
    outcomes = [await system.outcome(raw) for raw in (first, second)]
    jobs = [outcome.attempts[0].job_name for outcome in outcomes]
    assert jobs == [attempt_key(raw).job_name for raw in (first, second)]
    texts = ((first, "of the first agent"), (second, "of the second agent"))
    for raw, words in texts:
        assert await system.stdout(raw) == [words.encode()]
    settings = system.settings.model_copy(update={"transcripts_listen": "127.0.0.1:0"})
    tokens, info = links.load_tokens(settings), TemporalRunInfo(system.temporal, settings)
    async with transcript_service(settings, system.store, info) as base, aiohttp.ClientSession(base) as http:
        for own, other in ((first, second), (second, first)):
            headers = authorization(tokens.mint(attempt_key(own).run))
            async with http.get(f"/runs/{attempt_key(own).run.name}/transcript", headers=headers) as answer:
                assert [json.loads(line)["data"] for line in (await answer.text()).splitlines()] == [
                    line.data.decode() for line in await system.lines(own)
                ]
            for path in ("", "/transcript", "/events", "/attempts", "/log"):
                async with http.get(f"/runs/{attempt_key(other).run.name}{path}", headers=headers) as answer:
                    assert answer.status == 403
    for name, value in system.environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UnknownRun, match=f"2 agents have a run '{first['runId']}': name one, such as "):
        await runs.show(first["runId"], JsonDisplay(StringIO()))
    for raw, words in texts:
        name = attempt_key(raw).run.name
        said = await shown(partial(runs.logs, name, follow=False, after=0))
        assert [line["text"] for line in said if line.get("stream") == "stdout"] == [words]
