"""The scripted model plays its scenarios over real HTTP."""

import asyncio
import json
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from dev_stack.scripted_model import SCENARIOS, ScriptedModel, provider_block
from dev_stack.scripted_model.__main__ import main

SCRIPT = """Please do this:
<<<fake-llm
{"steps": [
  {"tools": [{"name": "bash", "args": {"command": "echo hi"}}]},
  {"text": "done", "usage": {"prompt": 10, "completion": 2}}
]}
fake-llm>>> and no more"""


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


def request_body(scenario: str, prompt: str = "hello", *, steps: int = 0, stream: bool = True) -> dict[str, Any]:
    messages = [{"role": "user", "content": prompt}] + [{"role": "assistant", "content": "…"}] * steps
    options = {"stream_options": {"include_usage": True}} if stream else {}
    return {"model": f"scenario/{scenario}", "messages": messages, "stream": stream} | options


async def streamed(http: aiohttp.ClientSession, model: ScriptedModel, body: dict[str, Any]) -> list[str]:
    """The texts of the stream's `data:` lines."""
    async with http.post(f"{model.base_url}/chat/completions", json=body) as response:
        assert response.status == 200
        text = (await response.read()).decode()
    return [line.removeprefix("data: ") for line in text.split("\n") if line]


async def whole(http: aiohttp.ClientSession, model: ScriptedModel, body: dict[str, Any]) -> tuple[int, Any]:
    async with http.post(f"{model.base_url}/chat/completions", json=body | {"stream": False}) as response:
        return response.status, await response.json()


def content(chunks: list[str]) -> str:
    choices = [choice for chunk in chunks if chunk != "[DONE]" for choice in json.loads(chunk)["choices"]]
    return "".join(choice["delta"].get("content", "") for choice in choices)


async def test_an_answer_is_streamed_with_finish_reason_usage_and_end(
    http: aiohttp.ClientSession, model: ScriptedModel
) -> None:
    chunks = await streamed(http, model, request_body("text"))
    assert content(chunks) == "Hello from the fake model."
    *_, finish, usage, done = chunks
    assert json.loads(finish)["choices"][0]["finish_reason"] == "stop"
    assert json.loads(usage)["usage"]["total_tokens"] == 120
    assert done == "[DONE]"


@pytest.mark.parametrize("stream", [True, False])
async def test_a_script_in_the_prompt_is_played_step_by_step(
    http: aiohttp.ClientSession, model: ScriptedModel, *, stream: bool
) -> None:
    async def step(number: int) -> dict[str, Any]:
        body = request_body("script", SCRIPT, steps=number, stream=stream)
        if not stream:
            choice = (await whole(http, model, body))[1]["choices"][0]
            return {"finish": choice["finish_reason"]} | dict(choice["message"])
        chunks = await streamed(http, model, body)
        deltas = [choice for chunk in chunks[:-1] for choice in json.loads(chunk)["choices"]]
        calls = [call for choice in deltas for call in choice["delta"].get("tool_calls", [])]
        arguments = "".join(call["function"]["arguments"] for call in calls)
        return {"content": content(chunks), "finish": deltas[-1]["finish_reason"], "arguments": arguments}

    first = await step(0)
    assert first["finish"] == "tool_calls"
    assert "echo hi" in json.dumps(first)
    assert ((await step(1))["content"], (await step(2))["content"]) == ("done", "script finished")


async def test_a_request_for_a_title_is_answered_in_every_scenario(
    http: aiohttp.ClientSession, model: ScriptedModel
) -> None:
    title = request_body("error:500")
    title["messages"].insert(0, {"role": "system", "content": "You are a title generator."})
    assert (await whole(http, model, title))[1]["choices"][0]["message"]["content"] == "Fake session title"
    assert (await whole(http, model, request_body("error:500")))[0] == 500


@pytest.mark.parametrize(
    ("scenario", "status"),
    [("error:429", 429), ("error", 500), ("unknown", 404), ("script", 400), ("error:x", 400)],
)
async def test_errors_have_a_providers_form(
    http: aiohttp.ClientSession, model: ScriptedModel, scenario: str, status: int
) -> None:
    answered, body = await whole(http, model, request_body(scenario))
    assert answered == status
    assert body["error"]["message"]


@pytest.mark.parametrize("body", [b"no json", b"[1]", b'"text"'])
async def test_a_request_that_is_no_json_object_is_answered_400(
    http: aiohttp.ClientSession, model: ScriptedModel, body: bytes
) -> None:
    async with http.post(f"{model.base_url}/chat/completions", data=body) as response:
        assert response.status == 400


def test_every_scenario_is_declared_to_opencode() -> None:
    declared = provider_block("http://127.0.0.1:1/v1", ["hang:7"])["fake"]["models"]
    assert {f"scenario/{name}" for name in (*SCENARIOS, "hang:7")} <= set(declared)


async def test_the_command_serves_until_sigterm(http: aiohttp.ClientSession) -> None:
    server = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "dev_stack.scripted_model"),
        stdout=asyncio.subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    )
    assert server.stdout is not None
    base_url = (await server.stdout.readline()).decode().split()[-1]
    async with http.post(f"{base_url}/chat/completions", json=request_body("text")) as response:
        assert response.status == 200
    server.send_signal(signal.SIGTERM)
    assert await server.wait() == 0


def test_an_address_that_cannot_be_bound_is_reported_with_a_remedy(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--host", "192.0.2.1"]) == 1
    assert "choose another --host or --port" in capsys.readouterr().err


async def test_the_arrival_of_each_request_is_recorded_with_its_model(
    http: aiohttp.ClientSession, model: ScriptedModel
) -> None:
    before = time.monotonic()
    await streamed(http, model, request_body("text:1"))
    await whole(http, model, request_body("text:2"))
    times = [before, *(each.at for each in model.arrivals), time.monotonic()]
    assert times == sorted(times)
    assert [each.model for each in model.arrivals] == ["scenario/text:1", "scenario/text:2"]
