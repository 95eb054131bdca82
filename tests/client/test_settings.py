"""Settings of a process that shares its environment with others."""

from agent_runs.client.settings import PREFIX, WORKER_ONLY, ClientSettings
from agent_runs.service.settings import WorkerSettings


def test_a_caller_ignores_exactly_the_settings_that_only_a_worker_has() -> None:
    only = WorkerSettings.model_fields.keys() - ClientSettings.model_fields.keys()
    assert {f"{PREFIX}{name.upper()}" for name in only} == WORKER_ONLY
