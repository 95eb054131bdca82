"""Activities that stand in for the real ones, by name: each notes that it was called and answers from a script."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar, cast

from temporalio import activity

from contracts.messages import (
    AwaitSchedule,
    BundlePrompt,
    CreateJob,
    Finish,
    IntrospectPod,
    JobRef,
    ParseTranscript,
    PodProfile,
    PodRef,
    PromptBundle,
    StreamEnd,
    StreamLogs,
)
from contracts.outcome import ContainerEnd, OutputReceipt, Report, Usage

Default = TypeVar("Default")
Answer = Callable[[Any], Awaitable[Any]]
GOOD = Report(session_id="ses_1", summary="done", exit_code=0, usage=Usage(input_tokens=10, output_tokens=2), events=3)


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

    async def _answer(self, name: str, order: Any, default: Default) -> Default:
        self.calls.append((name, order))
        answer = await self.answers[name](order) if name in self.answers else default
        return cast("Default", answer)

    @property
    def activities(self) -> list[Callable[..., Any]]:
        @activity.defn
        async def introspect_pod(order: IntrospectPod) -> PodProfile:
            return await self._answer("introspect_pod", order, PodProfile(namespace="default", image="agent:1"))

        @activity.defn
        async def bundle_prompt(order: BundlePrompt) -> PromptBundle:
            name = order.attempt.prompt_secret_name
            bundle = PromptBundle(namespace="default", secret_name=name, sha256="0", size=1)
            return await self._answer("bundle_prompt", order, bundle)

        @activity.defn
        async def create_job(order: CreateJob) -> JobRef:
            job = JobRef(namespace="default", name=order.attempt.job_name, uid=f"uid-{order.attempt.attempt}")
            return await self._answer("create_job", order, job)

        @activity.defn
        async def await_schedule(order: AwaitSchedule) -> PodRef:
            pod = PodRef(namespace="default", name=f"{order.job.name}-x", uid="pod", node="node")
            return await self._answer("await_schedule", order, pod)

        @activity.defn
        async def stream_logs(order: StreamLogs) -> StreamEnd:
            end = StreamEnd(
                container=ContainerEnd(exit_code=0, reason="Completed"),
                receipt=OutputReceipt(state="verified", lines=3),
            )
            return await self._answer("stream_logs", order, end)

        @activity.defn
        async def parse_transcript(order: ParseTranscript) -> Report:
            return await self._answer("parse_transcript", order, GOOD)

        @activity.defn
        async def finish(order: Finish) -> bool:
            return await self._answer("finish", order, True)

        return [introspect_pod, bundle_prompt, create_job, await_schedule, stream_logs, parse_transcript, finish]


async def until_cancelled(_order: object) -> None:
    """An activity that would go on for ever, and hears of its cancel with the next heartbeat."""
    while True:
        activity.heartbeat()
        await asyncio.sleep(0.05)


THROTTLE = timedelta(milliseconds=100)
