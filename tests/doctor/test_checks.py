"""One check that fails hides none of the others, and says nothing that it should not."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta

from agent_runs.contracts.errors import ClusterUnavailable
from agent_runs.contracts.start import Finding
from agent_runs.doctor.surroundings import Check, run_checks

FINE = Finding(code="fine", level="info", message="Fine")


async def fine() -> Sequence[Finding]:
    return [FINE]


async def hangs() -> Sequence[Finding]:
    await asyncio.Event().wait()
    return []


async def refuses() -> Sequence[Finding]:
    raise ClusterUnavailable("no answer")


async def fails() -> Sequence[Finding]:
    raise OSError("password=very-secret")


async def test_a_check_that_hangs_refuses_or_fails_hides_no_other_and_quotes_no_library() -> None:
    checks = [Check(each.__name__, each) for each in (hangs, refuses, fails, fine)]
    found = await run_checks(checks, timedelta(seconds=0.05))
    assert [(each.code, each.level) for each in found[:3]] == [
        ("check_timeout", "error"),
        (ClusterUnavailable.code, "error"),
        ("check_failed", "error"),
    ]
    assert found[3] == FINE
    assert all(each.hint for each in found[:3])
    assert "secret" not in str(found)
