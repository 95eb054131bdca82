"""Requests for tests whose activities are fakes: nothing is sealed, and the fake `prepare_run` finds them here."""

from typing import Final

from agent_runs.client.names import Names
from agent_runs.client.wake import Wake
from agent_runs.contracts.messages import PrepareRun
from agent_runs.contracts.request import RunRequest
from agent_runs.contracts.start import RunStart

_WAKES: Final[dict[str, "FakeRequest"]] = {}


class FakeRequest(RunRequest):
    """A request with what its start holds besides; by default its outcome waits for nobody."""

    outcome_retention_sec: int = 0
    sealed: str = "sealed"

    @property
    def wake(self) -> Wake:
        """As a caller sends it."""
        _WAKES[self.run_id] = self
        start = RunStart(
            run_id=self.run_id,
            agent_id=self.agent.id,
            company_id=self.agent.company_id,
            task=self.task,
            sealed=self.sealed,
            outcome_retention_sec=self.outcome_retention_sec,
        )
        return Wake(start, Names(self.agent.name), self.runtime.task_key or self.task_id, join=self.sealed)


def prepared(input: PrepareRun) -> RunRequest:
    """What `prepare_run` returns for the run of such a request."""
    found = _WAKES[input.run.run_id]
    return RunRequest.model_validate(found.model_dump(exclude={"outcome_retention_sec", "sealed"}, by_alias=False))
