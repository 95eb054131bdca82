"""A worker of the real workflow with fake agents, and a real transcript service, in a process of their own: what the
plugin's tests run against.

    python -m tests.workflows.fake_worker_process ADDRESS QUEUE FOLDER

The part of `config.model` after the slash is what the agent does:

    lines:N[:MS]     N lines, MS milliseconds apart, then success
    works            a line every 50 ms until it is stopped
    ignores-sigterm  the same, and SIGTERM does not stop it
    silent           no line, until it is stopped
    unschedulable    no node takes its pod
    pod-lost-once    a first attempt of five lines whose pod is lost, then a second one of five
    provider-fails   five lines, then a failure of the provider
    provider-rejects the same, but the provider refuses the request

FOLDER gets `transcripts.db`, `transcripts-key.json` and, unless it has one, `sealing-key.json`. One line
`{"transcripts": "http://…"}` on standard output shows that worker and service are up; the end of standard input stops
them.
"""

import asyncio
import sys
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Final

import msgspec
from temporalio import activity
from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from activities.check_configuration import CheckConfigurationActivity
from activities.prepare_run import PrepareRunActivity
from agent_runs.client.connection import run_to_end
from agent_runs.contracts.errors import PodLost, PodScheduleFailed, ProviderRejected, ProviderUnavailable
from agent_runs.contracts.identity import AttemptKey
from agent_runs.contracts.messages import (
    AwaitSchedule,
    Ended,
    ParseTranscript,
    PodRef,
    StopAgent,
    StreamEnd,
    StreamLogs,
)
from agent_runs.contracts.outcome import ContainerEnd, OutputReceipt, Report, Usage
from agent_runs.job.checks import Checks
from agent_runs.job.policy import Policy
from agent_runs.job.redactions import WorkerValues
from agent_runs.paperclip.preparation import Preparations
from agent_runs.paperclip.sealing import Opener, load_or_create
from agent_runs.service.preparations import HistoryPreparations
from agent_runs.transcript.store import Line, TranscriptStore
from agent_runs.transcript.tokens import Tokens
from agent_runs.web.access import Access
from agent_runs.web.server import serving
from agent_runs.web.transcripts import app
from tests.support.policies import ANYTHING
from tests.workflows.fake_activities import THROTTLE, FakeActivities
from workflows.agent_check import AgentCheckWorkflow
from workflows.agent_run import AgentRunWorkflow

PROVIDER_FAILURES: Final = {
    "provider-fails": ProviderUnavailable.as_failure("the provider answers 503"),
    "provider-rejects": ProviderRejected.as_failure("the provider answers 404"),
}
LINE_INTERVAL: Final = 0.05
"""Seconds."""


class FakeAgents:
    """What the fake agents do, by the model's name, which is in what the caller has sealed."""

    def __init__(self, preparations: Preparations, store: TranscriptStore) -> None:
        self._preparations = preparations
        self._store = store
        self._stopped: dict[str, asyncio.Event] = {}

    @property
    def fakes(self) -> FakeActivities:
        """The activities that matter to a caller; all others return their defaults at once."""
        return FakeActivities(
            answers={
                "prepare_run": PrepareRunActivity(
                    self._preparations,
                    Checks(Policy.parse(ANYTHING, "policy.yaml"), data_claim=data_claim),
                    self._store.open_run,
                ).prepare_run,
                "await_schedule": self._await_schedule,
                "stream_logs": self._stream_logs,
                "stop_agent": self._stop_agent,
                "parse_transcript": self._parse_transcript,
            }
        )

    async def _behaviour(self) -> list[str]:
        return (await self._preparations.current()).request.config.model.removeprefix("fake/").split(":")

    def _stop_event(self, job_name: str) -> asyncio.Event:
        return self._stopped.setdefault(job_name, asyncio.Event())

    async def _await_schedule(self, input: AwaitSchedule) -> PodRef:
        if await self._behaviour() == ["unschedulable"]:
            raise PodScheduleFailed("no node fits: 0/3 nodes are available")
        return FakeActivities.pod(input)

    async def _stream_logs(self, input: StreamLogs) -> StreamEnd:
        kind, *numbers = await self._behaviour()
        key = input.attempt
        if kind == "lines":
            count, pause = [*(int(number) for number in numbers), 0][:2]
            return await self._write_lines(key, count, pause / 1000)
        if kind == "pod-lost-once" and key.attempt == 1:
            end = await self._write_lines(key, 5, 0)
            return end.model_copy(update={"failure": PodLost.as_failure("the node was lost")})
        if kind == "pod-lost-once" or kind in PROVIDER_FAILURES:
            return await self._write_lines(key, 5, 0)
        return await self._write_until_stopped(key, silent=kind == "silent", ignores_sigterm=kind == "ignores-sigterm")

    async def _write_lines(self, key: AttemptKey, count: int, pause: float) -> StreamEnd:
        for number in range(1, count + 1):
            await self._write(key, number, _event(number, f"line {number}"))
            activity.heartbeat()  # on a busy machine a few lines take longer than its time-out
            await asyncio.sleep(pause)
        return await self._seal(key, count, ContainerEnd(exit_code=0, reason="Completed"))

    async def _write_until_stopped(self, key: AttemptKey, *, silent: bool, ignores_sigterm: bool) -> StreamEnd:
        number = 0
        stopped = self._stop_event(key.job_name)
        while ignores_sigterm or not stopped.is_set():
            activity.heartbeat()
            if not silent:
                number += 1
                await self._write(key, number, _event(number, f"line {number}"))
            await asyncio.sleep(LINE_INTERVAL)
        return await self._seal(key, number, ContainerEnd(exit_code=143, signal=15, reason="Error"))

    async def _write(self, key: AttemptKey, number: int, text: str) -> None:
        await self._store.append(key, [Line(number, "stdout", text.encode(), at=datetime.now(UTC))])

    async def _seal(self, key: AttemptKey, lines: int, container: ContainerEnd) -> StreamEnd:
        receipt = await self._store.seal(key, OutputReceipt(state="verified", lines=lines))
        return Ended(container=container, receipt=receipt)

    async def _stop_agent(self, input: StopAgent) -> bool:
        self._stop_event(input.job.name).set()
        return True

    async def _parse_transcript(self, input: ParseTranscript) -> Report:
        kind, *_ = await self._behaviour()
        if kind == "unschedulable":
            return Report(failure=input.stopped, exit_code=1)
        failure = input.stopped or PROVIDER_FAILURES.get(kind)
        return Report(
            failure=failure,
            session_id="ses_fake",
            summary="done",
            exit_code=0 if failure is None else 1,
            usage=Usage(input_tokens=10, output_tokens=2, cached_input_tokens=3),
            cost_usd=Decimal("0.0125"),
            events=3,
        )


def _event(number: int, text: str) -> str:
    part = {"type": "text", "id": f"prt_{number}", "text": text}
    event = {"type": "text", "timestamp": 1_700_000_000_000 + number, "sessionID": "ses_fake", "part": part}
    return msgspec.json.encode(event).decode()


async def data_claim() -> str:
    """This worker shares a data volume with its agents."""
    return "paperclip"


async def no_worker_values() -> WorkerValues:
    """This worker puts nothing of its own into pods."""
    return WorkerValues()


async def main(address: str, queue: str, folder: Path) -> None:
    """Runs worker and service until standard input ends."""
    client = await Client.connect(address, data_converter=pydantic_data_converter)
    store = await TranscriptStore.open(f"sqlite:///{folder / 'transcripts.db'}")
    service = app(store, Access(Tokens.load(folder / "transcripts-key.json")))
    opener = Opener(load_or_create(folder / "sealing-key.json"))
    policy = Policy.parse(ANYTHING, "policy.yaml")
    checks = Checks(policy, data_claim=data_claim)
    check = CheckConfigurationActivity(opener, checks, None, no_worker_values).check_configuration
    agents = FakeAgents(HistoryPreparations(client, opener), store)
    ended = asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    async with (
        serving(service) as base,
        Worker(
            client,
            task_queue=queue,
            workflows=[AgentRunWorkflow, AgentCheckWorkflow],
            activities=[*agents.fakes.activities, check],
            workflow_runner=UnsandboxedWorkflowRunner(),
            max_heartbeat_throttle_interval=THROTTLE,
        ),
    ):
        print(msgspec.json.encode({"transcripts": base}).decode(), flush=True)
        await ended
    await store.close()


if __name__ == "__main__":
    run_to_end(partial(main, sys.argv[1], sys.argv[2], Path(sys.argv[3])))
