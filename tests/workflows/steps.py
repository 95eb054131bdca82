"""Activities that stand in for the real ones, by name: each notes that it was called and answers from a script."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

from temporalio import activity

from contracts.messages import (
    AwaitSchedule,
    BundlePrompt,
    CreateJob,
    ExamineSilence,
    Finish,
    Finished,
    IntrospectPod,
    JobRef,
    Leftovers,
    ParseTranscript,
    PodProfile,
    PodRef,
    PromptBundle,
    ReapLeftovers,
    RotateToken,
    Silence,
    StopAgent,
    StreamEnd,
    StreamLogs,
)
from contracts.outcome import ContainerEnd, OutputReceipt, Report, Usage

Answer = Callable[[Any], Awaitable[Any]]
GOOD = Report(session_id="ses_1", summary="done", exit_code=0, usage=Usage(input_tokens=10, output_tokens=2), events=3)


ENDED = StreamEnd(
    container=ContainerEnd(exit_code=0, reason="Completed"), receipt=OutputReceipt(state="verified", lines=3)
)


@dataclass
class Steps:
    """What the fake activities were asked, in order, and what they answer instead of their defaults."""

    answers: dict[str, Answer] = field(default_factory=dict)
    calls: list[tuple[str, Any]] = field(default_factory=list)

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.calls]

    def order(self, name: str) -> Any:
        """The last order that this step got."""
        return [order for called, order in self.calls if called == name][-1]

    @property
    def activities(self) -> list[Callable[..., Any]]:
        return [self._activity(name, kind, default) for name, (kind, default) in DEFAULTS.items()]

    @staticmethod
    def pod(order: AwaitSchedule) -> PodRef:
        """What `await_schedule` answers by itself."""
        return PodRef(namespace="default", name=f"{order.job.name}-x", uid="pod", node="node")

    @staticmethod
    def ended(_order: object) -> StreamEnd:
        """What `stream_logs` answers by itself."""
        return ENDED

    def _activity(self, name: str, kind: type, default: Answer) -> Callable[..., Any]:
        async def step(order: Any) -> Any:
            self.calls.append((name, order))
            return await self.answers.get(name, default)(order)

        step.__annotations__["order"] = kind
        return activity.defn(name=name)(step)


def answering(make: Callable[[Any], Any]) -> Answer:
    """An answer that takes no time."""

    async def answer(order: Any) -> Any:
        return make(order)

    return answer


def _job(order: CreateJob) -> JobRef:
    uid = f"uid-{order.attempt.attempt}"
    return JobRef(namespace="default", name=order.attempt.job_name, uid=uid, keeps_sessions=True)


def _prompt(order: BundlePrompt) -> PromptBundle:
    return PromptBundle(namespace="default", secret_name=order.attempt.prompt_secret_name, sha256="0", size=1)


DEFAULTS: Final[dict[str, tuple[type, Answer]]] = {
    "introspect_pod": (IntrospectPod, answering(lambda _: PodProfile(namespace="default", image="agent:1"))),
    "bundle_prompt": (BundlePrompt, answering(_prompt)),
    "reap_leftovers": (ReapLeftovers, answering(lambda _: Leftovers())),
    "create_job": (CreateJob, answering(_job)),
    "await_schedule": (AwaitSchedule, answering(Steps.pod)),
    "stream_logs": (StreamLogs, answering(Steps.ended)),
    "rotate_token": (RotateToken, answering(lambda _: True)),
    "examine_silence": (ExamineSilence, answering(lambda _: Silence(silent_for=timedelta(), spoke=True))),
    "stop_agent": (StopAgent, answering(lambda _: True)),
    "parse_transcript": (ParseTranscript, answering(lambda _: GOOD)),
    "finish": (Finish, answering(lambda _: Finished(deleted=True))),
}
"""What each step is asked with, and what it answers when the test does not care."""


async def until_cancelled(_order: object) -> None:
    """An activity that would go on for ever, and hears of its cancel with the next heartbeat."""
    while True:
        activity.heartbeat()
        await asyncio.sleep(0.05)


@dataclass
class Agent:
    """An agent that works until it is stopped: stand-ins for `stream_logs` and `stop_agent`.

    Attributes:
        deaf: SIGTERM does nothing to it.
        working: it has begun.
    """

    deaf: bool = False
    working: asyncio.Event = field(default_factory=asyncio.Event)
    _stopped: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def answers(self) -> dict[str, Answer]:
        return {"stream_logs": self._stream, "stop_agent": self._stop}

    async def _stream(self, _order: object) -> StreamEnd:
        self.working.set()
        while not self._stopped.is_set():
            activity.heartbeat()
            await asyncio.sleep(0.05)
        return STOPPED

    async def end(self) -> None:
        """Lets it end by itself."""
        self._stopped.set()

    async def _stop(self, _order: object) -> bool:
        if not self.deaf:
            self._stopped.set()
        return True


STOPPED = StreamEnd(
    container=ContainerEnd(exit_code=143, signal=15, reason="Error"), receipt=OutputReceipt(state="verified", lines=7)
)
THROTTLE = timedelta(milliseconds=100)
