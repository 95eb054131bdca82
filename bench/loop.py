"""How long hostile input keeps the worker's event loop, and so every other run, from its work.

    python -m bench.loop [NAME]

Each case goes through the code of the worker: an activity, or the transcript service with a reader in another process.
Meanwhile a task of the event loop notes the time between its turns. The table has the longest: by the clock, which
includes waiting for a core on a busy machine, and as CPU time of the process. The goal is 50 ms.
"""

import asyncio
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, cast

from temporalio.client import Client
from temporalio.testing import ActivityEnvironment

import worker
from activities.parse_transcript import ParseTranscriptActivity
from activities.prepare_run import PrepareRunActivity
from activities.stream_logs import StreamLogsActivity
from agent_runs.client.connection import run_to_end
from agent_runs.contracts.errors import RunError
from agent_runs.contracts.identity import AttemptKey, RunKey
from agent_runs.contracts.messages import ParseTranscript, PrepareRun, StreamLogs
from agent_runs.contracts.outcome import Outcome, OutputReceipt
from agent_runs.contracts.start import Binding, RunStart, SealedRun
from agent_runs.job.checks import Checks
from agent_runs.job.redactions import Redactions
from agent_runs.kube.client import Cluster
from agent_runs.paperclip.preparation import Preparation
from agent_runs.paperclip.sealing import Opener, Sealer, SealingKey
from agent_runs.service.preparations import HistoryPreparations
from bench.reports import machine
from tests.activities.fake_preparations import FakePreparations
from tests.logs.kubelet import Log, framed
from tests.logs.scripted_log import ENDED, JOB, POD, ScriptedLog
from tests.paperclip.contexts import minimal
from tests.support.sqlite import sqlite_store
from tests.web.parts import RUN, key, line, run_info, site

SIZE: Final = 16 * 1024 * 1024 - 1024
TICK: Final = 0.001
PIECE: Final = 64 * 1024
SECRET: Final = b"ghp_0123456789abcdef"
"""One of those of `FakePreparations`."""
READER: Final = """
import sys, urllib.request
request = urllib.request.Request(sys.argv[1], headers={"Authorization": "Bearer " + sys.argv[2]})
with urllib.request.urlopen(request) as answer:
    while answer.read(1 << 20):
        pass
"""


class Watch:
    """The longest time between two turns of the event loop, in seconds: by the clock, and CPU of the process in it."""

    def __init__(self) -> None:
        self.wall = self.cpu = 0.0

    async def run(self) -> None:
        while True:
            wall, cpu = time.perf_counter(), time.process_time()
            await asyncio.sleep(TICK)
            self.wall = max(self.wall, time.perf_counter() - wall - TICK)
            self.cpu = max(self.cpu, time.process_time() - cpu)


@asynccontextmanager
async def watch() -> AsyncIterator[Watch]:
    watched = Watch()
    task = asyncio.create_task(watched.run())
    await asyncio.sleep(0.05)
    watched.wall = watched.cpu = 0.0
    yield watched
    await asyncio.sleep(0.05)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


def event(kind: str, text: bytes) -> bytes:
    """An event of OpenCode's whose one long field is this JSON text."""
    if kind == "error":
        return b'{"type":"error","timestamp":1,"sessionID":"ses_1","error":%s}' % text
    return b'{"type":"%s","timestamp":1,"sessionID":"ses_1","part":{"messageID":"m","id":"p","text":%s}}' % (
        kind.encode(),
        text,
    )


def filled(piece: bytes) -> bytes:
    """16 MiB of a text."""
    return piece * (SIZE // len(piece))


def many_values() -> bytes:
    """16 MiB of JSON that are five million objects in Python's memory."""
    return b"[" + filled(b"[],") + b"[]]"


SHORT: Final = b"s3cret-8"
LINES: Final[dict[str, Callable[[], bytes]]] = {
    "words": lambda: event("text", b'"' + filled(b"word ") + b'"'),
    "escapes": lambda: event("text", b'"' + filled(b"\\n") + b'"'),
    "nothing but secrets": lambda: filled(SECRET),
    "nothing but the shortest secret": lambda: filled(SHORT),
    "an event of nothing but the shortest secret": lambda: event("text", b'"' + filled(SHORT) + b'"'),
    "an event of nothing but secrets": lambda: event("text", b'"' + filled(SECRET) + b'"'),
    "an error of millions of values": lambda: event("error", many_values()),
    "a text of millions of values": lambda: event("text", many_values()),
    "an error that is no UTF-8": lambda: event("error", b'"' + filled("ä".encode()) + b'\xff"'),
    "ANSI codes": lambda: event("text", b'"' + filled(b"\x1b[31m") + b'"'),
    "no event, no UTF-8": lambda: filled(b"\xff\xfe\x1b["),
}
"""Lines of an agent, of 16 MiB each."""
PATHS: Final = {
    "page": "",
    "live part": "/live",
    "events": "/events",
    "download": "/transcript",
    "Paperclip's log": "/log?format=json&stored=true",
}


Row = tuple[str, Watch]


class Prepared(FakePreparations):
    """A run with one more secret, whose marker is four times as long."""

    async def current(self) -> Preparation:
        prepared = await super().current()
        env = {**prepared.secrets.env, f"{'N' * 240}_TOKEN": SHORT.decode()}
        return replace(prepared, secrets=prepared.secrets.model_copy(update={"env": env}))


class OneLog(ScriptedLog):
    """A log of one line, made beforehand."""

    def __init__(self, data: bytes) -> None:
        log = Log(framed([("stdout", data + b"\n")]))
        super().__init__(log, [(None, None)], [ENDED])
        self._text = log.text(None, None)

    @asynccontextmanager
    async def open_log(self, *_: Any, **__: Any) -> AsyncIterator[AsyncIterator[bytes]]:
        yield self._whole()

    async def _whole(self) -> AsyncIterator[bytes]:
        for at in range(0, len(self._text), PIECE):
            yield self._text[at : at + PIECE]
            await asyncio.sleep(0)  # as a connection that brings no more yet


async def follow(folder: Path, data: bytes) -> AsyncIterator[Row]:
    """Follow a line into the store, as `stream_logs` does, and read it back, as `parse_transcript` does."""
    cluster = cast("Cluster", OneLog(data))
    redactions = Redactions(cluster, Prepared())
    attempt = AttemptKey(run=RunKey(agent_id="ada", company_id="acme", run_id="run"), attempt=1)
    streaming = StreamLogs(attempt=attempt, job=JOB, pod=POD)
    async with sqlite_store(folder) as store:
        for name in ("follow", "take over"):
            async with watch() as watched:
                step = StreamLogsActivity(cluster, store, redactions).stream_logs
                end = await ActivityEnvironment().run(step, streaming)
            yield name, watched
        parse = ParseTranscript(attempt=attempt, end=end, model="fake/model")
        async with watch() as watched:
            await ActivityEnvironment().run(ParseTranscriptActivity(store, redactions).parse_transcript, parse)
        yield "parse", watched


async def read(folder: Path, data: bytes) -> AsyncIterator[Row]:
    """Serve a transcript of one such line in each of its forms."""
    async with site(folder) as running:
        await running.store.append(key(), [line(1, data)])
        await running.store.seal(key(), OutputReceipt(state="verified", lines=1, bytes=len(data)))
        running.source.info = run_info("ended", Outcome(failure=None, attempts=()))
        for name, path in PATHS.items():
            async with watch() as watched:
                command = (sys.executable, "-c", READER, f"{running.base}/runs/{RUN}{path}", running.token())
                process = await asyncio.create_subprocess_exec(*command)
                if await process.wait():
                    raise RuntimeError(f"{path}: the reader failed")
            yield name, watched


async def prepare(folder: Path, context: dict[str, Any]) -> AsyncIterator[Row]:
    """Open a sealed context of this size, as the first step of a run does."""
    del folder
    key = SealingKey.generate()
    run = RunKey(agent_id="agent-1", company_id="company-1", run_id="run-1")
    opener = Opener([key])
    environment = ActivityEnvironment()
    binding = Binding(
        purpose="run", workflow_id=environment.info.workflow_id or "", company_id=run.company_id, run_id=run.run_id
    )
    sealed = Sealer(key.public).seal(SealedRun(binding=binding, context=context))
    start = RunStart(run_id=run.run_id, agent_id=run.agent_id, company_id=run.company_id, sealed=sealed)

    async def open_run(_run: RunKey, by: str) -> str:
        return by

    step = PrepareRunActivity(SealedStart(start, opener), Checks(), open_run).prepare_run
    async with watch() as watched:
        try:
            await environment.run(step, PrepareRun(run=run))
        except RunError as refused:
            print(f"(refused: {refused.message[:80]})", file=sys.stderr)
    yield "prepare_run", watched


class SealedStart(HistoryPreparations):
    """Has the start of the run that Temporal's history would have."""

    def __init__(self, start: RunStart, opener: Opener) -> None:
        super().__init__(cast("Client", None), opener)
        self.start = start

    async def _start(self, *_: str) -> RunStart:
        return self.start


def cases() -> Iterator[tuple[str, Callable[[Path], AsyncIterator[Row]]]]:
    for name, make in LINES.items():
        for step in (follow, read):
            yield name, partial(_of_line, step, make)
    words = minimal() | {"more": "word " * (SIZE // 5)}
    values = minimal() | {"more": [[]] * (SIZE // 4)}
    yield "a sealed context of words", partial(prepare, context=words)
    yield "a sealed context of millions of values", partial(prepare, context=values)


def _of_line(
    step: Callable[[Path, bytes], AsyncIterator[Row]], make: Callable[[], bytes], folder: Path
) -> AsyncIterator[Row]:
    return step(folder, make())


async def measure(wanted: str) -> None:
    worker.freeze()
    print(machine())
    print("| 16 MiB of | step | by the clock, ms | CPU, ms |\n|---|---|---:|---:|")
    for name, case in cases():
        if wanted in name:
            with tempfile.TemporaryDirectory() as folder:
                async for step, watched in case(Path(folder)):
                    print(f"| {name} | {step} | {watched.wall * 1e3:.0f} | {watched.cpu * 1e3:.0f} |", flush=True)


if __name__ == "__main__":
    run_to_end(lambda: measure(sys.argv[1] if len(sys.argv) > 1 else ""))
