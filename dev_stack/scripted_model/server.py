"""The scripted model's HTTP server: POST /v1/chat/completions, streamed or whole, and GET /healthz."""

import asyncio
import itertools
import json
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

from aiohttp import web

from dev_stack.scripted_model.scenarios import SCENARIOS, Step, answer

MAX_REQUEST: Final = 256 * 1024 * 1024
MAX_REQUESTS_KEPT: Final = 100
_CHUNK: Final = 64
"""Characters of text per chunk of a stream."""
_WITH_ARGUMENTS: Final = ("error:400", "error:401", "error:429", "error:503", "hang:10", "hang:600",
                          "slow-steps:5:1", "slow-steps:30:1")  # fmt: skip
_ERRORS: Final = {
    400: ("Invalid request: the fake model dislikes it.", "invalid_request_error"),
    401: ("Incorrect API key provided.", "invalid_request_error"),
    404: ("The model does not exist.", "invalid_request_error"),
    429: ("Rate limit reached for requests.", "requests"),
}


@dataclass(frozen=True)
class Arrival:
    """A request's head has come.

    Attributes:
        at: by `time.monotonic`, in seconds.
        model: the name that was asked for, such as `scenario/text`.
    """

    at: float
    model: str


class ScriptedModel:
    """The application and its state; `serve` serves it.

    Attributes:
        base_url: what goes into OpenCode's `baseURL`, once it is served.
        requests: the bodies of the latest requests, oldest first.
        arrivals: when each of them came.
    """

    def __init__(self) -> None:
        self.base_url = ""
        self.requests: deque[dict[str, Any]] = deque(maxlen=MAX_REQUESTS_KEPT)
        self.arrivals: deque[Arrival] = deque(maxlen=MAX_REQUESTS_KEPT)
        self._serials = itertools.count(1)

    def app(self) -> web.Application:
        """The routes, ready to be served."""
        app = web.Application(client_max_size=MAX_REQUEST)
        app.router.add_get("/healthz", self._get_health)
        app.router.add_post("/v1/chat/completions", self._post_chat)
        return app

    async def _get_health(self, _request: web.Request) -> web.Response:
        return web.json_response({"ok": True})

    async def _post_chat(self, request: web.Request) -> web.StreamResponse:
        came = time.monotonic()
        try:
            body = await request.json()
            self.requests.append(body)
            self.arrivals.append(Arrival(came, str(body.get("model"))))
            step = answer(body)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            return _error(400, f"the scenario cannot be used: {error}")
        if step is None:
            return _error(404)
        await asyncio.sleep(step.delay)
        if step.status != 200:
            return _error(step.status)
        completion = _Completion(step, body, next(self._serials))
        return await _stream(request, completion) if body.get("stream") else web.json_response(completion.whole())


@asynccontextmanager
async def serve(host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[ScriptedModel]:
    """Serve in this event loop; port 0 takes a free one.

    Raises:
        OSError: the address cannot be bound.
    """
    model = ScriptedModel()
    runner = web.AppRunner(model.app(), access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
        model.base_url = f"http://{f'[{host}]' if ':' in host else host}:{runner.addresses[0][1]}/v1"
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


def _error(status: int, message: str = "") -> web.Response:
    """An error as OpenAI-compatible providers write it."""
    text, kind = _ERRORS.get(status, (f"Error {status}.", "server_error"))
    return web.json_response({"error": {"message": message or text, "type": kind, "param": None}}, status=status)


@dataclass(frozen=True)
class _Completion:
    """A step in the form of a chat completion, whole or in chunks."""

    step: Step
    body: dict[str, Any]
    serial: int

    def whole(self) -> dict[str, Any]:
        step = self.step
        calls = [
            {**self._call(index), "function": {"name": tool.name, "arguments": json.dumps(tool.args)}}
            for index, tool in enumerate(step.tools)
        ]
        message = {"role": "assistant", "content": step.text or None} | ({"tool_calls": calls} if calls else {})
        choice = {"index": 0, "message": message, "finish_reason": step.finish_reason}
        return self._head("chat.completion") | {"choices": [choice], "usage": step.usage.as_json()}

    def chunks(self) -> Iterator[dict[str, Any]]:
        """The stream's objects in order."""
        for delta in self._deltas():
            yield self._chunk([{"index": 0, "delta": delta, "finish_reason": None}])
        yield self._chunk([{"index": 0, "delta": {}, "finish_reason": self.step.finish_reason}])
        if (self.body.get("stream_options") or {}).get("include_usage"):
            yield {**self._chunk([]), "usage": self.step.usage.as_json()}

    def _deltas(self) -> Iterator[dict[str, Any]]:
        yield {"role": "assistant", "content": ""}
        for piece in _pieces(self.step.reasoning):
            yield {"reasoning_content": piece}
        for piece in _pieces(self.step.text):
            yield {"content": piece}
        for index, tool in enumerate(self.step.tools):
            yield {
                "tool_calls": [{"index": index, **self._call(index), "function": {"name": tool.name, "arguments": ""}}]
            }
            for piece in _pieces(json.dumps(tool.args)):
                yield {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}

    def _chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return self._head("chat.completion.chunk") | {"choices": choices}

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": f"chatcmpl-fake-{self.serial}", "object": kind, "created": 0, "model": self.body.get("model")}

    def _call(self, index: int) -> dict[str, Any]:
        return {"id": f"call_fake_{self.serial}_{index}", "type": "function"}


async def _stream(request: web.Request, completion: _Completion) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Cache-Control": "no-cache", "Content-Type": "text/event-stream"})
    try:
        await response.prepare(request)
        for chunk in completion.chunks():
            await response.write(f"data: {json.dumps(chunk)}\n\n".encode())
            await asyncio.sleep(completion.step.gap)
        await response.write(b"data: [DONE]\n\n")
    except asyncio.CancelledError:
        if request.transport is not None:
            request.transport.abort()  # the server stops: an orderly end would look like a whole answer
        raise
    except ConnectionError:
        pass  # the client has closed the connection
    with suppress(ConnectionError):
        await response.write_eof()
    return response


def _pieces(text: str) -> Iterator[str]:
    return (text[start : start + _CHUNK] for start in range(0, len(text), _CHUNK))
