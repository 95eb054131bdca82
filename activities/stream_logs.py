"""Follows the agent's output into the transcript store, line by line, across restarts of everything involved."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Final

from temporalio import activity
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory
from temporalio.service import RPCError

from agent_runs.background import in_background
from agent_runs.contracts.errors import AgentNotStarted, ClusterForbidden, PodLost, RunTimeout
from agent_runs.contracts.identity import AttemptKey
from agent_runs.contracts.messages import (
    Ended,
    JobRef,
    OverQuota,
    Silence,
    SilenceCause,
    StreamEnd,
    StreamLogs,
    StreamProgress,
)
from agent_runs.contracts.outcome import ContainerEnd, Gap, OutputReceipt
from agent_runs.contracts.updates import ASKED, BUDGET_WARNING, BudgetWarning, Question
from agent_runs.job.redactions import Redactions
from agent_runs.kube.client import Cluster
from agent_runs.kube.diagnosis import Failing, termination_cause
from agent_runs.logs.buffer import Batch
from agent_runs.logs.follower import Follower
from agent_runs.logs.frames import WARNING_LIMIT, with_peaks
from agent_runs.logs.questions import Questions
from agent_runs.logs.silence import SilenceClock, SilenceLimits, SilenceProof
from agent_runs.logs.stored_output import OutputMetrics, StoredOutput, gap_row, off_loop
from agent_runs.logs.usage import BudgetWatch, UsageRecorder
from agent_runs.metrics.definitions import OUTPUT_GAPS
from agent_runs.metrics.recorder import NOT_RECORDED, Recorder
from agent_runs.paperclip.redaction import Redaction
from agent_runs.transcript.agent_state import SUB_AGENT, AgentState
from agent_runs.transcript.events import printable
from agent_runs.transcript.lines import stored_size
from agent_runs.transcript.store import TranscriptStore, Writer
from agent_runs.transcript.verdict import SERVER_UNUSABLE

HAND_OFF_DELAY: Final = timedelta(milliseconds=100)
"""Before another worker may take the activity over: long enough for this worker's open polls to close. An activity
attempt that such a poll still receives is lost until its heartbeat times out."""
MIN_HEARTBEAT_INTERVAL: Final = timedelta(seconds=2)
"""Between heartbeats of one stream."""
HEARTBEAT_INTERVAL_PER_STREAM: Final = timedelta(milliseconds=20)
"""Between heartbeats of all streams of this worker: each costs some 0.5 ms of CPU here, and more in Temporal."""
MAX_HEARTBEAT_INTERVAL: Final = timedelta(seconds=4)
"""Between heartbeats of one stream, however many there are: two of them and a busy second fit into the time-out."""
DEFAULT_QUOTA: Final = 1024 * 1024 * 1024
"""Bytes."""
SIGNAL_TIMEOUT: Final = timedelta(seconds=5)
"""For a signal to the run; the output waits in the pod's log for as long."""
UNPROMPTED: Final = SERVER_UNUSABLE | {AgentNotStarted.code}
"""Why the sidecar's driver has not sent the prompt."""
RUNNER_FAILED: Final = 125
"""Exit code of the runner when it has not started the agent."""


@dataclass
class HeartbeatThrottle:
    """How often each stream of a worker sends a heartbeat: the more streams, the less often."""

    streams: int = 0

    @property
    def interval(self) -> timedelta:
        """Until a stream's next heartbeat."""
        interval = max(MIN_HEARTBEAT_INTERVAL, self.streams * HEARTBEAT_INTERVAL_PER_STREAM)
        return min(interval, MAX_HEARTBEAT_INTERVAL)


@dataclass(frozen=True)
class StreamLogsActivity:
    """The only writer of a transcript. A repeated line changes nothing in the store.

    Attributes:
        quota: bytes that one run takes in the store, all attempts together; one batch more at the most.
    """

    cluster: Cluster
    store: TranscriptStore
    redactions: Redactions
    quota: int = DEFAULT_QUOTA
    throttle: HeartbeatThrottle = field(default_factory=HeartbeatThrottle)
    metrics: Recorder = NOT_RECORDED

    @activity.defn
    async def stream_logs(self, input: StreamLogs) -> StreamEnd:
        """Stores the attempt's output until its container has ended, and returns how it ended.

        Or until its sidecar says that the agent has ended with exit code 0, if all of its output is stored and shows a
        whole answer: then the end is `early`, and what the container's status says is not known yet.

        Or until the agent has provably made no progress for longer than one of the limits, or more of the run is stored
        than the quota allows, or its budget is used up: then it returns that, and everything that the agent wrote
        before is stored. The agent still runs; another `stream_logs` may continue. Beyond the quota the transcript is
        sealed with a gap of unknown size.

        Continues where the store ends, so a killed worker costs no line and repeats none. Where in the log that is, the
        previous activity attempt's heartbeat shows, which is checked because it may be outdated. The store fences off
        an earlier activity attempt that still runs elsewhere. A sealed receipt is final: a later activity attempt only
        learns how the container ended. Heartbeats carry a `StreamProgress` every 2 s, up to 4 s where one worker
        follows hundreds of streams. When the worker shuts down, another worker continues at once.

        Known secrets of the run are redacted before a line is stored, and in whatever else is reported of the pod; the
        receipt counts what the agent wrote. Without them nothing is stored, because it could show one: the agent
        continues, and its output is stored once a worker has the key.

        Raises:
            TranscriptsUnavailable: the store does not answer, or this worker does not know the secrets; retried.
            TranscriptFenced: a later activity attempt follows this output.
        """
        writer = this_writer()
        await self.store.claim(input.attempt, writer)  # first, so that no other writer adds lines after we have read
        redaction = await self.redactions.current(input.job.joined)
        questions = Questions(input.attempt.attempt, ask_people) if input.asks else None
        stored = await StoredOutput.read(self.store, input.attempt, redaction, activity.heartbeat, questions)
        sealed = await self.store.receipt(input.attempt)
        stored.run_size = await self.store.stored_bytes(input.attempt.run)
        stored.cursor = stored.resumed_at(last_heartbeat() or input.resume, input.job.claimed)
        if stored.run_size > self.quota and not input.over_quota:
            return await self._over_quota(input.attempt, stored, writer)
        watch = await BudgetWatch.begin(input, stored, self.store, heartbeat=activity.heartbeat, warn=warn_of_budget)
        if sealed is None and (end := await watch.end()) is not None:
            return end
        usage = UsageRecorder(input.model, stored)
        measured = OutputMetrics(self.metrics, input.pod, has_stdout=stored.tally.sizes["stdout"] > 0)
        follower = self._follower(input, stored)
        async with (
            heartbeats(stored, follower, self.throttle),
            usage.recording(self.store, input.attempt, writer),
            in_background(questions.send()) if questions is not None else nullcontext(),
            follower,
        ):
            async for batch in until_worker_shutdown(follower):
                if sealed is None and (batch.lines or batch.gaps):
                    await self._store(input.attempt, batch, stored, writer, usage)
                    measured.stored(batch)
                    if stored.run_size > self.quota:
                        return await self._over_quota(input.attempt, stored, writer)
                    end = await watch.end()
                    if end is not None and follower.last_frame is None:
                        return end
                if follower.may_end_early and (rests(follower) or is_whole_success(stored, follower, sealed)):
                    follower.end_early()
            if follower.silence.exceeded is not None:
                return await self._silence(input, follower, follower.silence.exceeded, stored)
        receipt = await self.store.seal(input.attempt, stored.tally.receipt(follower.last_frame, stored.gaps), writer)
        return await self._end(input.job, follower, receipt, stored)

    def _follower(self, input: StreamLogs, stored: StoredOutput) -> Follower:
        return Follower(
            self.cluster,
            input.job,
            input.pod,
            stored.cursor,
            limits=SilenceLimits(input.first_output_timeout, input.silence_timeout, input.answered_timeout),
            has_stdout=stored.tally.sizes["stdout"] > 0,
            metrics=self.metrics,
            agent_state=stored.agent_state,
        )

    async def _silence(
        self, input: StreamLogs, follower: Follower, clock: SilenceClock, stored: StoredOutput
    ) -> Silence:
        processes = await SilenceProof(self.cluster, input.pod).processes()
        redaction = stored.redaction
        cause, detail = cause_of_silence(stored.agent_state, chatters=follower.silence.chatters)
        return Silence(
            limit=clock.limit,
            cause=cause,
            detail=redaction.hide(detail),
            has_output=not clock.awaits_first_output,
            progress=stored.progress,
            processes=tuple(map(redaction.hide, processes)),
        )

    async def _end(self, job: JobRef, follower: Follower, receipt: OutputReceipt, stored: StoredOutput) -> Ended:
        """How the agent ended. The Job of a lost pod is deleted: before Kubernetes 1.29 it starts a replacement pod."""
        redaction = stored.redaction
        container = container_end(follower, redaction)
        ended = follower.termination if isinstance(follower.termination, Failing) else outside_failure(container)
        if ended is None and follower.is_end_unrecorded:
            ended = Failing(PodLost, "the container runtime lost the agent and the sidecar: nobody recorded their end")
        failure = ended or (unprompted(container) if job.claimed is not None else None)
        if failure is not None and issubclass(failure.error, PodLost):
            await self.cluster.delete_job(job.namespace, job.name, job.uid)
        refusal = self.cluster.watch_refusal(job.namespace)
        unwatched = [f"{refusal}: {ClusterForbidden.next_step}"] if refusal else []
        return Ended(
            container=container,
            receipt=receipt,
            failure=failure.error.as_failure(redaction.hide(failure.message)) if failure else None,
            early=follower.ended_early,
            rests=follower.ended_early and rests(follower),
            warnings=tuple(map(redaction.hide, (*follower.warnings, *unwatched, *workspace_warnings(follower)))),
        )

    async def _store(
        self, key: AttemptKey, batch: Batch, stored: StoredOutput, writer: Writer, usage: UsageRecorder
    ) -> None:
        """Stores a batch; gaps that an earlier activity attempt has stored are skipped."""
        batch.gaps = [gap for gap in batch.gaps if gap not in stored.gaps]
        redacted = replace(batch, lines=await off_loop(batch.size, stored.counted, batch.lines))
        await self.store.append(key, stored.rows(redacted, datetime.now(UTC)), writer, usage.due(), str(stored.tally))
        await off_loop(batch.size, stored.add, redacted.lines, batch.gaps)
        stored.cursor = batch.cursor or stored.cursor
        stored.run_size += stored_size(redacted.lines)

    async def _over_quota(self, key: AttemptKey, stored: StoredOutput, writer: Writer) -> OverQuota:
        """Ends the transcript of a run that is over the quota with a gap of unknown size, and seals it."""
        if await self.store.receipt(key) is None:
            gap = Gap(after_sequence=stored.sequence)
            self.metrics.count(OUTPUT_GAPS)
            await self.store.append(key, [gap_row(gap, datetime.now(UTC))], writer)
            stored.gaps.append(gap)
        receipt = await self.store.seal(key, stored.tally.receipt(None, stored.gaps), writer)
        return OverQuota(limit=self.quota, receipt=receipt, progress=stored.progress)


def this_writer() -> Writer:
    """This activity attempt, as the store orders writers."""
    info = activity.info()
    return Writer(info.scheduled_time, info.attempt, info.workflow_run_id or "")


async def until_worker_shutdown(follower: Follower) -> AsyncIterator[Batch]:
    """The follower's batches, also empty ones once it may end early.

    When this worker shuts down, the activity fails so that another worker continues it.

    Raises:
        ApplicationError: `WorkerShutdown`, retried after `HAND_OFF_DELAY`.
    """
    stopping = asyncio.create_task(activity.wait_for_worker_shutdown())
    stopping.add_done_callback(lambda _: follower.wake())
    try:
        while not stopping.done():
            batch = await follower.next_batch()
            if batch is None:
                return
            if batch.lines or batch.gaps or follower.may_end_early:
                yield batch
    finally:
        stopping.cancel()
    raise ApplicationError(
        "the worker is shutting down",
        type="WorkerShutdown",
        next_retry_delay=HAND_OFF_DELAY,
        category=ApplicationErrorCategory.BENIGN,
    )


async def warn_of_budget(warning: BudgetWarning) -> bool:
    """Sends it to the run, which shows it at once; False: Temporal does not take it now."""
    return await _signal(BUDGET_WARNING, warning)


async def ask_people(question: Question) -> bool:
    """Sends a question to the run, which shows it at once; False: Temporal does not take it now."""
    return await _signal(ASKED, question)


async def _signal(name: str, argument: BudgetWarning | Question) -> bool:
    info = activity.info()
    run = activity.client().get_workflow_handle(info.workflow_id or "", run_id=info.workflow_run_id)
    try:
        await run.signal(name, argument, rpc_timeout=SIGNAL_TIMEOUT)
    except RPCError as error:
        activity.logger.warning("the run cannot get the signal %s now: %s", name, error)
        return False
    return True


def last_heartbeat() -> StreamProgress | None:
    """The details of the previous activity attempt's last heartbeat; None if there are none, or no readable ones."""
    with suppress(ValueError, IndexError):
        return StreamProgress.model_validate(activity.info().heartbeat_details[0])
    return None


def rests(follower: Follower) -> bool:
    """Whether the sidecar says that the pod rests, so that the agent's container does not end with the run."""
    return follower.last_frame is not None and follower.last_frame.rests


@asynccontextmanager
async def heartbeats(stored: StoredOutput, follower: Follower, throttle: HeartbeatThrottle) -> AsyncIterator[None]:
    """Sends heartbeats, also while the agent is silent: silence is normal, a dead worker or node is not."""

    async def send() -> None:
        while True:
            reason, since = follower.silent_node or ("", None)
            activity.heartbeat(stored.progress.model_copy(update={"reason": reason, "since": since}))
            await asyncio.sleep(throttle.interval.total_seconds())

    throttle.streams += 1
    try:
        async with in_background(send()):
            yield
    finally:
        throttle.streams -= 1


def cause_of_silence(agent_state: AgentState, *, chatters: bool) -> tuple[SilenceCause, str]:
    """What an agent without progress waits for, and the tools or the line that people want to read."""
    if agent_state.has_answered:
        return "agent", ""
    if agent_state.waits_for == "tool" and not (chatters and agent_state.tools == (SUB_AGENT,)):
        return "tool", ", ".join(agent_state.tools)
    if chatters:
        return "chatter", agent_state.repeated_line
    return ("provider" if agent_state.waits_for == "provider" else "agent"), ""


def is_whole_success(stored: StoredOutput, follower: Follower, sealed: OutputReceipt | None) -> bool:
    """Whether all of the output is stored, and shows that an agent that ended with exit code 0 has succeeded."""
    receipt = stored.tally.receipt(follower.last_frame, stored.gaps)
    if receipt.state != "verified" or (sealed is not None and sealed.state != "verified"):
        return False
    report = stored.fold.report(ContainerEnd(exit_code=0), verified=True)
    return report.failure is None and report.exit_code == 0


def container_end(follower: Follower, redaction: Redaction) -> ContainerEnd:
    """The container's end according to Kubernetes, with the runner's error if there is one.

    Its texts may quote the agent, for example by a termination message, so secrets are hidden in them. A runner whose
    sidecar never ran has nobody who reports its error.
    """
    end, last = without_secrets(follower.end or ContainerEnd(), redaction), follower.last_frame
    end = with_peaks(end, last)
    if last is not None and last.error is not None:
        error, text = last.error, f"runner: {last.error}" + (f" ({last.detail})" if last.detail else "")
    elif end.exit_code == RUNNER_FAILED and not follower.has_frames:
        error, text = "sidecar", "runner: the sidecar never ran"
    else:
        return end
    message = "; ".join(part for part in (end.message, redaction.hide(text)) if part)
    return end.model_copy(update={"runner_error": error, "message": message})


def workspace_warnings(follower: Follower) -> tuple[str, ...]:
    """What of a carried workspace is not kept. The agent chooses the names of its files."""
    last = follower.last_frame.workspace if follower.last_frame is not None else None
    if last is None:
        return ()
    lost = f"what the agent did after step {last.steps}" if last.number else "what the agent did"
    failed = (
        f"{lost} is not kept: the last checkpoint failed ({last.error.code}: {last.error.message})"
        if last.error
        else ""
    )
    return tuple(printable(each, WARNING_LIMIT) for each in (failed, *last.warnings) if each)


def without_secrets(end: ContainerEnd, redaction: Redaction) -> ContainerEnd:
    """The container's end with secrets hidden in its texts."""
    return end.model_copy(update={"reason": redaction.hide_in(end.reason), "message": redaction.hide_in(end.message)})


def outside_failure(end: ContainerEnd) -> Failing | None:
    """The failure if the agent was ended from outside; how it ended by itself is judged by its output."""
    cause = termination_cause(end)
    return cause if cause is not None and issubclass(cause.error, PodLost | RunTimeout) else None


def unprompted(end: ContainerEnd) -> Failing | None:
    """The failure if a pod that had rested could not be given the prompt: another attempt has a pod of its own."""
    if end.runner_error not in UNPROMPTED:
        return None
    return Failing(PodLost, f"the pod had rested and could not be used: {end.runner_error}")
