"""The workspace store that the settings name."""

import json
from pathlib import Path

import pytest

from agent_runs.client.settings import ClientSettings, SettingsError
from agent_runs.client.workspaces import open_workspaces
from agent_runs.files import UnusableKey
from agent_runs.service.settings import WorkerSettings
from agent_runs.transcript.tokens import new_key


def settings(folder: Path, key: str | None = None) -> ClientSettings:
    file = None
    if key is not None:
        file = folder / "key.json"
        file.write_text(key)
    return ClientSettings(workspace_store=f"file://{folder}/store", workspace_key_file=file, workspace_max_mib=1)


def test_without_a_store_no_workspace_is_carried() -> None:
    assert open_workspaces(ClientSettings()) is None


def test_the_key_file_encrypts_and_the_limits_are_kept(tmp_path: Path) -> None:
    plain, encrypted = open_workspaces(settings(tmp_path)), open_workspaces(settings(tmp_path, json.dumps(new_key())))
    assert plain is not None
    assert encrypted is not None
    assert (plain.key, len(encrypted.key or b"")) == (None, 32)
    assert plain.limits.bytes == 1024 * 1024


@pytest.mark.parametrize("key", ["", "{}", json.dumps({"kty": "oct", "k": "A" * 64})], ids=["empty", "none", "long"])
def test_a_key_that_cannot_be_used_is_named(tmp_path: Path, key: str) -> None:
    with pytest.raises(UnusableKey, match="AGENT_RUNS_WORKSPACE_KEY_FILE"):
        open_workspaces(settings(tmp_path, key))


def test_a_url_of_no_storage_is_named_without_its_credentials() -> None:
    with pytest.raises(SettingsError, match=r"AGENT_RUNS_WORKSPACE_STORE: .*file:///FOLDER") as raised:
        open_workspaces(ClientSettings(workspace_store="ftp://user:secret@host/x"))
    assert "secret" not in str(raised.value)


def test_a_worker_with_a_store_needs_the_url_for_pods_and_one_without_ignores_it() -> None:
    """So that a deployment sets addresses once, and the store alone says whether workspaces are carried."""
    store, url = {"AGENT_RUNS_WORKSPACE_STORE": "file:///x"}, {"AGENT_RUNS_WORKSPACE_URL": "http://worker:1"}
    with pytest.raises(SettingsError, match=r"AGENT_RUNS_WORKSPACE_URL: .*together with AGENT_RUNS_WORKSPACE_STORE"):
        WorkerSettings.read(store)
    assert WorkerSettings.read({**store, **url}).workspace_url == "http://worker:1"
    assert open_workspaces(WorkerSettings.read({**url, "AGENT_RUNS_WORKSPACE_KEY_FILE": "/nowhere"})) is None
