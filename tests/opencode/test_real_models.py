"""OpenCode with the short list that a pod gives it: the real one knows, says and asks the same as with its own list."""

import asyncio
import json
import os
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from agent_runs import pod
from agent_runs.agents.opencode.merge import Merged, merge
from dev_stack.opencode_binary import ensure_opencode
from dev_stack.plan import cache_folder
from tests.opencode.real import prepared

pytestmark = pytest.mark.slow

SCRIPT = Path(pod.__file__).with_name("models.mjs")
ROUTES = ("/config/providers", "/provider", "/agent", "/config")
USED = {
    "anthropic": ("claude-sonnet-4-5", "/v1"),
    "openai": ("gpt-5", "/v1"),
    "google": ("gemini-2.5-pro", "/v1beta"),
    "openrouter": ("anthropic/claude-sonnet-4.5", "/api/v1"),
    "amazon-bedrock": ("anthropic.claude-sonnet-4-5-20250929-v1:0", ""),
}
"""A model of each provider, and where its API begins."""
_CHANGING = re.compile(r"(?:ses|msg|prt|prj)_[0-9A-Za-z]+|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)


@dataclass
class Recorder:
    """A provider that refuses every request and keeps it."""

    origin: str = ""
    requests: set[str] = field(default_factory=set)

    async def record(self, request: web.Request) -> web.Response:
        headers = {name: value for name, value in request.headers.items() if name != "Content-Length"}
        asked_for = json.dumps([request.method, request.path_qs, sorted(headers.items()), await request.text()])
        self.requests.add(_CHANGING.sub("ID", asked_for))
        return web.json_response({"message": "refused", "error": {"message": "refused"}}, status=400)


@pytest.fixture
async def recorder() -> AsyncIterator[Recorder]:
    found = Recorder()
    app = web.Application(client_max_size=1 << 24)
    app.router.add_route("*", "/{path:.*}", found.record)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    found.origin = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield found
    await runner.cleanup()


@dataclass(frozen=True)
class OpenCode:
    """The real one with a configuration; `models` takes the place of its list, unless it is None."""

    folder: Path
    merged: Merged
    models: Path | None

    async def start(self, *arguments: str, **pipes: Any) -> asyncio.subprocess.Process:
        binary = await ensure_opencode(cache_folder() / "opencode")
        variables = prepared(self.folder, self.merged) | {"AWS_BEARER_TOKEN_BEDROCK": "none", "AWS_REGION": "us-east-1"}
        variables |= {"OPENCODE_MODELS_PATH": str(self.models)} if self.models else {}
        return await asyncio.create_subprocess_exec(
            binary, *arguments, env=variables, cwd=self.folder / "workspace", stdin=asyncio.subprocess.DEVNULL, **pipes
        )

    async def run(self, *arguments: str) -> tuple[int | None, str]:
        """Exit code and output of a command, errors included: in a file, because it loses what a pipe does not take."""
        file = self.folder / "output"
        with file.open("wb") as output:
            process = await self.start(*arguments, stdout=output, stderr=asyncio.subprocess.STDOUT)
            code = await process.wait()
        return code, _CHANGING.sub("ID", file.read_text())

    async def routes(self) -> dict[str, bytes]:
        """What its server answers."""
        process = await self.start("serve", "--port", "0", stdout=asyncio.subprocess.PIPE)
        assert process.stdout is not None
        try:
            while b"listening on" not in (line := await process.stdout.readline()):
                assert line, "the server has ended"
            async with aiohttp.ClientSession(line.decode().split()[-1]) as session:
                return {route: await self._get(session, route) for route in ROUTES}
        finally:
            process.terminate()
            await process.wait()

    async def _get(self, session: aiohttp.ClientSession, route: str) -> bytes:
        async with session.get(route) as response:
            assert response.status == 200
            return await response.read()


async def short_list(file: Path, *names: str) -> Path:
    """The list as a pod has it."""
    binary = await ensure_opencode(cache_folder() / "opencode")
    process = await asyncio.create_subprocess_exec(binary, SCRIPT, file, *names, env={"BUN_BE_BUN": "1"})
    assert await process.wait() == 0
    return file


def configured(recorder: Recorder, *providers: str) -> Merged:
    """The configuration of a run that uses a model of each of them, the first one's for its own."""
    models = [f"{name}/{USED[name][0]}" for name in providers]
    options = {name: {"apiKey": "none", "baseURL": f"{recorder.origin}{USED[name][1]}"} for name in providers}
    blocks = {name: {"options": each} for name, each in options.items()}
    agents = {f"helper-{number}": {"model": model} for number, model in enumerate(models[1:])}
    merged = merge(model=models[0], agent={"agent": agents} if agents else {}, operator={"provider": blocks})
    assert merged.listed_providers == providers
    return merged


async def both(tmp_path: Path, recorder: Recorder, *providers: str) -> tuple[OpenCode, OpenCode]:
    """OpenCode with its own list, and with the short one."""
    merged = configured(recorder, *providers)
    return OpenCode(tmp_path, merged, None), OpenCode(
        tmp_path, merged, await short_list(tmp_path / "models.json", *providers)
    )


async def asked(opencode: OpenCode, recorder: Recorder, model: str, *options: str) -> tuple[set[str], str]:
    """The requests of a session's first step, that for its title included, and what the run printed."""
    recorder.requests.clear()
    _, output = await opencode.run("run", "--model", model, *options, "What is in this folder?")
    return set(recorder.requests), output


@pytest.mark.parametrize("provider", ["anthropic", "amazon-bedrock"])
async def test_commands_and_server_show_the_same_models(tmp_path: Path, recorder: Recorder, provider: str) -> None:
    whole, short = await both(tmp_path, recorder, provider)
    verbose = ("models", provider, "--verbose")
    listed = await whole.run(*verbose)
    assert listed[0] == 0
    assert f"\n{provider}/" in listed[1]
    assert await short.run(*verbose) == listed
    shown = await whole.routes()
    assert await short.routes() == shown
    (known,) = json.loads(shown["/config/providers"])["providers"]
    assert known["id"] == provider
    assert USED[provider][0] in known["models"]


@pytest.mark.parametrize("provider", ["openai"])
async def test_the_first_requests_are_the_same(tmp_path: Path, recorder: Recorder, provider: str) -> None:
    whole, short = await both(tmp_path, recorder, provider)
    model = f"{provider}/{USED[provider][0]}"
    requests, output = await asked(whole, recorder, model, "--variant", "high")
    assert any("What is in this folder?" in each and "webfetch" in each for each in requests), output
    assert await asked(short, recorder, model, "--variant", "high") == (requests, output)


async def test_several_providers_are_the_same_in_the_same_order(tmp_path: Path, recorder: Recorder) -> None:
    whole, short = await both(tmp_path, recorder, "openai", "anthropic", "google")
    assert await short.routes() == await whole.routes()


async def test_an_unknown_model_is_the_same_error(tmp_path: Path, recorder: Recorder) -> None:
    whole, short = await both(tmp_path, recorder, "anthropic")
    errors = []
    for opencode in (whole, short):
        requests, output = await asked(opencode, recorder, "anthropic/claude-haiku-4-6", "--print-logs")
        assert requests == set()
        errors += [set(re.findall(r"Model not found: [^\"\n]*", output))]
    assert errors[0] == errors[1] != set()
    assert all("Did you mean: claude-haiku-4-5" in each for each in errors[0])


async def test_every_provider_of_the_list_can_be_had(tmp_path: Path) -> None:
    binary = await ensure_opencode(cache_folder() / "opencode")
    names = re.findall(rb',(?:"([a-z0-9.-]+)"|([a-z0-9]+)):\{id:"(?:\1|\2)",env:\[', binary.read_bytes())
    file = await short_list(tmp_path / "models.json", *(os.fsdecode(quoted or plain) for quoted, plain in names))
    assert len(json.loads(file.read_text())) > 200
