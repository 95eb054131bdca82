"""Variables that an agent's `config.env` cannot set, why, and what to do instead: each is a warning.

A test plans a Job with each of them and with every variable that a Job has, so the table is what really happens.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

_NAMED: Final = 6
"""Names in one warning."""


@dataclass(frozen=True)
class Ineffective:
    """Variables without effect, for one reason.

    Attributes:
        why: follows their names in a sentence; with what to do instead.
    """

    names: tuple[str, ...]
    why: str


INEFFECTIVE: Final = (
    Ineffective(("HOME",), "no effect: the agent's home is the same folder in every run"),
    Ineffective(("PWD",), "no effect: the agent works in the run's workspace; without one set config.cwd"),
    Ineffective(
        ("TMPDIR", "TMP", "TEMP"), "no effect: temporary files are in the pod's own folder, which is deleted with it"
    ),
    Ineffective(
        ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME"),
        "no effect: these are folders of the pod; sessions are in the agent's home, or where config.agentDbMode says",
    ),
    Ineffective(
        (
            *("GOCACHE", "GOMODCACHE", "npm_config_cache", "BUN_INSTALL_CACHE", "PIP_CACHE_DIR"),
            "PLAYWRIGHT_BROWSERS_PATH",
        ),
        "no effect: caches are in the pod's own folder, which is deleted with it; have the agents' image bring what "
        "each run needs",
    ),
    Ineffective(("OPENCODE_DB",), "no effect: config.agentDbMode says where OpenCode keeps its sessions"),
    Ineffective(
        ("OPENCODE_CONFIG", "OPENCODE_CONFIG_CONTENT", "OPENCODE_CONFIG_DIR", "OPENCODE_PERMISSION"),
        "no effect: OpenCode's configuration is made for each run; use config.opencode, or "
        "AGENT_RUNS_OPENCODE_CONFIG of the worker for all agents",
    ),
    Ineffective(
        ("OPENCODE_SERVER_PASSWORD", "OPENCODE_SERVER_USERNAME"),
        "no effect: with a password OpenCode finds none of its sessions",
    ),
    Ineffective(
        (
            *("OPENCODE_DISABLE_AUTOUPDATE", "OPENCODE_DISABLE_DEFAULT_PLUGINS", "OPENCODE_DISABLE_LSP_DOWNLOAD"),
            *("OPENCODE_DISABLE_MODELS_FETCH", "OPENCODE_DISABLE_SHARE", "OPENCODE_DISABLE_TERMINAL_TITLE"),
            "OPENCODE_PURE",
        ),
        "no effect: every run sets these itself, for the reasons in docs/configuration.md",
    ),
    Ineffective(
        ("OPENCODE_DISABLE_PROJECT_CONFIG",), "no effect: add projectConfig to config.opencodeFeatures instead"
    ),
    Ineffective(("PAPERCLIP_API_KEY",), "no effect: Paperclip issues a key for each run"),
    Ineffective(("PAPERCLIP_API_URL",), "no effect, because the agent's token goes there: set config.paperclipApiUrl"),
    Ineffective(
        (
            *("PAPERCLIP_AGENT_ID", "PAPERCLIP_COMPANY_ID", "PAPERCLIP_RUN_ID", "PAPERCLIP_TASK_ID"),
            *("PAPERCLIP_ISSUE_WORK_MODE", "PAPERCLIP_WAKE_REASON", "PAPERCLIP_WAKE_COMMENT_ID"),
            *("PAPERCLIP_APPROVAL_ID", "PAPERCLIP_APPROVAL_STATUS", "PAPERCLIP_LINKED_ISSUE_IDS"),
            *("PAPERCLIP_WORKSPACE_CWD", "PAPERCLIP_WORKSPACE_SOURCE", "PAPERCLIP_WORKSPACE_STRATEGY"),
            *("PAPERCLIP_WORKSPACE_ID", "PAPERCLIP_WORKSPACE_REPO_URL", "PAPERCLIP_WORKSPACE_REPO_REF"),
            *("PAPERCLIP_WORKSPACE_BRANCH", "PAPERCLIP_WORKSPACE_WORKTREE_PATH", "PAPERCLIP_RUNTIME_PRIMARY_URL"),
            *("PAPERCLIP_WAKE_PAYLOAD_JSON", "PAPERCLIP_WORKSPACES_JSON", "PAPERCLIP_RUNTIME_SERVICE_INTENTS_JSON"),
            *("PAPERCLIP_RUNTIME_SERVICES_JSON", "PAPERCLIP_RUNTIME_TOOLS_MCP_URL", "PAPERCLIP_RUNTIME_TOOLS_TOKEN"),
            *("PAPERCLIP_RUNTIME_TOOLS_EXPIRES_AT", "PAPERCLIP_RUNTIME_TOOLS_CONNECTIONS_SEARCH_URL"),
            *("PAPERCLIP_RUNTIME_TOOLS_CONNECTION_REQUEST_URL", "PAPERCLIP_RUNTIME_TOOLS_AVAILABLE"),
            "PAPERCLIP_RUNTIME_TOOLS_GUIDANCE",
        ),
        "no effect in a run for which Paperclip sets them: choose names of your own",
    ),
)


def ineffective_variables(names: Iterable[str]) -> tuple[str, ...]:
    """A sentence for each reason why variables of these names have no effect, in the order of the table."""
    return tuple(_warnings(frozenset(names)))


def _warnings(names: frozenset[str]) -> Iterator[str]:
    for each in INEFFECTIVE:
        if given := [f"config.env.{name}" for name in each.names if name in names]:
            yield f"{', '.join(given[:_NAMED])}{' and others' if len(given) > _NAMED else ''}: {each.why}"
