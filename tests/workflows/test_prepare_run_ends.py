"""The first step of a run is not retried for ever."""

from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest

from agent_runs.contracts.identity import RunKey
from workflows import preparation
from workflows.run_state import RunState


async def test_a_request_that_no_worker_can_prepare_ends_its_run_within_a_day(monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[str, Any] = {}

    async def execute(*_: object, **given: Any) -> None:
        options.update(given)

    monkeypatch.setattr("workflows.preparation.workflow.execute_activity", execute)
    key = RunKey(agent_id="agent-1", company_id="company-1", run_id="run-1")
    nothing = SimpleNamespace(show=lambda _: None, use=lambda _: None, key=key, start=SimpleNamespace(task=None))
    await preparation.prepare_run(cast("RunState", nothing))
    assert options["schedule_to_close_timeout"] == timedelta(days=1)
