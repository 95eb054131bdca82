"""How a followed stream ended, for tests that know which way it must have."""

from agent_runs.contracts.messages import Ended, OverBudget, OverQuota, StreamEnd


def ended(end: StreamEnd) -> Ended:
    assert isinstance(end, Ended)
    return end


def over_quota(end: StreamEnd) -> OverQuota:
    assert isinstance(end, OverQuota)
    return end


def over_budget(end: StreamEnd) -> OverBudget:
    assert isinstance(end, OverBudget)
    return end
