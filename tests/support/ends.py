"""How a stream or a run ended, for tests that know which way it must have."""

from agent_runs.contracts.messages import Ended, OverBudget, OverQuota, StreamEnd
from agent_runs.contracts.outcome import Outcome


def ended(end: StreamEnd) -> Ended:
    assert isinstance(end, Ended)
    return end


def over_quota(end: StreamEnd) -> OverQuota:
    assert isinstance(end, OverQuota)
    return end


def over_budget(end: StreamEnd) -> OverBudget:
    assert isinstance(end, OverBudget)
    return end


def assert_verified(outcome: Outcome) -> None:
    """Every line that the pod has counted is stored."""
    assert outcome.receipt is not None
    assert outcome.receipt.state == "verified"


def assert_whole(outcome: Outcome, summary: str) -> None:
    assert (outcome.failure, outcome.summary) == (None, summary)
    assert_verified(outcome)
