"""One attempt of a run: one Job, from its prompt to its cleanup, and what is known of it afterwards."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from contracts.errors import Failure
    from contracts.identity import AttemptKey
    from contracts.messages import JobRef, StreamEnd
    from contracts.outcome import AttemptReport, OutputReceipt, Report, Stop
    from contracts.request import SessionParams


@dataclass
class Attempt:
    """One attempt while it happens: what it has made and learned so far.

    Attributes:
        speaks_for: Paperclip's id of the run whose token its pod was given; None: the one that it was started for.
        failure: what ended it from outside OpenCode.
        began: the agent's container was seen running.
        worked: how long it ran, on the run's own clock.
        forced: it did not end within its grace.
        gone: cleanup has seen that no pod of it is left.
        ran: cleanup has seen a pod of it whose agent had started.
    """

    key: AttemptKey
    session: SessionParams | None
    job: JobRef | None = None
    speaks_for: str | None = None
    end: StreamEnd | None = None
    report: Report | None = None
    failure: Failure | None = None
    began: datetime | None = None
    worked: timedelta = timedelta()
    forced: bool = False
    gone: bool = False
    ran: bool = False

    @property
    def session_refused(self) -> bool:
        """OpenCode does not know the session this attempt was to resume."""
        return self.session is not None and self.report is not None and self.report.unknown_session

    @property
    def known_failure(self) -> Failure | None:
        """Why it did not succeed: what ended it from outside, else what its output says."""
        return self.failure or (self.report.failure if self.report else None)

    @property
    def session_id(self) -> str | None:
        """The session that a later attempt or wake can resume: known to OpenCode, and its database outlives the pod."""
        if self.job is None or not self.job.keeps_sessions or (self.report and self.report.clear_session):
            return None
        return self.report.session_id if self.report else None

    @property
    def stop(self) -> Stop:
        """What a caller that stopped it needs to know."""
        ended = self.end is not None and self.end.container.exit_code is not None
        return Stop(
            agent_started=self.began is not None or ended or self.ran,
            agent_stopped=self.gone or ended,
            forced=self.forced,
            session_preserved=self.session_id is not None and (self.gone or ended),
        )

    @property
    def summary(self) -> AttemptReport:
        """As the outcome lists it."""
        failure = self.known_failure
        return AttemptReport(
            attempt=self.key.attempt,
            job_name=self.key.job_name,
            failure_code=failure.code if failure else None,
            receipt=self.end.receipt if self.end else OutputReceipt(),
        )
