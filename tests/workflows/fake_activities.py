"""Fake activities with the real names: each records its input and returns a default, or what the test wants."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

from temporalio import activity
from temporalio.client import WorkflowHandle

from agent_runs.contracts.messages import (
    AwaitSchedule,
    BundlePrompt,
    CreateJob,
    Ended,
    Finish,
    Finished,
    IntrospectPod,
    JobRef,
    OverBudget,
    OverQuota,
    ParseTranscript,
    PodProfile,
    PodRef,
    PrepareRun,
    PromptBundle,
    RotateToken,
    Silence,
    StopAgent,
    StreamEnd,
    StreamLogs,
    TellAgent,
)
from agent_runs.contracts.outcome import ContainerEnd, OutputReceipt, Report, Usage
from agent_runs.contracts.updates import (
    ASKED,
    BUDGET_WARNING,
    BudgetWarning,
    Option,
    Question,
    QuestionField,
)
from tests.support.requests import prepared

Answer = Callable[[Any], Awaitable[Any]]
GOOD = Report(session_id="ses_1", summary="done", exit_code=0, usage=Usage(input_tokens=10, output_tokens=2), events=3)


ENDED = Ended(container=ContainerEnd(exit_code=0, reason="Completed"), receipt=OutputReceipt(state="verified", lines=3))
EARLY = ENDED.model_copy(update={"container": ContainerEnd(exit_code=0), "early": True})
"""Of an agent whose process has ended with exit code 0, before its container's status shows that."""


@dataclass
class FakeActivities:
    """The activities of a fake worker.

    Attributes:
        answers: by the activity's name, what it does instead of returning its default.
        calls: names and inputs of the calls so far, in order.
    """

    answers: dict[str, Answer] = field(default_factory=dict)
    calls: list[tuple[str, Any]] = field(default_factory=list)

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.calls]

    def last_input(self, name: str) -> Any:
        """The input of the last call of this activity."""
        return [input for called, input in self.calls if called == name][-1]

    @property
    def activities(self) -> list[Callable[..., Any]]:
        return [self._activity(name, kind, default) for name, (kind, default) in DEFAULTS.items()]

    @staticmethod
    def pod(input: AwaitSchedule) -> PodRef:
        """What `await_schedule` returns by default."""
        return PodRef(namespace="default", name=f"{input.job.name}-x", uid="pod", node="node")

    @staticmethod
    def ended(_input: object) -> StreamEnd:
        """What `stream_logs` returns by default."""
        return ENDED

    def _activity(self, name: str, kind: Any, default: Answer) -> Callable[..., Any]:
        async def step(input: Any) -> Any:
            self.calls.append((name, input))
            return await self.answers.get(name, default)(input)

        step.__annotations__["input"] = kind
        return activity.defn(name=name)(step)


def answer_with(make: Callable[[Any], Any]) -> Answer:
    """An activity that returns what `make` makes of its input, at once."""

    async def answer(input: Any) -> Any:
        return make(input)

    return answer


def fail_with(error: Exception) -> Answer:
    """An activity that raises an error."""

    async def answer(_input: object) -> None:
        raise error

    return answer


def _job(input: CreateJob) -> JobRef:
    uid = f"uid-{input.attempt.attempt}"
    return JobRef(namespace="default", name=input.attempt.job_name, uid=uid, keeps_sessions=True)


def _prompt(input: BundlePrompt) -> PromptBundle:
    return PromptBundle(namespace="default", secret_name=input.attempt.prompt_secret_name, sha256="0", size=1)


DEFAULTS: Final[dict[str, tuple[Any, Answer]]] = {
    "prepare_run": (PrepareRun, answer_with(prepared)),
    "introspect_pod": (IntrospectPod, answer_with(lambda _: PodProfile(namespace="default", image="agent:1"))),
    "bundle_prompt": (BundlePrompt, answer_with(_prompt)),
    "create_job": (CreateJob, answer_with(_job)),
    "await_schedule": (AwaitSchedule, answer_with(FakeActivities.pod)),
    "stream_logs": (StreamLogs, answer_with(FakeActivities.ended)),
    "rotate_token": (RotateToken, answer_with(lambda _: True)),
    "tell_agent": (TellAgent, answer_with(lambda _: None)),
    "stop_agent": (StopAgent, answer_with(lambda _: True)),
    "parse_transcript": (ParseTranscript, answer_with(lambda _: GOOD)),
    "finish": (Finish, answer_with(lambda _: Finished(deleted=True))),
}
"""The input type of each activity, and what it returns by default."""


@dataclass
class FakeCleanup:
    """A `finish` that takes as long as the test wants, for an agent whose end is known early.

    Attributes:
        early: the stream of its agent ended early.
        contradiction: what the container's status says.
        begun: set once `finish` runs; `may_end`: it ends when this is set.
    """

    early: bool = True
    contradiction: str | None = None
    begun: asyncio.Event = field(default_factory=asyncio.Event)
    may_end: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def answers(self) -> dict[str, Answer]:
        return {"stream_logs": answer_with(lambda _: EARLY if self.early else ENDED), "finish": self._finish}

    async def _finish(self, _input: object) -> Finished:
        self.begun.set()
        while not self.may_end.is_set():
            activity.heartbeat()
            await asyncio.sleep(0.05)
        return Finished(deleted=True, agent_started=True, contradiction=self.contradiction)


async def until_cancelled(progress: object) -> None:
    """An activity that only its cancellation ends, which arrives with a heartbeat."""
    while True:
        activity.heartbeat(progress)
        await asyncio.sleep(0.05)


PERMISSION: Final = Question(
    id="1-per_1",
    attempt=1,
    kind="permission",
    fields=(
        QuestionField(text="bash: make deploy", options=(Option(label="Allow once"), Option(label="Always allow"))),
    ),
)
"""What a fake agent asks."""


@dataclass
class FakeAgent:
    """An agent that runs until it is stopped: fakes of `stream_logs` and `stop_agent`.

    Attributes:
        ignores_sigterm: `stop_agent` does not end it.
        silence: what `stream_logs` reports at once if it has a limit on silence.
        over_quota: what it reports at once, unless it was reported before.
        budget: what it reports at once, one after the other, while the budget is watched.
        questions: what it asks, each twice: a worker may send one again.
        started: set once `stream_logs` runs; `stopped`: once it must stop; `asked`: once it has asked.
    """

    ignores_sigterm: bool = False
    silence: Silence | None = None
    over_quota: OverQuota | None = None
    budget: list[OverBudget | BudgetWarning] = field(default_factory=list)
    questions: tuple[Question, ...] = ()
    asked: asyncio.Event = field(default_factory=asyncio.Event)
    started: asyncio.Event = field(default_factory=asyncio.Event)
    stopped: asyncio.Event = field(default_factory=asyncio.Event)
    warned: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def answers(self) -> dict[str, Answer]:
        return {"stream_logs": self._stream, "stop_agent": self._stop}

    async def _stream(self, input: StreamLogs) -> StreamEnd:
        self.started.set()
        if self.silence is not None and (input.first_output_timeout or input.silence_timeout):
            return self.silence
        if self.over_quota is not None and not input.over_quota:
            return self.over_quota
        while self.budget and input.budget is not None:
            use = self.budget.pop(0)
            if isinstance(use, OverBudget):
                return use
            await self._run().signal(BUDGET_WARNING, use)
            self.warned.set()
        await self.ask()
        while not self.stopped.is_set():
            activity.heartbeat()
            await asyncio.sleep(0.05)
        return STOPPED

    async def ask(self) -> None:
        """Asks its questions."""
        for question in (*self.questions, *self.questions):
            await self._run().signal(ASKED, question)
        self.asked.set()

    @staticmethod
    def _run() -> WorkflowHandle[Any, Any]:
        info = activity.info()
        return activity.client().get_workflow_handle(info.workflow_id or "", run_id=info.workflow_run_id)

    async def end(self) -> None:
        """Lets it end by itself."""
        self.stopped.set()

    async def _stop(self, _input: object) -> bool:
        if not self.ignores_sigterm:
            self.stopped.set()
        return True


STOPPED = Ended(
    container=ContainerEnd(exit_code=143, signal=15, reason="Error"), receipt=OutputReceipt(state="verified", lines=7)
)
THROTTLE = timedelta(milliseconds=100)
