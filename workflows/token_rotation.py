"""Gives a running agent the Paperclip token of the wake that joined its run last."""

import asyncio
from datetime import timedelta
from typing import Final

from temporalio import workflow
from temporalio.exceptions import ActivityError, is_cancelled_exception

with workflow.unsafe.imports_passed_through():
    from agent_runs.contracts import activities
    from agent_runs.contracts.messages import JobRef, JoinedRun, RotateToken
    from workflows.activity_calls import API_OUTAGE, HEARTBEAT_TIMEOUT, RETRIES, WAIT_CANCELLATION_COMPLETED
    from workflows.attempt import Attempt
    from workflows.run_state import RunState


KUBELET_UPDATE: Final = timedelta(minutes=7)
"""`rotate_token` looks 60 times, a second apart, and a command in the pod that is silent for 5 s has failed."""


class TokenRotation:
    """The newest token of a run, and its way into the pod of the current attempt. The agent never waits for it."""

    def __init__(self, run: RunState) -> None:
        """A run has its own token until another wake joins it."""
        self.newest: JoinedRun | None = None
        self._run = run
        self._rotation: asyncio.Task[None] | None = None

    @property
    def newest_run_id(self) -> str | None:
        """Paperclip's id of the run whose token is the newest; None: of the run itself."""
        return self.newest.run_id if self.newest else None

    def use(self, joined: JoinedRun) -> None:
        """From now on the agent reaches Paperclip with the token of this wake."""
        self.newest = joined
        self.begin()

    def begin(self) -> None:
        """Gives the running agent the newest token, unless it has that; one rotation at a time."""
        attempt = self._run.current
        if attempt is not None and attempt.job is not None and self._rotation is None:
            self._rotation = asyncio.create_task(self._rotate(attempt, attempt.job))

    async def end(self) -> None:
        """Ends a rotation when the agent has ended: nothing uses the token any longer."""
        if self._rotation is not None:
            self._rotation.cancel()
            await workflow.wait([self._rotation])
            self._rotation = None

    async def _rotate(self, attempt: Attempt, job: JobRef) -> None:
        """Repeats while newer runs join, until the attempt has the newest token or has ended."""
        while self._run.current is attempt and (joined := self.newest) and attempt.token_run_id != joined.run_id:
            attempt.token_run_id = joined.run_id
            warning = await _rotate_token(RotateToken(attempt=attempt.key, job=job, joined=joined))
            if warning:
                self._run.note(f"run {joined.run_id} joined, but {warning}")
        self._rotation = None


async def _rotate_token(input: RotateToken) -> str | None:
    """A note for people when the new token was not seen in the pod. It never fails a run."""
    if not input.job.has_api_proxy:
        return (
            "the agent keeps the old token, because it has it in its environment: "
            "set an absolute AGENT_RUNS_PAPERCLIP_API_URL on the worker"
        )
    try:
        seen = await workflow.execute_activity(
            activities.rotate_token,
            input,
            summary=f"rotate token to run {input.joined.run_id}",
            start_to_close_timeout=KUBELET_UPDATE,
            schedule_to_close_timeout=API_OUTAGE,
            heartbeat_timeout=HEARTBEAT_TIMEOUT,
            retry_policy=RETRIES,
            cancellation_type=WAIT_CANCELLATION_COMPLETED,
        )
    except ActivityError as error:
        if is_cancelled_exception(error):
            return None
        return f"the agent keeps the old token: {str(error.cause)[:200]}"
    return None if seen else "its token was not seen in the pod"
