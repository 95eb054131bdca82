"""Opens the workspace store that the settings name."""

from agent_runs.client.settings import ClientSettings, SettingsError
from agent_runs.files import UnusableKey, load_keys
from agent_runs.transcript.tokens import symmetric_keys
from agent_runs.workspace.encryption import KEY_BYTES
from agent_runs.workspace.store import WorkspaceStore
from agent_runs.workspace.tree import Limits


def open_workspaces(settings: ClientSettings) -> WorkspaceStore | None:
    """The store; None where pods share a volume with Paperclip.

    Raises:
        SettingsError: AGENT_RUNS_WORKSPACE_STORE is no URL of a storage.
        UnusableKey: the file of AGENT_RUNS_WORKSPACE_KEY_FILE holds no key of 32 bytes.
    """
    if settings.workspace_store is None:
        return None
    file, key = settings.workspace_key_file, None
    if file is not None:
        key = load_keys(file, "AGENT_RUNS_WORKSPACE_KEY_FILE", symmetric_keys, None)[0].raw_value
        if len(key) != KEY_BYTES:
            raise UnusableKey(f"AGENT_RUNS_WORKSPACE_KEY_FILE: {file} must hold a key of {KEY_BYTES} bytes")
    limits = Limits(bytes=settings.workspace_max_mib * 1024 * 1024, entries=settings.workspace_max_files)
    try:
        return WorkspaceStore.open(settings.workspace_store, key, limits)
    except ValueError as error:
        raise SettingsError(f"AGENT_RUNS_WORKSPACE_STORE: {error}") from None
