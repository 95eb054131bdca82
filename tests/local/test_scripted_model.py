"""The scripted model plays its scenes over real HTTP."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from local.scripted_model import SCENARIOS, ScriptedModel, opencode_config, provider_block, running
from local.scripted_model.__main__ import main

SCRIPT = """Please do this:
<<<fake-llm
{"steps": [
  {"tools": [{"name": "bash", "args": {"command": "echo hi"}}]},
  {"text": "done", "usage": {"prompt": 10, "completion": 2}}
]}
fake-llm>>> and no more"""


@pytest.fixture
async def model() -> AsyncIterator[ScriptedModel]:
    async with running() as served:
        yield served


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


def question(scenario: str, prompt: str = "hello", *, steps: int = 0, stream: bool = True) -> dict[str, Any]:
    messages = [{"role": "user", "content": prompt}] + [{"role": "assistant", "content": "…"}] * steps
    options = {"stream_options": {"include_usage": True}} if stream else {}
    return {"model": f"scenario/{scenario}", "messages": messages, "stream": stream} | options


async def streamed(http: aiohttp.ClientSession, model: ScriptedModel, body: dict[str, Any]) -> list[str]:
    """The texts of the stream's `data:` lines."""
    async with http.post(f"{model.base_url}/chat/completions", json=body) as answer:
        assert answer.status == 200
        text = (await answer.read()).decode()
    return [line.removeprefix("data: ") for line in text.split("\n") if line]


async def whole(http: aiohttp.ClientSession, model: ScriptedModel, body: dict[str, Any]) -> tuple[int, Any]:
    async with http.post(f"{model.base_url}/chat/completions", json=body | {"stream": False}) as answer:
        return answer.status, await answer.json()


def content(chunks: list[str]) -> str:
    choices = [choice for chunk in chunks if chunk != "[DONE]" for choice in json.loads(chunk)["choices"]]
    return "".join(choice["delta"].get("content", "") for choice in choices)


async def test_an_answer_is_streamed_with_finish_reason_usage_and_end(
    http: aiohttp.ClientSession, model: ScriptedModel
) -> None:
    chunks = await streamed(http, model, question("usage-cached"))
    assert content(chunks) == "Most of the prompt came from the cache."
    *_, finish, usage, done = chunks
    assert json.loads(finish)["choices"][0]["finish_reason"] == "stop"
    assert json.loads(usage)["usage"] == {
        "prompt_tokens": 12000,
        "completion_tokens": 350,
        "total_tokens": 12350,
        "prompt_tokens_details": {"cached_tokens": 9000},
        "completion_tokens_details": {"reasoning_tokens": 128},
    }
    assert done == "[DONE]"


@pytest.mark.parametrize("stream", [True, False])
async def test_a_script_in_the_prompt_is_played_step_by_step(
    http: aiohttp.ClientSession, model: ScriptedModel, *, stream: bool
) -> None:
    async def step(number: int) -> dict[str, Any]:
        body = question("script", SCRIPT, steps=number, stream=stream)
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


async def test_flaky_fails_as_often_as_it_says_and_then_works(
    http: aiohttp.ClientSession, model: ScriptedModel
) -> None:
    statuses = [(await whole(http, model, question("flaky:503:2")))[0] for _ in range(4)]
    assert statuses == [503, 503, 200, 200]
    async with http.post(model.base_url.replace("/v1", "/__reset")) as answer:
        assert answer.status == 200
    assert (await whole(http, model, question("flaky:503:2")))[0] == 503


async def test_a_dropped_stream_is_not_mistaken_for_a_whole_one(
    http: aiohttp.ClientSession, model: ScriptedModel
) -> None:
    with pytest.raises(aiohttp.ClientError):
        await streamed(http, model, question("drop"))
    assert content(await streamed(http, model, question("drop:0"))) == "It worked at attempt 1."


async def test_a_request_for_a_title_does_not_disturb_the_scene(
    http: aiohttp.ClientSession, model: ScriptedModel
) -> None:
    title = question("flaky:500:1")
    title["messages"].insert(0, {"role": "system", "content": "You are a title generator."})
    assert (await whole(http, model, title))[1]["choices"][0]["message"]["content"] == "Fake session title"
    assert [seen.scenario for seen in model.requests] == ["aux/title"]
    assert (await whole(http, model, question("flaky:500:1")))[0] == 500


@pytest.mark.parametrize(
    ("scenario", "status"),
    [("error:429", 429), ("error", 500), ("nobody-knows", 404), ("script", 400), ("error:x", 400)],
)
async def test_errors_have_a_providers_form(
    http: aiohttp.ClientSession, model: ScriptedModel, scenario: str, status: int
) -> None:
    answered, body = await whole(http, model, question(scenario))
    assert answered == status
    assert body["error"]["message"]


@pytest.mark.parametrize("body", [b"no json", b"[1]", b'"text"'])
async def test_nonsense_is_answered_400(http: aiohttp.ClientSession, model: ScriptedModel, body: bytes) -> None:
    async with http.post(f"{model.base_url}/chat/completions", data=body) as answer:
        assert answer.status == 400


async def test_only_the_right_key_is_served_and_none_is_remembered(http: aiohttp.ClientSession) -> None:
    async def status(model: ScriptedModel, **headers: str) -> int:
        body = question("text", stream=False)
        async with http.post(f"{model.base_url}/chat/completions", json=body, headers=headers) as answer:
            return answer.status

    async with running(api_key="sk-right") as model:
        assert await status(model) == 401
        assert await status(model, Authorization="Bearer sk-wrong") == 401
        assert await status(model, Authorization="Bearer sk-right") == 200
        assert [seen.authorization for seen in model.requests] == ["none", "wrong", "bearer"]
        assert "sk-" not in json.dumps([seen.as_json(full=True) for seen in model.requests])


async def test_what_was_asked_can_be_looked_at(
    http: aiohttp.ClientSession, model: ScriptedModel, tmp_path: Path
) -> None:
    async with running(log=tmp_path / "log") as logged:
        await whole(http, logged, question("text", "remember me"))
        async with http.get(logged.base_url.replace("/v1", "/__requests?full=1")) as answer:
            (seen,) = await answer.json()
    assert (seen["scenario"], seen["body"]["messages"][0]["content"]) == ("text", "remember me")
    assert json.loads((tmp_path / "log").read_text()) == seen
    async with http.get(f"{model.base_url}/models") as answer:
        assert {entry["id"] for entry in (await answer.json())["data"]} == {f"scenario/{name}" for name in SCENARIOS}


async def test_every_scene_is_declared_to_opencode() -> None:
    config = opencode_config("http://127.0.0.1:1/v1", ["hang:7"])
    assert config["provider"] == provider_block("http://127.0.0.1:1/v1", ["hang:7"])
    assert {f"scenario/{name}" for name in (*SCENARIOS, "hang:7")} <= set(config["provider"]["fake"]["models"])
    assert config["enabled_providers"] == ["fake"]
    for role in ("model", "small_model"):
        assert config[role].removeprefix("fake/") in config["provider"]["fake"]["models"]


async def test_the_command_serves_until_it_is_told_to_stop(http: aiohttp.ClientSession, tmp_path: Path) -> None:
    serve = [
        sys.executable,
        "-m",
        "local.scripted_model",
        "serve",
        "--port",
        "0",
        "--port-file",
        str(tmp_path / "port"),
    ]
    server = await asyncio.create_subprocess_exec(
        *serve,
        stdout=asyncio.subprocess.PIPE,
        cwd=Path(__file__).parents[2],
        env=os.environ | {"FAKE_LLM_REQUIRE_KEY": "k"},
    )
    assert server.stdout is not None
    base_url = (await server.stdout.readline()).decode().split()[-1]
    assert base_url == f"http://127.0.0.1:{(tmp_path / 'port').read_text()}/v1"
    async with http.post(f"{base_url}/chat/completions", json=question("text")) as answer:
        assert answer.status == 401
    server.send_signal(signal.SIGTERM)
    assert await server.wait() == 0


def test_an_address_that_cannot_be_bound_is_said_plainly(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--host", "192.0.2.1", "--port", "0"]) == 1
    assert "choose another --host or --port" in capsys.readouterr().err


def test_the_scenes_can_be_listed_and_the_configuration_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    assert capsys.readouterr().out.count("\n") == len(SCENARIOS)
    assert main(["config", "--base-url", "http://127.0.0.1:1/v1", "--model", "hang:7", "--no-key"]) == 0
    assert json.loads(capsys.readouterr().out) == opencode_config("http://127.0.0.1:1/v1", ["hang:7"], None)
