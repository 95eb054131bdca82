"""The scripted model's HTTP server: one POST route per protocol, streamed or whole, and GET /healthz."""

import asyncio
import itertools
import math
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

from aiohttp import web

from dev_stack.scripted_model.protocols import (
    ANTHROPIC_MESSAGES,
    GOOGLE_CONTENT,
    OPENAI_CHAT,
    OPENAI_RESPONSES,
    Answer,
    Encoding,
)
from dev_stack.scripted_model.scenarios import SCENARIOS, Step, Usage, answer

MAX_REQUEST: Final = 256 * 1024 * 1024
MAX_REQUESTS_KEPT: Final = 100
_WITH_ARGUMENTS: Final = ("error:400", "error:401", "error:429", "error:503", "hang:10", "hang:600",
                          "slow-steps:5:1", "slow-steps:30:1")  # fmt: skip
_ERRORS: Final = {
    400: "Invalid request: the fake model dislikes it.",
    401: "Incorrect API key provided.",
    404: "The model does not exist.",
    429: "Rate limit reached for requests.",
}
_GOOGLE: Final = "/{version:v1(?:beta)?}/models/{model:.+}"
_CHARACTERS_PER_TOKEN: Final = 4


@dataclass(frozen=True)
class Arrival:
    """A request's head has come.

    Attributes:
        at: by `time.monotonic`, in seconds.
        model: the name that was asked for, such as `scenario/text`.
    """

    at: float
    model: str


@dataclass(frozen=True)
class Sent:
    """An answer that was sent, or begun at least: what an agent's own figures are compared with.

    Attributes:
        protocol: the name of its encoding, such as `anthropic-messages`.
        usage: None for an error.
    """

    protocol: str
    model: str
    status: int
    usage: Usage | None


Report = Callable[[Sent], None]


class ScriptedModel:
    """The application and its state; `serve` serves it.

    Args:
        report: gets each answer when it is sent.

    Attributes:
        origin: scheme and authority, once it is served: the base URL of Anthropic's and Google's clients.
        requests: the bodies of the latest requests, oldest first.
        arrivals: when each of them came.
        sent: the latest answers, oldest first.
    """

    def __init__(self, report: Report = lambda _: None) -> None:
        self._report = report
        self.origin = ""
        self.requests: deque[dict[str, Any]] = deque(maxlen=MAX_REQUESTS_KEPT)
        self.arrivals: deque[Arrival] = deque(maxlen=MAX_REQUESTS_KEPT)
        self.sent: deque[Sent] = deque(maxlen=MAX_REQUESTS_KEPT)
        self._serials = itertools.count(1)

    @property
    def base_url(self) -> str:
        """The base URL of OpenAI's clients, OpenCode's `baseURL` among them."""
        return f"{self.origin}/v1"

    def app(self) -> web.Application:
        app = web.Application(client_max_size=MAX_REQUEST)
        app.router.add_get("/healthz", self._get_health)
        app.router.add_post("/v1/chat/completions", self._post_chat)
        app.router.add_post("/v1/responses", self._post_responses)
        app.router.add_post("/v1/messages", self._post_messages)
        app.router.add_post("/v1/messages/count_tokens", self._post_count)
        app.router.add_post(f"{_GOOGLE}:{{method:(?:streamG|g)enerateContent}}", self._post_content)
        app.router.add_post(f"{_GOOGLE}:countTokens", self._post_count)
        return app

    async def _get_health(self, _request: web.Request) -> web.Response:
        return web.json_response({"ok": True})

    async def _post_chat(self, request: web.Request) -> web.StreamResponse:
        return await self._answer(request, OPENAI_CHAT, {})

    async def _post_responses(self, request: web.Request) -> web.StreamResponse:
        return await self._answer(request, OPENAI_RESPONSES, {})

    async def _post_messages(self, request: web.Request) -> web.StreamResponse:
        return await self._answer(request, ANTHROPIC_MESSAGES, {})

    async def _post_content(self, request: web.Request) -> web.StreamResponse:
        stream = request.match_info["method"] == "streamGenerateContent"
        return await self._answer(request, GOOGLE_CONTENT, {"model": request.match_info["model"], "stream": stream})

    async def _post_count(self, request: web.Request) -> web.Response:
        """The size of a conversation, roughly; one body has the fields of both protocols."""
        tokens = math.ceil(len(await request.read()) / _CHARACTERS_PER_TOKEN)
        return web.json_response({"input_tokens": tokens, "totalTokens": tokens})

    async def _answer(self, request: web.Request, encoding: Encoding, in_path: dict[str, Any]) -> web.StreamResponse:
        came = time.monotonic()
        try:
            body = await request.json() | in_path
            self.requests.append(body)
            asked = encoding.read(body)
            self.arrivals.append(Arrival(came, asked.model))
            step = answer(asked)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            return _error(encoding, Step(status=400), f"the scenario cannot be used: {error}")
        if step is None:
            step = Step(status=404)
        await asyncio.sleep(step.delay)
        usage = step.usage if step.status == 200 else None
        sent = Sent(encoding.name, asked.model, step.status, usage)
        self.sent.append(sent)
        self._report(sent)
        if usage is None:
            return _error(encoding, step)
        ready = Answer(step, asked.model, next(self._serials), body)
        return await _stream(request, encoding, ready) if asked.stream else web.json_response(encoding.whole(ready))


@asynccontextmanager
async def serve(
    host: str = "127.0.0.1", port: int = 0, report: Report = lambda _: None
) -> AsyncIterator[ScriptedModel]:
    """Serve in this event loop; port 0 takes a free one.

    Raises:
        OSError: the address cannot be bound.
    """
    model = ScriptedModel(report)
    runner = web.AppRunner(model.app(), access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
        model.origin = f"http://{f'[{host}]' if ':' in host else host}:{runner.addresses[0][1]}"
        yield model
    finally:
        await runner.cleanup()


def provider_block(base_url: str, extra: Sequence[str] = ()) -> dict[str, Any]:
    """What belongs under `provider` in an `opencode.json`. OpenCode accepts declared models only.

    The package it names is inside the OpenCode binary, so nothing is downloaded. `extra` declares further scenarios
    with arguments, such as `hang:7`.
    """
    models = {f"scenario/{name}": _model(name) for name in (*SCENARIOS, *_WITH_ARGUMENTS, *extra)}
    models["aux/title"] = {
        "name": "Fake title model",
        "tool_call": False,
        "limit": {"context": 200_000, "output": 8_000},
    }
    options = {"baseURL": base_url, "apiKey": "none"}
    return {"fake": {"npm": "@ai-sdk/openai-compatible", "name": "Fake LLM", "options": options, "models": models}}


def _model(name: str) -> dict[str, Any]:
    return {
        "name": f"Fake {name}",
        "tool_call": True,
        "limit": {"context": 200_000, "output": 32_000},
        "cost": {"input": 3, "output": 15, "cache_read": 0.3, "cache_write": 3.75},
    }


def _error(encoding: Encoding, step: Step, message: str = "") -> web.Response:
    text = message or _ERRORS.get(step.status, f"Error {step.status}.")
    headers = {"Retry-After": str(step.retry_after)} if step.retry_after else {}
    return web.json_response(encoding.error(step.status, text, step.retry_after), status=step.status, headers=headers)


async def _stream(request: web.Request, encoding: Encoding, ready: Answer) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Cache-Control": "no-cache", "Content-Type": "text/event-stream"})
    try:
        await response.prepare(request)
        for event in encoding.events(ready):
            await response.write(event.encode())
            await asyncio.sleep(ready.step.gap)
    except asyncio.CancelledError:
        if request.transport is not None:
            request.transport.abort()  # the server stops: an orderly end would look like a whole answer
        raise
    except ConnectionError:
        pass  # the client has closed the connection
    with suppress(ConnectionError):
        await response.write_eof()
    return response
