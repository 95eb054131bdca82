"""A worker of the real workflow with stand-in steps, and a real transcript service: what callers in another language
are tested against.

    python -m tests.workflows.standin ADDRESS QUEUE FOLDER

The part of `config.model` after `standin/` says what the agent does:

    lines:N[:MS]   N lines, MS milliseconds apart, then success
    works          a line every 50 ms until it is stopped
    deaf           the same, and SIGTERM does nothing to it
    quiet          nothing, until it is stopped
    unplaced       no node ever takes its pod
    retried        a first attempt of five lines whose pod is lost, then a second of five
    broken         ends with a failure of the provider

FOLDER gets `transcripts.db` and `transcripts-key.json`. Standard output says `{"transcripts": "http://…"}` once both
worker and service are there; standard input's end stops them.
"""

import asyncio
import sys
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Final

import msgspec
from pydantic import ValidationError
from temporalio import activity
from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from client.connection import run_to_end
from contracts.errors import PodLost, PodScheduleFailed, ProviderUnavailable
from contracts.identity import AttemptKey
from contracts.messages import AwaitSchedule, ParseTranscript, PodRef, StopAgent, StreamEnd, StreamLogs
from contracts.outcome import ContainerEnd, OutputReceipt, Report, Usage
from tests.workflows.steps import THROTTLE, Steps
from transcripts.access import Access
from transcripts.service import app, serving
from transcripts.store import Line, SqlTranscripts
from transcripts.tokens import Tokens
from workflows.agent_run import AgentRunWorkflow

STEP: Final = 0.05


class Agents:
    """What the stand-in agents do, by the model's name. The request is read from the run's own history."""

    def __init__(self, client: Client, store: SqlTranscripts) -> None:
        self._client = client
        self._store = store
        self._stopped: dict[str, asyncio.Event] = {}

    @property
    def steps(self) -> Steps:
        """The steps that matter to a caller; all others answer at once."""
        return Steps(
            answers={
                "await_schedule": self._schedule,
                "stream_logs": self._stream,
                "stop_agent": self._stop,
                "parse_transcript": self._parse,
            }
        )

    async def _part(self) -> list[str]:
        info = activity.info()
        handle = self._client.get_workflow_handle(info.workflow_id or "", run_id=info.workflow_run_id)
        async for event in handle.fetch_history_events():
            payloads = event.workflow_execution_started_event_attributes.input.payloads
            model: str = msgspec.json.decode(payloads[0].data)["config"]["model"]
            return model.removeprefix("standin/").split(":")
        raise AssertionError("a history without a first event")

    def _stop_of(self, key: AttemptKey) -> asyncio.Event:
        return self._stopped.setdefault(key.job_name, asyncio.Event())

    async def _schedule(self, order: AwaitSchedule) -> PodRef:
        if await self._part() == ["unplaced"]:
            raise PodScheduleFailed("no node fits: 0/3 nodes are available")
        return Steps.pod(order)

    async def _stream(self, order: StreamLogs) -> StreamEnd:
        kind, *numbers = await self._part()
        key = order.attempt
        if kind == "lines":
            count, pause = [*(int(number) for number in numbers), 0][:2]
            return await self._lines(key, count, pause / 1000)
        if kind == "retried" and key.attempt == 1:
            end = await self._lines(key, 5, 0)
            return end.model_copy(update={"failure": PodLost.as_failure("the node went away")})
        if kind in {"retried", "broken"}:
            return await self._lines(key, 5, 0)
        return await self._working(key, spoken=kind != "quiet", deaf=kind == "deaf")

    async def _lines(self, key: AttemptKey, count: int, pause: float) -> StreamEnd:
        for number in range(1, count + 1):
            await self._say(key, number, _event(number, f"line {number}"))
            if pause:
                activity.heartbeat()
                await asyncio.sleep(pause)
        return await self._sealed(key, count, ContainerEnd(exit_code=0, reason="Completed"))

    async def _working(self, key: AttemptKey, *, spoken: bool, deaf: bool) -> StreamEnd:
        number = 0
        stopped = self._stop_of(key)
        while deaf or not stopped.is_set():
            activity.heartbeat()
            if spoken:
                number += 1
                await self._say(key, number, _event(number, f"line {number}"))
            await asyncio.sleep(STEP)
        return await self._sealed(key, number, ContainerEnd(exit_code=143, signal=15, reason="Error"))

    async def _say(self, key: AttemptKey, number: int, text: str) -> None:
        await self._store.append(key, [Line(number, "stdout", text.encode(), at=datetime.now(UTC))])

    async def _sealed(self, key: AttemptKey, lines: int, container: ContainerEnd) -> StreamEnd:
        receipt = await self._store.seal(key, OutputReceipt(state="verified", lines=lines))
        return StreamEnd(container=container, receipt=receipt)

    async def _stop(self, order: StopAgent) -> bool:
        self._stop_of_job(order.job.name).set()
        return True

    def _stop_of_job(self, name: str) -> asyncio.Event:
        return self._stopped.setdefault(name, asyncio.Event())

    async def _parse(self, order: ParseTranscript) -> Report:
        kind, *_ = await self._part()
        if kind == "unplaced":
            return Report(failure=order.stopped, exit_code=1)
        broken = kind == "broken"
        return Report(
            failure=order.stopped or (ProviderUnavailable.as_failure("the provider answers 503") if broken else None),
            session_id="ses_standin",
            summary="done",
            exit_code=1 if broken or order.stopped else 0,
            usage=Usage(input_tokens=10, output_tokens=2, cached_input_tokens=3),
            cost_usd=Decimal("0.0125"),
            events=3,
        )


def _event(number: int, text: str) -> str:
    part = {"type": "text", "id": f"prt_{number}", "text": text}
    event = {"type": "text", "timestamp": 1_700_000_000_000 + number, "sessionID": "ses_standin", "part": part}
    return msgspec.json.encode(event).decode()


async def main(address: str, queue: str, folder: Path) -> None:
    """Works until standard input ends."""
    client = await Client.connect(address, data_converter=pydantic_data_converter)
    store = await SqlTranscripts.open(f"sqlite:///{folder / 'transcripts.db'}")
    service = app(store, Access(Tokens.from_file(folder / "transcripts-key.json")))
    ended = asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    async with (
        serving(service) as base,
        Worker(
            client,
            task_queue=queue,
            workflows=[AgentRunWorkflow],
            activities=Agents(client, store).steps.activities,
            workflow_runner=UnsandboxedWorkflowRunner(),
            max_heartbeat_throttle_interval=THROTTLE,
            workflow_failure_exception_types=[ValidationError],
        ),
    ):
        print(msgspec.json.encode({"transcripts": base}).decode(), flush=True)
        await ended
    await store.close()


if __name__ == "__main__":
    run_to_end(partial(main, sys.argv[1], sys.argv[2], Path(sys.argv[3])))
