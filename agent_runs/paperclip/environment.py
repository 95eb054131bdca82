"""The environment of an agent: what Paperclip assigns, what the agent's configuration adds, what nobody may set.

Layers, later wins: the worker's own inherited values; AGENT_HOME; the agent's `env`; Paperclip's block; the fixed
values. So an agent's `env` can set any variable, except those that Paperclip assigns for this run and reserved ones.
Source: Paperclip 2026.916.1, adapter-utils and live captures.
"""

import ipaddress
import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from agent_runs.contracts.pod import HOME_DIRECTORY
from agent_runs.contracts.request import RunRequest, Secrets
from agent_runs.paperclip.session import working_directory

SCRATCH_DIR: Final = "/tmp"  # noqa: S108 - inside the agent's own container, where it always exists
RESERVED: Final = frozenset({"PAPERCLIP_API_KEY", "PAPERCLIP_API_URL", "HOME", "PWD"})
"""Names that neither the worker nor the agent's configuration may set. OpenCode's own are in its package."""

_SCRATCH_NAMES: Final = (
    "PAPERCLIP_SCRATCH_DIR",
    "PAPERCLIP_RUN_SCRATCH_DIR",
    "PAPERCLIP_TASK_SCRATCH_DIR",
    "PAPERCLIP_TMPDIR",
)
_NOT_FOR_AGENTS: Final = re.compile(
    r"AGENT_RUNS_.*|TEMPORAL_.*|KUBERNETES_.*|KUBECONFIG|HOSTNAME|POD_NAME|POD_NAMESPACE"
    r"|OTEL_EXPORTER_.*_(HEADERS|CLIENT_KEY)|PAPERCLIP_.*(SECRET|SIGNING|MASTER|PRIVATE|_KEY).*"
)


def environment(
    request: RunRequest,
    secrets: Secrets,
    *,
    api_url: str | None,
    inherited: Mapping[str, str],
    scratch: str = SCRATCH_DIR,
) -> dict[str, str]:
    """Names and values for the agent's container.

    Args:
        request: the run.
        secrets: its opened secrets.
        api_url: Paperclip as pods reach it; None leaves it to the worker's or the agent's own environment.
        inherited: literal variables of the worker's own container. Control plane secrets in it are not passed on.
        scratch: a directory that exists in the pod and goes away with it.
    """
    agent_home = request.context.paperclip_workspace.agent_home
    assigned = paperclip_block(request, secrets, api_url or inherited.get("PAPERCLIP_API_URL"))
    layers: tuple[Mapping[str, str], ...] = (
        {name: value for name, value in inherited.items() if not _NOT_FOR_AGENTS.fullmatch(name)},
        {"AGENT_HOME": agent_home} if agent_home else {},
        {name: value for name, value in secrets.paperclip_env.items() if not name.startswith("PAPERCLIP_")},
        dict.fromkeys(("TMPDIR", "TEMP", "TMP"), scratch),
        {name: value for name, value in secrets.env.items() if name not in RESERVED},
        dict.fromkeys(_SCRATCH_NAMES, scratch),
        assigned,
        {"HOME": HOME_DIRECTORY},
    )
    return {name: value for layer in layers for name, value in layer.items()}


def paperclip_block(request: RunRequest, secrets: Secrets, api_url: str | None) -> dict[str, str]:
    """The `PAPERCLIP_*` variables that Paperclip assigns for this run; absent facts have no variable."""
    wake, workspace = request.context, request.context.paperclip_workspace
    block: dict[str, str | None] = {
        "PAPERCLIP_AGENT_ID": request.agent.id,
        "PAPERCLIP_COMPANY_ID": request.agent.company_id,
        "PAPERCLIP_API_URL": api_url,
        "PAPERCLIP_RUN_ID": request.run_id,
        "PAPERCLIP_TASK_ID": request.task_id,
        "PAPERCLIP_ISSUE_WORK_MODE": wake.issue_work_mode,
        "PAPERCLIP_WAKE_REASON": wake.wake_reason,
        "PAPERCLIP_WAKE_COMMENT_ID": wake.wake_comment_id or wake.comment_id,
        "PAPERCLIP_APPROVAL_ID": wake.approval_id,
        "PAPERCLIP_APPROVAL_STATUS": wake.approval_status,
        "PAPERCLIP_LINKED_ISSUE_IDS": ",".join(issue for issue in wake.issue_ids if issue.strip()),
        "PAPERCLIP_WORKSPACE_CWD": working_directory(workspace, request.config) if workspace.cwd else None,
        "PAPERCLIP_WORKSPACE_SOURCE": workspace.source,
        "PAPERCLIP_WORKSPACE_STRATEGY": workspace.strategy,
        "PAPERCLIP_WORKSPACE_ID": workspace.workspace_id,
        "PAPERCLIP_WORKSPACE_REPO_URL": workspace.repo_url,
        "PAPERCLIP_WORKSPACE_REPO_REF": workspace.repo_ref,
        "PAPERCLIP_WORKSPACE_BRANCH": workspace.branch_name,
        "PAPERCLIP_WORKSPACE_WORKTREE_PATH": workspace.worktree_path,
        "PAPERCLIP_RUNTIME_PRIMARY_URL": wake.paperclip_runtime_primary_url,
        **{name: value for name, value in secrets.paperclip_env.items() if name.startswith("PAPERCLIP_")},
        "PAPERCLIP_API_KEY": secrets.auth_token,
    }
    return {name: trimmed for name, value in block.items() if value and (trimmed := value.strip())}


def api_url_warning(url: str | None) -> str | None:
    """Why `url` is useless inside a pod, as a sentence with the remedy; None when nothing is wrong with it.

    Paperclip's default is its own loopback address, which in a pod means the pod.
    """
    remedy = "set AGENT_RUNS_PAPERCLIP_API_URL, at Paperclip's server or at the worker, to the address that pods reach"
    if not url:
        return f"agents get no PAPERCLIP_API_URL and cannot report: {remedy}"
    host = urlsplit(url).hostname or ""
    if is_loopback(host):
        return f"PAPERCLIP_API_URL points at {host}, which in a pod is the pod itself: {remedy}"
    return None


def is_loopback(host: str) -> bool:
    """Whether a host is the asking machine itself, which in a pod is the pod."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return address.is_loopback or address.is_unspecified
