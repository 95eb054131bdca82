"""The scripted model's HTTP server: chat completions, streamed or whole, and a log of what was asked.

POST /v1/chat/completions   the model, `stream` true or false
GET  /v1/models             the scenes
GET  /healthz               {"ok": true}
GET  /__requests            what was asked so far (`?full=1`: with bodies)
POST /__reset               forget the requests and the attempt counters
"""

import asyncio
import dataclasses
import hashlib
import json
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from typing import Any, Final, Literal

from aiohttp import web

from local.scripted_model.scenarios import SCENARIOS, http_error, side_request
from local.scripted_model.steps import Ask, Step, openai_error

LARGEST_REQUEST: Final = 256 * 1024 * 1024
REMEMBERED: Final = 1000
"""Requests kept for a look; older ones are forgotten, because their bodies are whole conversations."""

Authorization = Literal["none", "bearer", "wrong"]


@dataclass(frozen=True)
class Seen:
    """One request as it was asked. `authorization` says whether a key was sent, and never which."""

    time: float
    model: str
    scenario: str
    step: int
    attempt: int
    stream: bool
    messages: int
    tools: tuple[str, ...]
    authorization: Authorization
    user_agent: str
    body: dict[str, Any]

    def as_json(self, *, full: bool) -> dict[str, Any]:
        """With the request's body only when `full`."""
        seen = dataclasses.asdict(self)
        if not full:
            del seen["body"]
        return seen


@dataclass(frozen=True)
class _Scene:
    """What was asked, and what will be answered."""

    scenario: str
    ask: Ask
    step: Step


class ScriptedModel:
    """The application and its state; `running` serves it.

    Attributes:
        base_url: what goes into OpenCode's `baseURL`, once it is served.
        requests: the latest requests, oldest first.
    """

    def __init__(self, api_key: str | None = None, log: Path | None = None) -> None:
        self.base_url = ""
        self.requests: deque[Seen] = deque(maxlen=REMEMBERED)
        self._api_key = api_key
        self._log = log
        self._attempts: Counter[str] = Counter()
        self._serial = 0

    def app(self) -> web.Application:
        """The routes, ready to be served."""
        app = web.Application(client_max_size=LARGEST_REQUEST)
        app.router.add_get("/healthz", self._get_health)
        app.router.add_get("/v1/models", self._get_models)
        app.router.add_get("/__requests", self._get_requests)
        app.router.add_post("/__reset", self._post_reset)
        app.router.add_post("/v1/chat/completions", self._post_chat)
        return app

    async def _get_health(self, _request: web.Request) -> web.Response:
        return web.json_response({"ok": True})

    async def _get_models(self, _request: web.Request) -> web.Response:
        models = [{"id": f"scenario/{name}", "object": "model", "owned_by": "fake"} for name in SCENARIOS]
        return web.json_response({"object": "list", "data": models})

    async def _get_requests(self, request: web.Request) -> web.Response:
        full = request.query.get("full") == "1"
        return web.json_response([seen.as_json(full=full) for seen in self.requests])

    async def _post_reset(self, _request: web.Request) -> web.Response:
        self.requests.clear()
        self._attempts.clear()
        return web.json_response({"ok": True})

    async def _post_chat(self, request: web.Request) -> web.StreamResponse:
        try:
            body = await request.json()
        except ValueError:
            body = None
        if not isinstance(body, dict):
            return web.json_response(openai_error("not a JSON object", "fake"), status=400)
        authorization = self._authorization(request.headers.get("Authorization", ""))
        scene = self._scene(body)
        self._remember(request, body, scene, authorization)
        refused = authorization == "wrong" or (authorization == "none" and self._api_key is not None)
        step = http_error(401) if refused else scene.step
        if step.delay:
            await asyncio.sleep(step.delay)
        if step.status != 200:
            return _refusal(step)
        self._serial += 1
        reply = _Reply(step, body, self._serial, int(time.time()))
        return await _stream(request, reply) if body.get("stream") else web.json_response(reply.whole())

    def _authorization(self, header: str) -> Authorization:
        scheme, _, key = header.partition(" ")
        if scheme.lower() != "bearer" or not key:
            return "none"
        return "bearer" if self._api_key in (None, key) else "wrong"

    def _scene(self, body: dict[str, Any]) -> _Scene:
        ask = _ask(body)
        side = side_request(ask.model, ask.messages)
        if side is not None:
            return _Scene(f"aux/{side[0]}", ask, side[1])
        digest = hashlib.sha256(json.dumps([ask.model, ask.messages], sort_keys=True).encode()).hexdigest()
        self._attempts[digest] += 1
        ask = dataclasses.replace(ask, attempt=self._attempts[digest])
        name = ask.model.removeprefix("scenario/").split(":")[0]
        return _Scene(name, ask, _answer(name, ask))

    def _remember(
        self, request: web.Request, body: dict[str, Any], scene: _Scene, authorization: Authorization
    ) -> None:
        seen = Seen(
            time=time.time(),
            model=scene.ask.model,
            scenario=scene.scenario,
            step=scene.ask.step,
            attempt=scene.ask.attempt,
            stream=bool(body.get("stream")),
            messages=len(scene.ask.messages),
            tools=scene.ask.tools,
            authorization=authorization,
            user_agent=request.headers.get("User-Agent", ""),
            body=body,
        )
        self.requests.append(seen)
        if self._log is not None:
            with self._log.open("a", encoding="utf-8") as log:
                log.write(json.dumps(seen.as_json(full=True)) + "\n")


@asynccontextmanager
async def running(
    host: str = "127.0.0.1", port: int = 0, api_key: str | None = None, log: Path | None = None
) -> AsyncIterator[ScriptedModel]:
    """Serve in this event loop; port 0 takes a free one.

    Args:
        host: loopback unless told otherwise; pods of a real cluster need an address that they can reach.
        api_key: refuse any other key with 401.
        log: append every request to this file, a JSON line each.

    Raises:
        OSError: the address cannot be bound.
    """
    model = ScriptedModel(api_key, log)
    runner = web.AppRunner(model.app(), access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
        model.base_url = f"http://{f'[{host}]' if ':' in host else host}:{runner.addresses[0][1]}/v1"
        yield model
    finally:
        await runner.cleanup()


def _ask(body: dict[str, Any]) -> Ask:
    model = str(body.get("model", ""))
    messages = body.get("messages") or []
    step = 0
    for message in reversed(messages):
        if message.get("role") == "user":
            break
        step += message.get("role") == "assistant"
    args = tuple(model.removeprefix("scenario/").split(":")[1:])
    tools = tuple(tool.get("function", {}).get("name", "?") for tool in body.get("tools") or [])
    return Ask(model, args, messages, step, 1, tools)


def _answer(name: str, ask: Ask) -> Step:
    if name not in SCENARIOS:
        return http_error(404)
    try:
        return SCENARIOS[name].answer(ask)
    except (ValueError, TypeError, KeyError) as error:
        message = f"scenario {ask.model!r} cannot be used: {error}"
        return Step(status=400, error_body=openai_error(message, "fake"))


def _refusal(step: Step) -> web.Response:
    if isinstance(step.error_body, str):
        return web.Response(
            status=step.status,
            text=step.error_body,
            headers=step.headers,
            content_type=step.content_type or "text/plain",
        )
    body = http_error(step.status).error_body if step.error_body is None else step.error_body
    return web.json_response(body, status=step.status, headers=step.headers)


class _Break(Enum):
    """What a stream does between its chunks."""

    PAUSE = auto()
    CUT = auto()


@dataclass(frozen=True)
class _Reply:
    """A step in the form of a chat completion, whole or in chunks."""

    step: Step
    body: dict[str, Any]
    serial: int
    created: int

    def whole(self) -> dict[str, Any]:
        step = self.step
        message: dict[str, Any] = {"role": "assistant", "content": step.text or None}
        if step.reasoning:
            message["reasoning_content"] = step.reasoning
        if step.tools:
            message["tool_calls"] = [
                self._call(index) | {"function": {"name": tool.name, "arguments": tool.arguments()}}
                for index, tool in enumerate(step.tools)
            ]
        choice = {"index": 0, "message": message, "finish_reason": step.finish_reason}
        usage = {"usage": step.usage.as_json()} if step.usage is not None else {}
        return self._head("chat.completion") | {"choices": [choice]} | usage

    def chunks(self) -> Iterator[str | _Break]:
        """The stream's `data:` texts in order, with the breaks between them."""
        step = self.step
        for number, delta in enumerate(self._deltas()):
            if step.drop_after == number:
                yield _Break.CUT
                return
            if step.error_after == number:
                yield json.dumps(openai_error("The fake stream broke.", "server_error"))
                return
            if step.garbage_after == number:
                yield '{"id": "broken'
            yield self._chunk(delta, None)
            yield _Break.PAUSE
        yield from self._ending()

    def _ending(self) -> Iterator[str]:
        step = self.step
        if step.send_finish:
            yield self._chunk({}, step.finish_reason)
        wanted = (self.body.get("stream_options") or {}).get("include_usage")
        if step.usage is not None and wanted and step.send_finish:
            yield json.dumps(self._head("chat.completion.chunk") | {"choices": [], "usage": step.usage.as_json()})
        if step.send_done:
            yield "[DONE]"

    def _deltas(self) -> Iterator[dict[str, Any]]:
        step = self.step
        yield {"role": "assistant", "content": ""}
        for piece in _pieces(step.reasoning, step.chunk):
            yield {"reasoning_content": piece}
        for piece in _pieces(step.text, step.chunk):
            yield {"content": piece}
        for index, tool in enumerate(step.tools):
            opening = self._call(index) | {"function": {"name": tool.name, "arguments": ""}}
            yield {"tool_calls": [{"index": index} | opening]}
            for piece in _pieces(tool.arguments(), step.chunk):
                yield {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}

    def _chunk(self, delta: dict[str, Any], finish: str | None) -> str:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return json.dumps(self._head("chat.completion.chunk") | {"choices": [choice]})

    def _head(self, kind: str) -> dict[str, Any]:
        return {
            "id": f"chatcmpl-fake-{self.serial}",
            "object": kind,
            "created": self.created,
            "model": self.body.get("model"),
        }

    def _call(self, index: int) -> dict[str, Any]:
        return {"id": f"call_fake_{self.serial}_{index}", "type": "function"}


async def _stream(request: web.Request, reply: _Reply) -> web.StreamResponse:
    step = reply.step
    response = web.StreamResponse(headers={"Cache-Control": "no-cache"} | step.headers)
    response.content_type = "text/event-stream"
    response.charset = "utf-8"
    try:
        await response.prepare(request)
        await asyncio.sleep(step.hold)
        for chunk in reply.chunks():
            match chunk:
                case _Break.CUT:
                    _cut(request)
                    return response
                case _Break.PAUSE:
                    await asyncio.sleep(step.gap)
                case text:
                    await response.write(f"data: {text}\n\n".encode())
        await response.write_eof()
    except ConnectionError:
        _cut(request)  # the client has gone
    except asyncio.CancelledError:
        _cut(request)  # the server stops: an end without a cut would look like a whole answer
        raise
    return response


def _cut(request: web.Request) -> None:
    if request.transport is not None:
        request.transport.abort()


def _pieces(text: str, size: int) -> Iterator[str]:
    size = max(size, 1)
    for start in range(0, len(text), size):
        yield text[start : start + size]
