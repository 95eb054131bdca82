"""The scripted model plays its scenarios in each protocol; the clients are the providers' own."""

import dataclasses
import json
from collections.abc import Awaitable, Callable
from typing import Any

import anthropic
import httpx2
import openai
import pytest
from google.genai import Client, types
from google.genai.errors import APIError

from dev_stack.scripted_model import ScriptedModel, Tool, Usage

SCRIPT = """<<<fake-llm
{"steps": [
  {"reasoning": "I think.", "text": "I look.", "tools": [{"name": "bash", "args": {"command": "echo hi"}}]},
  {"text": "done"}
]}
fake-llm>>>"""


TIMEOUT = 60.0
"""Seconds. The clients wait 5 s for a connection by default, which a busy machine needs to load their modules."""


@dataclasses.dataclass
class Reply:
    """What a client understood."""

    text: str = ""
    reasoning: str = ""
    tools: list[Tool] = dataclasses.field(default_factory=list)
    usage: Usage | None = None


Ask = Callable[[ScriptedModel, str, str, bool], Awaitable[Reply]]
"""One client: the scenario, the prompt, and whether the model's first step and its result are in the conversation."""


async def ask_chat(model: ScriptedModel, scenario: str, prompt: str, again: bool) -> Reply:
    client = openai.AsyncOpenAI(base_url=model.base_url, api_key="none", max_retries=0, timeout=TIMEOUT)
    function = {"name": "bash", "parameters": {"type": "object", "properties": {"command": {"type": "string"}}}}
    call = {"id": "c1", "type": "function", "function": {"name": "bash", "arguments": "{}"}}
    messages: Any = [{"role": "user", "content": prompt}]
    if again:
        messages.append({"role": "assistant", "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": "c1", "content": "hi"})
    tools: Any = [{"type": "function", "function": function}]
    reply = Reply()
    async with (
        client,
        client.chat.completions.stream(
            model=f"scenario/{scenario}", messages=messages, tools=tools, stream_options={"include_usage": True}
        ) as stream,
    ):
        async for event in stream:
            if event.type == "chunk" and event.chunk.choices:
                reply.reasoning += getattr(event.chunk.choices[0].delta, "reasoning_content", None) or ""
        answer = await stream.get_final_completion()
    message, usage = answer.choices[0].message, answer.usage
    reply.text = message.content or ""
    reply.tools = [Tool(each.function.name, json.loads(each.function.arguments)) for each in message.tool_calls or ()]
    if usage and usage.prompt_tokens_details and usage.completion_tokens_details:
        reply.usage = Usage(
            usage.prompt_tokens,
            usage.completion_tokens,
            usage.prompt_tokens_details.cached_tokens or 0,
            usage.completion_tokens_details.reasoning_tokens or 0,
        )
    return reply


async def ask_responses(model: ScriptedModel, scenario: str, prompt: str, again: bool) -> Reply:
    client = openai.AsyncOpenAI(base_url=model.base_url, api_key="none", max_retries=0, timeout=TIMEOUT)
    given: Any = [{"role": "user", "content": prompt}]
    if again:
        given.append({"type": "function_call", "call_id": "c1", "name": "exec_command", "arguments": "{}"})
        given.append({"type": "function_call_output", "call_id": "c1", "output": "hi"})
    parameters = {"type": "object", "properties": {"cmd": {"type": "string"}}}
    tools: Any = [{"type": "function", "name": "exec_command", "parameters": parameters, "strict": False}]
    async with client, client.responses.stream(model=f"scenario/{scenario}", input=given, tools=tools) as stream:
        async for _ in stream:
            pass
        answer = await stream.get_final_response()
    reply = Reply(answer.output_text)
    for item in answer.output:
        if item.type == "reasoning":
            reply.reasoning += "".join(part.text for part in item.summary)
        if item.type == "function_call":
            reply.tools.append(Tool(item.name, json.loads(item.arguments)))
    if used := answer.usage:
        reply.usage = Usage(
            used.input_tokens,
            used.output_tokens,
            used.input_tokens_details.cached_tokens,
            used.output_tokens_details.reasoning_tokens,
        )
    return reply


async def ask_messages(model: ScriptedModel, scenario: str, prompt: str, again: bool) -> Reply:
    client = anthropic.AsyncAnthropic(base_url=model.origin, api_key="none", max_retries=0, timeout=TIMEOUT)
    messages: Any = [{"role": "user", "content": prompt}]
    if again:
        use = {"type": "tool_use", "id": "c1", "name": "Bash", "input": {}}
        result = {"type": "tool_result", "tool_use_id": "c1", "content": "hi"}
        messages.append({"role": "assistant", "content": [use]})
        messages.append({"role": "user", "content": [result, {"type": "text", "text": "a reminder"}]})
    schema = {"type": "object", "properties": {"command": {"type": "string"}}}
    tools: Any = [{"name": "Bash", "input_schema": schema}]
    async with (
        client,
        client.messages.stream(model=f"scenario/{scenario}", max_tokens=1000, messages=messages, tools=tools) as stream,
    ):
        answer = await stream.get_final_message()
    reply = Reply()
    for block in answer.content:
        match block.type:
            case "text":
                reply.text += block.text
            case "thinking":
                reply.reasoning += block.thinking
            case "tool_use":
                reply.tools.append(Tool(block.name, dict(block.input)))
    cached = answer.usage.cache_read_input_tokens or 0
    reply.usage = Usage(answer.usage.input_tokens + cached, answer.usage.output_tokens, cached)
    return reply


async def ask_google(model: ScriptedModel, scenario: str, prompt: str, again: bool) -> Reply:
    over_httpx = {"transport": httpx2.AsyncHTTPTransport()}  # with aiohttp it warns of a deprecation
    options = types.HttpOptions(base_url=model.origin, async_client_args=over_httpx)
    client = Client(api_key="none", vertexai=False, http_options=options)
    contents: Any = [{"role": "user", "parts": [{"text": prompt}]}]
    if again:
        call = {"name": "run_shell_command", "args": {}}
        response = {"name": "run_shell_command", "response": {"output": "hi"}}
        contents.append({"role": "model", "parts": [{"function_call": call}]})
        contents.append({"role": "user", "parts": [{"function_response": response}]})
    schema = {"type": "object", "properties": {"command": {"type": "string"}}}
    tools: Any = [{"function_declarations": [{"name": "run_shell_command", "parameters_json_schema": schema}]}]
    reply = Reply()
    async with client.aio as aio:
        chunks = await aio.models.generate_content_stream(
            model=f"scenario/{scenario}", contents=contents, config=types.GenerateContentConfig(tools=tools)
        )
        async for chunk in chunks:
            content = chunk.candidates[0].content if chunk.candidates else None
            for part in (content.parts if content else None) or ():
                if part.function_call:
                    reply.tools.append(Tool(part.function_call.name or "", part.function_call.args or {}))
                elif part.thought:
                    reply.reasoning += part.text or ""
                else:
                    reply.text += part.text or ""
            if used := chunk.usage_metadata:
                thoughts = used.thoughts_token_count or 0
                completion = (used.candidates_token_count or 0) + thoughts
                cached = used.cached_content_token_count or 0
                reply.usage = Usage(used.prompt_token_count or 0, completion, cached, thoughts)
    return reply


PROTOCOLS = {
    "openai-chat": ask_chat,
    "openai-responses": ask_responses,
    "anthropic-messages": ask_messages,
    "google-content": ask_google,
}


@pytest.fixture(params=PROTOCOLS)
def protocol(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def ask(protocol: str) -> Ask:
    return PROTOCOLS[protocol]


async def test_the_providers_own_client_reads_text_reasoning_and_a_tool_call(model: ScriptedModel, ask: Ask) -> None:
    first = await ask(model, "script", SCRIPT, False)
    assert (first.text, first.reasoning) == ("I look.", "I think.")
    assert [list(tool.args.values()) for tool in first.tools] == [["echo hi"]]
    second = await ask(model, "script", SCRIPT, True)
    assert (second.text, second.tools) == ("done", [])


async def test_the_usage_that_a_client_reads_is_the_one_recorded(model: ScriptedModel, ask: Ask, protocol: str) -> None:
    reply = await ask(model, "usage:900:300:40:7", "count", False)
    (sent,) = model.sent
    assert (sent.protocol, sent.model, sent.status) == (protocol, "scenario/usage:900:300:40:7", 200)
    assert sent.usage == Usage(prompt=900, cached=300, completion=40, reasoning=7)
    reasoning = 0 if protocol == "anthropic-messages" else 7
    assert reply.usage == Usage(prompt=900, cached=300, completion=40, reasoning=reasoning)


@pytest.mark.parametrize("status", [400, 401, 404, 429, 500, 503])
async def test_an_error_has_its_status_and_text_for_the_providers_own_client(
    model: ScriptedModel, ask: Ask, status: int
) -> None:
    with pytest.raises((openai.APIStatusError, anthropic.APIStatusError, APIError)) as caught:
        await ask(model, "unknown" if status == 404 else f"error:{status}", "fail", False)
    error = caught.value
    assert status == (error.code if isinstance(error, APIError) else getattr(error, "status_code", None))
    assert {401: "Incorrect API key", 429: "Rate limit", 500: "Error 500"}.get(status, "") in str(error)
    assert [(sent.status, sent.usage) for sent in model.sent] == [(status, None)]


@pytest.mark.parametrize("client", [ask_chat, ask_responses, ask_messages])
async def test_a_rate_limit_says_how_long_to_wait(model: ScriptedModel, client: Ask) -> None:
    with pytest.raises((openai.APIStatusError, anthropic.APIStatusError)) as caught:
        await client(model, "error:429:30", "fail", False)
    error = caught.value
    assert isinstance(error, (openai.APIStatusError, anthropic.APIStatusError))
    assert error.response.headers["retry-after"] == "30"


async def test_google_says_how_long_to_wait_in_the_body(model: ScriptedModel) -> None:
    with pytest.raises(APIError) as caught:
        await ask_google(model, "error:429:30", "fail", False)
    assert "'retryDelay': '30s'" in str(caught.value)
