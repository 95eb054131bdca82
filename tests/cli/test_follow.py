import asyncio
import io
import json
import os
import signal
import uuid
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from agent_runs.cli import follow
from agent_runs.cli.display import JsonDisplay
from agent_runs.cli.follow import Interrupted, Interrupts, RunFollower
from agent_runs.cli.program import Refused
from agent_runs.cli.transcripts import RunOutput
from agent_runs.client.attach import attach
from agent_runs.client.obstacles import Obstacle
from agent_runs.client.settings import ClientSettings
from agent_runs.contracts.identity import AttemptKey, RunKey, workflow_id
from agent_runs.contracts.outcome import OutputReceipt
from agent_runs.paperclip.sealing import load_or_create
from agent_runs.transcript.store import Line, TranscriptStore
from dev_stack.demo import context
from tests.cli.test_transcripts import PROGRAM
from tests.cli.test_transcripts import environment as environment  # noqa: PLC0414 (the fixture)
from tests.support.relay import open_relay
from tests.support.requests import FakeRequest

RUN = RunKey(agent_id="ada", company_id="acme", run_id="run-1")
NOW = datetime(2026, 11, 21, tzinfo=UTC)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[TranscriptStore]:
    received = await TranscriptStore.open(f"sqlite:///{tmp_path / 'transcripts.db'}")
    yield received
    await received.close()


def attempt(number: int) -> AttemptKey:
    return AttemptKey(run=RUN, attempt=number)


def line(sequence: int) -> Line:
    return Line(sequence, "stdout", b"%d" % sequence, at=NOW)


async def test_lines_of_all_attempts_come_in_order(store: TranscriptStore) -> None:
    await store.append(attempt(1), [line(1), line(2)])
    await store.seal(attempt(1), OutputReceipt())
    await store.append(attempt(2), [line(1)])
    received = [(number, one.sequence) async for number, one in RunOutput(store, RUN, ended=lambda: True).lines()]
    assert received == [(1, 1), (1, 2), (2, 1)]


async def test_lines_after_a_sequence(store: TranscriptStore) -> None:
    await store.append(attempt(1), [line(1), line(2), line(3)])
    received = [one.sequence async for _, one in RunOutput(store, RUN, ended=lambda: True).lines(after=2)]
    assert received == [3]


async def test_following_continues_into_the_next_attempt_and_ends_with_the_run(store: TranscriptStore) -> None:
    ended = asyncio.Event()
    received: list[tuple[int, int]] = []

    async def follow() -> None:
        async for number, one in RunOutput(store, RUN, ended.is_set).lines():
            received.append((number, one.sequence))
            if number == 1:
                await store.seal(attempt(1), OutputReceipt())
                await store.append(attempt(2), [line(1), line(2)])
            elif one.sequence == 2:
                ended.set()

    await store.append(attempt(1), [line(1)])
    async with asyncio.timeout(60):
        await follow()
    assert received == [(1, 1), (2, 1), (2, 2)]


async def test_an_attempt_that_was_never_sealed_ends_when_its_successor_writes(store: TranscriptStore) -> None:
    await store.append(attempt(1), [line(1)])
    await store.append(attempt(2), [line(1)])
    ended = asyncio.Event()
    received: list[int] = []
    async with asyncio.timeout(60):
        async for number, _ in RunOutput(store, RUN, ended.is_set).lines():
            received.append(number)
            if number == 2:
                ended.set()
    assert received == [1, 2]


async def test_the_first_signal_detaches_and_the_work_is_cancelled() -> None:
    cancelled = asyncio.Event()

    async def work() -> None:
        try:
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    with Interrupts.installed() as interrupts, pytest.raises(Interrupted):
        await interrupts.during(work())
    assert cancelled.is_set()


async def test_work_that_ends_first_gives_its_result() -> None:
    async def work() -> int:
        return 7

    with Interrupts.installed() as interrupts:
        assert await interrupts.during(work()) == 7


class Listener(io.StringIO):
    """The output of a command; `noted` is set by the first note."""

    def __init__(self) -> None:
        super().__init__()
        self.noted = asyncio.Event()

    def write(self, text: str) -> int:
        if json.loads(text)["type"] == "obstacle":
            self.noted.set()
        return super().write(text)


async def test_a_run_that_no_worker_takes_and_that_is_terminated_is_reported_as_both(
    temporal: Client, queue: str, store: TranscriptStore, request_of_a_run: FakeRequest
) -> None:
    ticket = await attach(temporal, ClientSettings.read({}, task_queue=queue), request_of_a_run.wake)
    handle, listener = ticket.handle(temporal), Listener()
    often = timedelta(milliseconds=100)
    followed = RunFollower(temporal, handle, request_of_a_run.key, store, JsonDisplay(listener), look_every=often)
    following = asyncio.create_task(followed.follow_to_end())
    async with asyncio.timeout(60):
        await listener.noted.wait()
        await handle.terminate(reason="enough")
        with pytest.raises(Refused, match=r"closed without an outcome.*enough"):
            await following
    output = [json.loads(text) for text in listener.getvalue().splitlines()]
    [obstacle] = [one for one in output if one["type"] == "obstacle"]
    assert obstacle["obstacle"] == "no_worker"
    assert obstacle["text"].startswith("the run has waited ")
    assert obstacle["text"].endswith(f"none polls task queue {queue}. Start one (`agent-runs worker`)")
    assert [one["phase"] for one in output if one["type"] == "phase"] == ["queued", "terminated"]


async def test_what_a_person_sees_while_temporal_is_away_is_words(
    store: TranscriptStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = [RPCError("x", RPCStatusCode.NOT_FOUND, b""), None, RPCError("x", RPCStatusCode.UNAVAILABLE, b"")]
    asked = asyncio.Event()

    async def answer(*_: object) -> list[Obstacle]:
        if not answers:
            asked.set()
            await asyncio.Event().wait()
        if (error := answers.pop(0)) is not None:
            raise error
        return []

    monkeypatch.setattr(follow, "read_obstacles", answer)
    output, nobody = io.StringIO(), cast("Any", None)
    soon = timedelta(milliseconds=1)
    followed = RunFollower(nobody, nobody, RUN, store, JsonDisplay(output), look_every=soon)
    showing = asyncio.create_task(followed._show_obstacles())
    async with asyncio.timeout(60):
        await asked.wait()
    showing.cancel()
    await asyncio.wait([showing])
    assert [json.loads(text)["text"] for text in output.getvalue().splitlines()] == [
        "Temporal does not find the run, as while its database restarts; the run goes on without it",
        "Temporal answers again, after 0 s",
        "Temporal does not answer; the run goes on without it",
    ]


async def test_while_temporal_is_away_a_programs_stdout_holds_our_objects_and_nothing_else(
    temporal: Client, environment: dict[str, str], tmp_path: Path
) -> None:
    agent, file = str(uuid.uuid4()), tmp_path / "context.json"
    file.write_text(json.dumps(context(agent_id=agent)))
    (tmp_path / "transcripts.db").touch()
    load_or_create(tmp_path / "key.json")
    out, errors = bytearray(), bytearray()

    async with open_relay(environment["TEMPORAL_ADDRESS"]) as relay, asyncio.timeout(120):
        process = await asyncio.create_subprocess_exec(
            *(PROGRAM, "start", "--context", str(file), "--follow", "--json"),
            env={**os.environ, **environment, "TEMPORAL_ADDRESS": relay.address},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        assert process.stdout is not None
        assert process.stderr is not None

        async def read(stream: asyncio.StreamReader, into: bytearray) -> None:
            async for text in stream:
                into += text
                followed.set() if b'"queued"' in text else None
                logged.set() if b"temporalio_client" in text else None

        followed, logged = asyncio.Event(), asyncio.Event()
        reading = asyncio.gather(read(process.stdout, out), read(process.stderr, errors))
        await followed.wait()
        relay.cut(refusals=1_000_000)
        await logged.wait()
        relay.refusals = 0
        await temporal.get_workflow_handle(workflow_id(agent)).terminate()
        await reading
        assert await process.wait() == 1
    assert all(json.loads(text)["type"] for text in out.splitlines())
    assert b"temporalio_client" in errors
    assert b"\x1b" not in errors


async def test_following_the_output_says_that_temporal_refuses_the_run(
    store: TranscriptStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: object, **__: object) -> None:
        raise RPCError("x", RPCStatusCode.PERMISSION_DENIED, b"")

    monkeypatch.setattr(follow, "fetch_outcome", refuse)
    nobody = cast("Any", None)
    with pytest.raises(RPCError):
        await RunFollower(nobody, nobody, RUN, store, JsonDisplay(io.StringIO())).follow_output()


async def test_an_outcome_that_no_worker_hands_over_is_not_waited_for_without_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def wait(*_: object, **__: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(follow, "fetch_outcome", wait)
    monkeypatch.setattr(follow, "HAND_OVER_TIMEOUT", timedelta(milliseconds=1))
    with pytest.raises(Refused, match=r"run-1 has its outcome, but no worker hands it over: start one"):
        await follow.result_of_decided(cast("Any", None), "run-1")
