"""Errors of connections and settings are one line with the remedy."""

import pytest

from agent_runs.client.connection import TemporalUnreachable, connect
from agent_runs.client.settings import ClientSettings, SettingsError
from agent_runs.client.temporal_server import TemporalServer
from agent_runs.service.settings import WorkerSettings


async def test_an_unreachable_server_is_named_with_the_remedy() -> None:
    with pytest.raises(TemporalUnreachable, match=r"127\.0\.0\.1:1 \(Connection refused\).*TEMPORAL_ADDRESS"):
        await connect(ClientSettings(temporal=TemporalServer(address="127.0.0.1:1")))


def test_a_misspelt_setting_stops_the_start() -> None:
    with pytest.raises(SettingsError, match="AGENT_RUNS_MAX_RUN: no such setting"):
        ClientSettings.read({"AGENT_RUNS_MAX_RUN": "x"})


def test_a_wrong_setting_is_named_without_its_value() -> None:
    with pytest.raises(SettingsError, match="AGENT_RUNS_MAX_RUNS") as wrong:
        WorkerSettings.read({"AGENT_RUNS_MAX_RUNS": "plenty"})
    assert "plenty" not in str(wrong.value)


def test_settings_of_the_worker_are_known_to_callers() -> None:
    assert ClientSettings.read({"AGENT_RUNS_MAX_RUNS": "7"}) == ClientSettings()
