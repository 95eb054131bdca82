"""One attempt of a run: one Job, from its prompt to its cleanup."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from agent_runs.contracts.errors import Failure
    from agent_runs.contracts.identity import AttemptKey
    from agent_runs.contracts.messages import Ended, JobRef, QueuedMessage
    from agent_runs.contracts.outcome import AttemptReport, LostWork, OutputReceipt, Peaks, Report, Stop
    from agent_runs.contracts.request import SessionParams


@dataclass
class Attempt:
    """The state of one attempt.

    Attributes:
        namespace: where its prompt is, and so its Job.
        messages: what people have sent the agent, with which its prompt ends.
        token_run_id: Paperclip's id of the run whose token its pod has; None: of the run that it was started for.
        failure: what ended it from outside the agent.
        started_at: the agent's container was first seen running.
        waiting_time: how long the agent waited for answers for people, if there is a limit on its run time.
        run_time: how long the agent ran, by workflow time, without that.
        killed: the agent did not end within its grace.
        pods_deleted: `finish` has seen that no pod of it is left.
        agent_started: `finish` has seen a pod of it whose agent had started.
        lost: what the attempt that follows begins without.
    """

    key: AttemptKey
    session: SessionParams | None
    messages: tuple[QueuedMessage, ...] = ()
    namespace: str | None = None
    job: JobRef | None = None
    token_run_id: str | None = None
    end: Ended | None = None
    report: Report | None = None
    failure: Failure | None = None
    started_at: datetime | None = None
    waiting_time: timedelta = timedelta()
    run_time: timedelta = timedelta()
    killed: bool = False
    pods_deleted: bool = False
    agent_started: bool = False
    lost: LostWork | None = None

    @property
    def session_refused(self) -> bool:
        """Whether the agent does not know the session that this attempt was to resume."""
        return self.session is not None and self.report is not None and self.report.unknown_session

    @property
    def known_failure(self) -> Failure | None:
        """What ended it from outside, else what its output shows; None for a success or without a report."""
        return self.failure or (self.report.failure if self.report else None)

    @property
    def succeeded(self) -> bool:
        """Whether the agent has done what it was started for."""
        return self.report is not None and not self.session_refused and self.known_failure is None

    @property
    def ended_early(self) -> bool:
        """Whether its agent's process has ended with exit code 0, before its container's status was seen."""
        return self.end is not None and self.end.early

    @property
    def rests(self) -> bool:
        """Whether its agent's server waits for the agent's next run."""
        return self.end is not None and self.end.rests

    @property
    def decided_early(self) -> bool:
        """Whether it is known to be a success without that status: the clean-up can no longer change its outcome."""
        return self.ended_early and self.succeeded

    @property
    def session_id(self) -> str | None:
        """The session that a later attempt or wake can resume: the agent knows it, and has kept it outside of the pod.

        Until the agent's output names one, or says that it is unknown, that is the session which was to be resumed.
        """
        if (self.job and not self.job.keeps_sessions) or (self.report and self.report.clear_session):
            return None
        if self.report and (self.report.session_id or self.report.unknown_session):
            return self.report.session_id
        return self.session.session_id if self.session else None

    @property
    def stop(self) -> Stop:
        """What a caller that stopped it needs to know."""
        ended = self.end is not None and self.end.container.exit_code is not None
        return Stop(
            agent_started=self.started_at is not None or ended or self.agent_started,
            agent_stopped=self.pods_deleted or ended,
            killed=self.killed,
            session_preserved=self.session_id is not None and (self.pods_deleted or ended),
        )

    @property
    def summary(self) -> AttemptReport:
        """The attempt as the outcome lists it."""
        failure = self.known_failure
        return AttemptReport(
            attempt=self.key.attempt,
            job_name=self.job.name if self.job else self.key.job_name,
            failure_code=failure.code if failure else None,
            receipt=self.end.receipt if self.end else OutputReceipt(),
            peaks=self.end.container.peaks if self.end else Peaks(),
            lost=self.lost,
        )
